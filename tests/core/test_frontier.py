"""The frontier: the commit position is the first offset that is neither settled nor durable elsewhere."""

from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from marq.core.frontier import ACKED, IN_FLIGHT, LOST, PARKED, PENDING, Frontier, Sheet

PLACE = ("t", 0)


@dataclass
class Record:
    at: int

    def offset(self) -> int:
        return self.at


def sheet_of(*offsets: int, end: int | None = None, flags: bytes = b"") -> Sheet:
    sheet = Sheet(None, PLACE, [Record(offset) for offset in offsets], end if end is not None else offsets[-1] + 1)  # type: ignore[misc]
    sheet.flags[: len(flags)] = flags
    return sheet


def test_an_empty_frontier_stays_where_it_started() -> None:
    frontier = Frontier(7)
    assert frontier.advance() == 7
    assert frontier.unsettled() == 0
    assert frontier.abandon() == 0


def test_the_position_is_the_first_byte_that_is_not_settled() -> None:
    frontier = Frontier(10)
    sheet = sheet_of(10, 11, 15, end=20)
    frontier.add(sheet)
    assert frontier.advance() == 10
    sheet.flags[1] = ACKED
    assert frontier.advance() == 10
    sheet.flags[0] = PENDING
    assert frontier.advance() == 10
    sheet.flags[0] = PARKED
    assert frontier.advance() == 15
    assert frontier.acked == 0
    sheet.flags[2] = ACKED
    assert frontier.advance() == 20
    assert frontier.acked == 2
    assert not frontier.sheets


def test_pending_and_in_flight_both_hold_it_back_whichever_comes_first() -> None:
    assert sheet_of(1, 2, flags=bytes((PENDING, IN_FLIGHT))).first_unsettled() == 0
    assert sheet_of(1, 2, flags=bytes((IN_FLIGHT, PENDING))).first_unsettled() == 0
    assert sheet_of(1, 2, flags=bytes((ACKED, PENDING))).first_unsettled() == 1
    assert sheet_of(1, 2, flags=bytes((ACKED, IN_FLIGHT))).first_unsettled() == 1
    assert sheet_of(1, 2, flags=bytes((ACKED, LOST))).first_unsettled() == -1


def test_a_run_without_own_messages_is_passed_at_once() -> None:
    frontier = Frontier(-1)
    frontier.add(Sheet(None, PLACE, [], 42))
    assert frontier.advance() == 42


def test_a_later_run_waits_for_an_earlier_one() -> None:
    frontier = Frontier(0)
    first, second = sheet_of(0, 1), sheet_of(2, 3, flags=bytes((ACKED, ACKED)))
    frontier.add(first)
    frontier.add(second)
    assert frontier.unsettled() == 2
    assert frontier.advance() == 0
    first.flags[:] = bytes((ACKED, PARKED))
    assert frontier.advance() == 4
    assert frontier.acked == 3


def test_waiting_lists_what_is_in_flight_among_the_first() -> None:
    sheet = sheet_of(0, 1, 2, 3, 4, flags=bytes((IN_FLIGHT, ACKED, IN_FLIGHT, PENDING, IN_FLIGHT)))
    assert sheet.waiting(5) == [0, 2, 4]
    assert sheet.waiting(3) == [0, 2]
    assert sheet.waiting(0) == []
    assert sheet.unsettled() == 4


def test_abandoned_messages_are_lost_unless_they_were_settled() -> None:
    frontier = Frontier(0)
    sheet = sheet_of(0, 1, 2, 3, flags=bytes((IN_FLIGHT, ACKED, PENDING, PARKED)))
    frontier.add(sheet)
    assert frontier.abandon() == 1
    assert sheet.flags == bytes((LOST, ACKED, PENDING, PARKED))
    assert frontier.advance() == 0


def test_an_attempt_may_be_given_with_the_run() -> None:
    sheet = Sheet(None, PLACE, [Record(1)], 0, flag=PARKED, attempt=3)  # type: ignore[list-item]
    assert (sheet.attempt, bytes(sheet.flags), sheet.count) == (3, bytes((PARKED,)), 1)


runs = st.lists(st.lists(st.integers(1, 3), max_size=6), max_size=5)


@given(runs, st.data())
def test_the_position_is_what_a_slow_reading_of_the_bytes_says(gaps: list[list[int]], data: Any) -> None:
    frontier = Frontier(0)
    sheets: list[Sheet] = []
    at = 0
    for run in gaps:
        offsets = []
        for gap in run:
            at += gap
            offsets.append(at)
        at += 1
        sheet = Sheet(None, PLACE, [Record(offset) for offset in offsets], at)  # type: ignore[misc]
        sheets.append(sheet)
        frontier.add(sheet)
    last = 0
    messages = [(sheet, index) for sheet in sheets for index in range(sheet.count)]
    for sheet, index in data.draw(st.permutations(messages)):
        sheet.flags[index] = data.draw(st.sampled_from([ACKED, PARKED, PENDING]))
        position = frontier.advance()
        held_back = [
            each.records[i].offset()
            for each in sheets
            for i, flag in enumerate(each.flags)
            if flag in {IN_FLIGHT, PENDING}
        ]
        if held_back:
            assert position == min(held_back)
        else:
            assert position == sheets[-1].end
        assert position >= last
        assert frontier.unsettled() == len(held_back)
        last = position
