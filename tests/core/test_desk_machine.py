"""The desk in every order of events that hypothesis can think of, against a model of what the log knows."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from marq.core.desk import Desk
from marq.core.frontier import ACKED, IN_FLIGHT, LOST, PARKED, PENDING, Sheet
from marq.core.lease import Lease, Order, State, Terms
from marq.core.records import Kind, Marker

PLACE = ("t", 0)


class Record:
    def __init__(self, offset: int) -> None:
        self._offset = offset

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return None

    def value(self) -> bytes | None:
        return b"x" * (1 + self._offset % 300)

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return 1, 0


@dataclass
class Entry:
    """What the ledger knows of a message."""

    deadline: float
    attempt: int
    waiting: bool
    is_ours: bool


class DeskMachine(RuleBasedStateMachine):
    """One partition. Handles are what the application has; the wire holds orders without an answer."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.end = 0
        self.desk = Desk(Terms("q", "me", 10.0, 1.0, 20.0, 2_000, 5, "dead"))
        self.handles: list[tuple[Sheet, int]] = []
        self.unhanded: list[tuple[Sheet, int]] = []
        self.wire: list[Order] = []
        self.letters: list[Any] = []
        self.sent: defaultdict[int, list[int]] = defaultdict(list)  # kinds of markers in the order of the log
        self.log: dict[int, Entry] = {}
        self.sheets: list[Sheet] = []  # of this assignment
        self.silent: set[int] = set()  # nothing may be said about these
        self.acked: set[int] = set()
        self.dead: set[int] = set()
        self.nacked: dict[int, float] = {}  # not to be seen before
        self.leases: dict[int, Lease | None] = {}  # of what was nacked
        self.attempts: defaultdict[int, int] = defaultdict(lambda: 1)

    @initialize()
    def begin(self) -> None:
        self.desk.assigned(PLACE, 0)
        self.beginning = 0

    def offset(self, handle: tuple[Sheet, int]) -> int:
        return int(handle[0].records[handle[1]].offset())

    # Messages in

    @rule(count=st.integers(1, 4), gap=st.integers(0, 2), careful=st.booleans(), handed=st.integers(0, 4))
    def poll(self, count: int, gap: int, careful: bool, handed: int) -> None:
        records = [Record(self.end + i * (gap + 1)) for i in range(count)]
        sheet = Sheet(None, PLACE, records, records[-1].offset() + 1 + gap)
        self.end = sheet.end
        self.sheets.append(sheet)
        assert self.desk.received(sheet)
        if careful:
            self.desk.lease_all(sheet)
        self.unhanded += [(sheet, index) for index in range(count)]
        for _ in range(min(handed, len(self.unhanded))):
            self.hand_out()

    @precondition(lambda self: self.unhanded)
    @rule()
    def hand_out(self) -> None:
        sheet, index = self.unhanded.pop(0)
        sheet.handed = index + 1
        self.handles.append((sheet, index))

    # Settling

    def pick(self, data: Any) -> tuple[Sheet, int]:
        return self.handles.pop(data.draw(st.integers(0, len(self.handles) - 1)))

    def is_ours(self, handle: tuple[Sheet, int]) -> bool:
        lease = self.desk.find(*handle)
        return handle[0].flags[handle[1]] != LOST and not (lease is not None and lease.has_run_out(self.now))

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def ack(self, data: Any) -> None:
        sheet, index = handle = self.pick(data)
        lease = self.desk.find(sheet, index)
        if sheet.flags[index] == IN_FLIGHT:
            sheet.flags[index] = ACKED
        elif lease is not None:
            self.desk.ack(lease)
        else:
            assert sheet.flags[index] == LOST
            return
        self.acked.add(self.offset(handle))

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), delay=st.sampled_from([0.0, 3.0, 15.0, 40.0]))
    def nack(self, data: Any, delay: float) -> None:
        handle = self.pick(data)
        if self.is_ours(handle):
            self.desk.nack(*handle, self.desk.find(*handle), delay)
            self.nacked[self.offset(handle)] = self.now + delay
            self.attempts[self.offset(handle)] += 1
            self.leases[self.offset(handle)] = self.desk.find(*handle)

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def dead_letter(self, data: Any) -> None:
        handle = self.pick(data)
        if self.is_ours(handle):
            self.letters.append(self.desk.dying(*handle, self.desk.find(*handle)))

    @precondition(lambda self: self.letters)
    @rule()
    def letter_is_durable(self) -> None:
        lease = self.letters.pop(0)
        self.dead.add(lease.offset)
        self.desk.died(lease)

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), term=st.sampled_from([2.0, 10.0, 100.0]))
    def extend(self, data: Any, term: float) -> None:
        handle = self.pick(data)
        self.handles.append(handle)
        if self.is_ours(handle):
            self.desk.extend(*handle, self.desk.find(*handle), term, self.now)

    # Time and the wire

    @rule(seconds=st.sampled_from([0.1, 0.9, 3.0, 9.0, 12.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.desk.next_due() < float("inf"))
    @rule()
    def wait_for_what_is_held(self) -> None:
        self.now = max(self.now, self.desk.next_due())

    @rule()
    def look_at_the_clock(self) -> None:
        self.desk.mark_slow(self.now)
        self.desk.renew(self.now)

    @rule(limit=st.integers(0, 3))
    def hand_out_what_was_held(self, limit: int) -> None:
        leases = self.desk.ready(self.now, limit)
        assert len(leases) <= limit
        for lease in leases:
            assert self.now >= self.nacked[lease.offset]
            assert not lease.has_run_out(self.now)
            assert lease.attempt == self.attempts[lease.offset]
            sheet = Sheet(None, PLACE, [lease.record], 0, flag=PARKED, attempt=lease.attempt)
            self.desk.reissue(lease, sheet, 0)
            self.handles.append((sheet, 0))

    @rule()
    def write(self) -> None:
        for order in self.desk.orders(self.now):
            assert order.marker.offsets
            self.wire.append(order)
            for offset in order.marker.offsets:
                assert offset not in self.silent, f"{offset} belongs to somebody else"
                kind = order.marker.kind
                assert kind == Kind.START or Kind.START in self.sent[offset], "nothing is said before its START"
                self.sent[offset].append(kind)

    @rule()
    def talk(self) -> None:
        self.write()
        while self.wire:
            self.answer()

    @precondition(lambda self: self.wire)
    @rule()
    def answer(self) -> None:
        order = self.wire.pop(0)
        for position in range(len(order.marker.offsets)):
            self.enter(order.marker, position)
        self.desk.delivered(order, self.now)

    def enter(self, marker: Marker, position: int) -> None:
        """In the log, as the ledger reads it."""
        offset = marker.offsets[position]
        entry = self.log.get(offset)
        if marker.kind == Kind.END:
            self.log.pop(offset, None)
            return
        deadline = self.now + marker.redeliver_after_ms[position] / 1000
        if marker.kind == Kind.START:
            self.log[offset] = Entry(deadline, marker.attempts[position], marker.waiting, bool(marker.owner))
        elif entry is not None and entry.is_ours and self.now <= entry.deadline:
            entry.deadline, entry.waiting = deadline, marker.waiting
            if marker.kind == Kind.RETRY:
                entry.attempt, entry.is_ours = marker.attempts[position], not marker.released

    @precondition(lambda self: self.wire)
    @rule()
    def refuse(self) -> None:
        order = self.wire.pop(0)
        self.desk.failed(order, self.now, forever=False)

    # Partitions

    @rule()
    def lose(self) -> None:
        dying = {lease.offset for lease in self.letters}
        known = {offset for offset, kinds in self.sent.items() if Kind.START in kinds}
        self.silent |= {record.offset() for sheet in self.sheets for record in sheet.records} - known - dying
        self.desk.dropped(PLACE)
        self.sheets = []
        self.unhanded = [(sheet, index) for sheet, index in self.unhanded if sheet.flags[index] != LOST]
        self.get_it_back()

    def get_it_back(self) -> None:
        """From where the log ends: what lies before was settled by somebody else."""
        self.desk.assigned(PLACE, self.end)
        self.beginning = self.end

    @rule()
    def revoke(self) -> None:
        """Handed messages are leased first; nothing is in flight that the application has."""
        self.unhanded = [(s, i) for s, i in self.unhanded if s.flags[i] != IN_FLIGHT]
        self.desk.lease_handed([PLACE])
        self.drain()
        self.check_commit()
        for sheet, index in self.handles:
            assert sheet.flags[index] != IN_FLIGHT or sheet not in self.sheets
        self.desk.dropped(PLACE)
        self.sheets = []
        self.get_it_back()

    def drain(self) -> None:
        while self.wire or self.letters or self.desk.has_orders:
            self.write()
            while self.letters:
                self.letter_is_durable()
            while self.wire:
                self.answer()
        alive = {offset for offset, entry in self.log.items() if self.now <= entry.deadline}
        assert not alive & (self.acked | self.dead), "an END is missing"

    def teardown(self) -> None:
        """Closing leaves nothing behind."""
        handed = {self.offset(handle) for handle in self.handles if self.is_ours(handle)}
        self.desk.close(self.now)
        self.drain()
        self.check_commit()
        assert all(lease.state is State.EXPIRED for lease in self.desk.leases.values())
        assert self.desk.held_bytes == 0
        for offset in handed | (self.nacked.keys() - self.acked - self.dead):
            entry, lease = self.log.get(offset), self.leases.get(offset)
            ran_out = lease is not None and lease.state is State.EXPIRED  # by our clock: then the pipeline has it
            if entry is not None and self.now <= entry.deadline and not ran_out:
                assert entry.waiting
                assert not entry.is_ours, f"{offset} was not given back"
                assert entry.attempt == self.attempts[offset]
                assert entry.deadline >= self.nacked.get(offset, 0.0)

    # What always holds

    @invariant()
    def commit_never_passes_what_is_not_safe(self) -> None:
        self.check_commit()

    def check_commit(self) -> None:
        self.desk.positions()
        frontier = self.desk.frontiers[PLACE]
        open_offsets = []
        for sheet in self.sheets:
            for record, flag in zip(sheet.records, sheet.flags, strict=True):
                offset = record.offset()
                if flag in {IN_FLIGHT, PENDING}:
                    open_offsets.append(offset)
                else:
                    assert offset in self.acked or offset in self.dead or Kind.START in self.sent[offset]
        ends = self.sheets[-1].end if self.sheets else self.beginning
        assert frontier.position == min(open_offsets, default=ends)

    @invariant()
    def the_desk_believes_no_more_than_the_log_says(self) -> None:
        for lease in self.desk.leases.values():
            if lease.durable and lease.state in {State.LEASED, State.HELD} and not lease.has_run_out(self.now):
                entry = self.log[lease.offset]
                assert entry.is_ours
                assert entry.deadline >= lease.expires_at - 0.001
                if lease.state is State.HELD:
                    assert (entry.waiting, entry.attempt) == (True, lease.attempt)
                    assert entry.deadline >= lease.due

    @invariant()
    def bytes_held_add_up(self) -> None:
        held = [each for each in self.desk.leases.values() if each.state in {State.HELD, State.RETRYING}]
        assert self.desk.held_bytes == sum(len(each.record.value() or b"") + 200 for each in held)

    @invariant()
    def nothing_is_settled_twice(self) -> None:
        assert not self.acked & self.dead
        counts = self.desk.counts
        assert counts["acked_leased"] + counts["acked_unmarked"] <= len(self.acked)


TestDeskMachine = DeskMachine.TestCase
TestDeskMachine.settings = settings(max_examples=300, stateful_step_count=60, deadline=None)
