"""The wheel: buckets are opened in time, and what was buried stays buried."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marq.core import wheel
from marq.core.shelf import DictShelf, row_key
from marq.core.wheel import DAY_MS, HOT_MS, HOUR_MS, MINUTE_MS, GivenUp, Wheel, bucket_of, candidates, opens_at

NOW = 1_760_000_000_000
moments = st.integers(0, 4 * 10**12)
far = st.one_of(
    st.integers(0, 10 * MINUTE_MS),
    st.integers(0, 4 * HOUR_MS),
    st.integers(0, 5 * DAY_MS),
    st.integers(0, 400 * DAY_MS),
)


@given(moments, far)
def test_a_bucket_holds_its_deadline_and_opens_before_it(now: int, ahead: int) -> None:
    deadline = now + ahead
    bucket = bucket_of(deadline, now)
    if bucket is None:
        assert ahead < 2 * HOT_MS
        return
    width, number = bucket
    assert number * width <= deadline < (number + 1) * width
    assert now < opens_at(bucket) <= deadline - HOT_MS
    assert bucket in candidates(deadline)


@given(moments, far, st.integers(0, 2 * HOUR_MS))
def test_each_opening_brings_an_entry_to_a_finer_level(now: int, ahead: int, late: int) -> None:
    """Even when every bucket is opened late, an entry reaches the hot index in at most three steps."""
    deadline = now + ahead
    widths = []
    bucket = bucket_of(deadline, now)
    while bucket is not None:
        widths.append(bucket[0])
        now = opens_at(bucket) + late
        bucket = bucket_of(deadline, now)
    assert widths == sorted(set(widths), reverse=True)
    assert len(widths) <= 3
    assert late or now <= deadline


@pytest.mark.parametrize("now", [0, NOW, NOW - NOW % DAY_MS, NOW - NOW % HOUR_MS - 1])
def test_however_widely_delays_are_spread_there_are_few_buckets(now: int) -> None:
    month = range(now, now + 30 * DAY_MS, 20_000)
    assert len({bucket_of(deadline, now) for deadline in month}) <= 120 + 72 + 30


def test_the_widest_bucket_that_need_not_be_open() -> None:
    midnight = NOW - NOW % DAY_MS
    noon = midnight + 12 * HOUR_MS
    assert bucket_of(noon + 119_999, noon) is None
    assert bucket_of(noon + 4 * MINUTE_MS, noon) == (MINUTE_MS, noon // MINUTE_MS + 4)
    assert bucket_of(noon + 5 * HOUR_MS, noon) == (HOUR_MS, noon // HOUR_MS + 5)
    assert bucket_of(noon + 2 * DAY_MS, noon) == (HOUR_MS, noon // HOUR_MS + 48)
    assert bucket_of(noon + 3 * DAY_MS, noon) == (DAY_MS, noon // DAY_MS + 3)


# The buckets on their shelf


def reopened(shelf: DictShelf, old: Wheel) -> Wheel:
    old.save()
    return Wheel(shelf, json.loads(json.dumps(old.directory())))


def row(deadline: int, attempt: int = 1, place: int = 0) -> tuple[int, int, int, int]:
    return (deadline, attempt, 1, place)


BUCKET = (MINUTE_MS, 10)
DEADLINE = 10 * MINUTE_MS + 5


def test_what_went_in_comes_out_once() -> None:
    shelf = DictShelf()
    cold = Wheel(shelf)
    cold.add(BUCKET, 1, row(DEADLINE))
    cold = reopened(shelf, cold)
    cold.add(BUCKET, 2, row(DEADLINE + 1))
    cold = reopened(shelf, cold)
    assert len(cold) == 2
    assert cold.next_opening() == 10 * MINUTE_MS - HOT_MS
    assert cold.ripe(10 * MINUTE_MS - HOT_MS - 1) == []
    assert cold.ripe(10 * MINUTE_MS - HOT_MS) == [BUCKET]
    assert cold.open(BUCKET) == ({1: row(DEADLINE), 2: row(DEADLINE + 1)}, [])
    assert (len(cold), cold.next_opening()) == (0, None)
    cold.save()
    assert shelf == {}


def test_entries_of_small_batches_share_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel, "PART_ROWS_MAX", 2)
    shelf = DictShelf()
    cold = Wheel(shelf)
    for key in range(5):
        cold.add(BUCKET, key, row(DEADLINE))
        cold = reopened(shelf, cold)
    assert sorted(shelf) == [f"cold/{MINUTE_MS}/10/{part}" for part in range(3)]
    alive, _ = cold.open(BUCKET)
    assert sorted(alive) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("deadline", "attempt", "dies"),
    [(DEADLINE, 0, True), (DEADLINE, 2, True), (0, 0, True), (DEADLINE + 1, 0, False), (DEADLINE, 1, False)],
)
@pytest.mark.parametrize("saved", [True, False])
def test_a_tombstone_takes_what_it_names(deadline: int, attempt: int, *, dies: bool, saved: bool) -> None:
    shelf = DictShelf()
    cold = Wheel(shelf)
    cold.add(BUCKET, 1, row(DEADLINE, attempt=2, place=7))
    if saved:
        cold = reopened(shelf, cold)
    assert cold.bury(1, deadline, attempt)
    alive, dead = cold.open(BUCKET)
    assert (alive, dead) == (({}, [(1, row(DEADLINE, 2, 7))]) if dies else ({1: row(DEADLINE, 2, 7)}, []))


def test_a_tombstone_does_not_take_what_comes_after_it() -> None:
    cold = Wheel(DictShelf())
    cold.add(BUCKET, 1, row(DEADLINE, place=1))
    cold.bury(1, 0)
    cold.add(BUCKET, 1, row(DEADLINE, place=2))
    assert cold.open(BUCKET) == ({1: row(DEADLINE, place=2)}, [(1, row(DEADLINE, place=1))])


def test_two_tombstones_for_one_key_both_count() -> None:
    cold = Wheel(DictShelf())
    cold.add(BUCKET, 1, row(DEADLINE))
    cold.bury(1, DEADLINE)
    cold.bury(1, DEADLINE + 1)
    assert cold.open(BUCKET)[0] == {}


def test_a_later_entry_takes_the_place_of_an_earlier_one() -> None:
    cold = Wheel(DictShelf())
    cold.add(BUCKET, 1, row(DEADLINE, place=1))
    cold.add(BUCKET, 1, row(DEADLINE + 9, place=2))
    assert cold.open(BUCKET) == ({1: row(DEADLINE + 9, place=2)}, [(1, row(DEADLINE, place=1))])
    assert len(cold) == 0


def test_a_tombstone_lies_in_every_bucket_that_may_hold_the_deadline() -> None:
    cold = Wheel(DictShelf())
    assert not cold.bury(1, DEADLINE)
    for number, bucket in enumerate(candidates(DEADLINE)):
        cold.add(bucket, number, row(DEADLINE))
    cold.bury(2, DEADLINE)
    assert sorted(key for bucket in candidates(DEADLINE) for key in cold.open(bucket)[0]) == [0, 1]


def test_a_bucket_that_is_half_garbage_is_swept() -> None:
    shelf = DictShelf()
    cold = Wheel(shelf)
    for key in range(4):
        cold.add(BUCKET, key, row(DEADLINE, place=key))
    cold = reopened(shelf, cold)
    cold.bury(0, DEADLINE)
    assert cold.sweep() == []
    cold.bury(1, DEADLINE)
    assert cold.sweep() == [(0, row(DEADLINE, place=0)), (1, row(DEADLINE, place=1))]
    assert len(cold) == 2
    cold = reopened(shelf, cold)
    assert len(shelf) == 1
    assert cold.open(BUCKET) == ({2: row(DEADLINE, place=2), 3: row(DEADLINE, place=3)}, [])


def test_streams_are_counted_until_their_last_entry_is_gone() -> None:
    shelf = DictShelf()
    cold = Wheel(shelf)
    cold.add(BUCKET, row_key(1, 5), row(DEADLINE))
    cold.add(BUCKET, row_key(2, 5), row(DEADLINE))
    cold.add((MINUTE_MS, 11), row_key(2, 6), row(DEADLINE + MINUTE_MS))
    cold = reopened(shelf, cold)
    assert cold.by_stream == {1: 1, 2: 2}
    cold.open(BUCKET)
    assert cold.by_stream == {2: 1}


# Given up


def test_given_up_rows_are_found_page_by_page() -> None:
    shelf = DictShelf()
    pages = GivenUp(shelf)
    near, distant = row_key(1, 5), row_key(1, 5_000_000)
    pages.add(near, row(10))
    pages.add(distant, row(20))
    pages.save()
    assert len(shelf) == 2
    pages = GivenUp(shelf, json.loads(json.dumps(pages.directory())))
    assert pages.find(near) == row(10)
    assert pages.find(distant) == row(20)
    assert pages.find(row_key(1, 6)) is None
    assert pages.find(row_key(2, 5)) is None
    pages.remove(near, row(11))
    assert pages.find(near) == row(10)
    pages.remove(near, row(10))
    pages.save()
    assert len(shelf) == 1
    assert GivenUp(shelf, pages.directory()).find(near) is None
    pages.remove(distant, row(20))
    pages.save()
    assert (shelf, pages.directory()) == ({}, [])


def test_pages_without_a_change_are_not_written() -> None:
    class Counting(DictShelf):
        puts = 0

        def put(self, key: str, value: bytes, /) -> None:
            self.puts += 1
            super().put(key, value)

    shelf = Counting()
    pages = GivenUp(shelf)
    pages.add(1, row(10))
    pages.save()
    pages.find(1)
    pages.save()
    assert shelf.puts == 1
