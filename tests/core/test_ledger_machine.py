"""The ledger against a naive one that keeps everything in a list, through crashes, reloads and lost state."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from unittest.mock import patch

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from marq.core import segments, wheel
from marq.core.ledger import CONFIRM_AFTER_MS, Harvest, Ledger
from marq.core.records import Kind, Marker, at, decode, encode
from marq.core.shelf import META, NAMES, DictShelf

LEASED, UNLIMITED, DELAYED = ("q", "t", 0), ("q", "t", 1), ("q", "", 5)
MAX_ATTEMPTS = {LEASED: 3, UNLIMITED: 0, DELAYED: 2}
SECOND, HOUR, DAY = 1000, 3_600_000, 86_400_000


@dataclass
class Lease:
    deadline: int
    attempt: int
    owner: str
    waiting: bool
    value: bytes

    def is_called(self, deadline: int, attempt: int) -> bool:
        return (self.deadline, self.attempt) == (deadline, attempt)


@dataclass
class Oracle:
    """The rules of the ledger, told as naively as can be."""

    gate: int = 0
    now: int = 0
    is_open: bool = field(init=False)
    leases: dict[tuple, Lease] = field(default_factory=dict)
    unconfirmed: Counter = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.is_open = self.gate <= 0

    def apply(self, offset: int, timestamp: int, marker: Marker | None) -> None:
        self.is_open |= offset >= self.gate
        self.now = max(self.now, timestamp)
        for position, source in enumerate(marker.offsets if marker else ()):
            key = (marker.stream, source)
            after = at(marker.redeliver_after_ms, position, 0)
            attempt = at(marker.attempts, position, 0)
            deadline = at(marker.deadlines, position, 0)
            lease = self.leases.get(key)
            is_owners = lease is not None and lease.owner == marker.owner != "" and self.now <= lease.deadline
            if marker.kind == Kind.START:
                attempt = max(attempt, lease.attempt if lease and not deadline else 1)
                value = marker.values[position]
                self.leases[key] = Lease(timestamp + after, attempt, marker.owner, marker.waiting, value)
            elif marker.kind == Kind.KEEPALIVE and is_owners:
                lease.deadline, lease.waiting = timestamp + after, False
            elif marker.kind == Kind.RETRY and is_owners:
                lease.deadline, lease.attempt = timestamp + after, max(lease.attempt, attempt)
                lease.waiting = marker.waiting or marker.released
                lease.owner = "" if marker.released else lease.owner
            elif marker.kind == Kind.END:
                self.leases.pop(key, None)
            elif marker.kind in {Kind.REDELIVERED, Kind.DEAD} and lease and lease.is_called(deadline, attempt):
                del self.leases[key]

    def collect(self) -> tuple[Counter, Counter]:
        """Letters by (name, is dead, attempt, payload) and confirmations by (kind, key, deadline, attempt)."""
        confirmations, self.unconfirmed = self.unconfirmed, Counter()
        letters: Counter = Counter()
        if self.is_open:
            for key, lease in [*self.leases.items()]:
                if lease.deadline < self.now:
                    del self.leases[key]
                    coming = lease.attempt if lease.waiting else lease.attempt + 1
                    limit = MAX_ATTEMPTS[key[0]]
                    dies = bool(limit) and coming > limit
                    letters[name_of(key), dies, coming - 1 if dies else coming, lease.value] += 1
                    kind = Kind.DEAD if dies else Kind.REDELIVERED
                    self.unconfirmed[kind, key, lease.deadline, lease.attempt] += 1
        return letters, confirmations


def name_of(key: tuple) -> bytes:
    (_, topic, partition), offset = key
    return f"{topic}/{partition}/{offset}".encode()


def letters_of(harvest: Harvest) -> Counter:
    told: Counter = Counter()
    for letter in harvest.letters:
        headers = dict(letter.headers)
        assert letter.topic == ("dead" if "marq-reason" in headers else "t")
        told[headers["marq-id"], "marq-reason" in headers, int(headers["marq-attempt"]), letter.value] += 1
    return told


def confirmations_of(harvest: Harvest) -> Counter:
    return Counter(
        (marker.kind, (marker.stream, offset), marker.deadlines[i], marker.attempts[i])
        for marker in map(decode, harvest.markers)
        for i, offset in enumerate(marker.offsets)
    )


owners = st.sampled_from(["a", "b"])
sources = st.lists(st.integers(0, 5) | st.integers(20_000, 20_002), min_size=1, max_size=4, unique=True)
streams = st.sampled_from([LEASED, UNLIMITED])
spans = st.one_of(
    st.integers(0, 5 * SECOND), st.integers(0, 400 * SECOND), st.integers(0, 6 * HOUR), st.integers(0, 9 * DAY)
)
attempts = st.integers(1, 3)


class LedgerMachine(RuleBasedStateMachine):
    """Records are written, batches are run, processes die. Nothing may be lost, early, or doubled without a crash."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = [
            patch.object(wheel, "PART_ROWS_MAX", 2),
            patch.object(segments, "CONTINUE_BYTES_MAX", 300),
            patch.object(segments, "SEGMENT_BYTES_MAX", 600),
            patch.object(segments, "READ_BYTES_MAX", 1000),
            patch.object(segments, "COMPACT_BYTES_MIN", 100),
            patch.object(segments, "COMPACT_AFTER_MS", 50),
        ]
        for each in self.patches:
            each.start()
        self.clock = 1_760_000_000_000
        self.log: list[tuple[int, Marker | None, bytes]] = []
        self.read = 0
        self.shelf = DictShelf()
        self.oracle = Oracle()
        self.resident: Ledger | None = Ledger(DictShelf())  # never reloaded
        self.ids = itertools.count(100)
        self.delayed: dict[int, int] = {}
        self.ended: set[tuple] = set()
        self.given: Counter = Counter()
        self.crashed = False

    def write(self, marker: Marker | None, data: bytes | None = None) -> None:
        self.log.append((self.clock, marker, encode(marker) if marker else data or b""))

    def say(self, kind: int, stream: tuple, offsets: list[int], **fields: object) -> None:
        marker = Marker(kind, *stream, offsets=offsets, **fields)
        if kind == Kind.START:
            marker.values = [b"payload %d of %s" % (len(self.log), name_of((stream, offset))) for offset in offsets]
            marker.max_attempts = MAX_ATTEMPTS[stream]
            marker.dead_letter_topic = "dead"
        self.write(marker)

    # What clients do

    @rule(
        stream=streams, offsets=sources, owner=owners, after=st.lists(spans, min_size=4, max_size=4), attempt=attempts
    )
    def lease(self, stream: tuple, offsets: list[int], owner: str, after: list[int], attempt: int) -> None:
        after = after[: len(offsets)]
        self.say(Kind.START, stream, offsets, owner=owner, redeliver_after_ms=after, attempts=[attempt])

    @rule(stream=streams, offsets=sources, owner=owners, after=spans, attempt=attempts)
    def hold(self, stream: tuple, offsets: list[int], owner: str, after: int, attempt: int) -> None:
        fields = {"owner": owner, "redeliver_after_ms": [after], "attempts": [attempt], "waiting": True}
        self.say(Kind.START, stream, offsets, **fields)

    @rule(stream=streams, offsets=sources, after=st.lists(spans, min_size=4, max_size=4), attempt=attempts)
    def give_up_unleased(self, stream: tuple, offsets: list[int], after: list[int], attempt: int) -> None:
        after = after[: len(offsets)]
        self.say(Kind.START, stream, offsets, redeliver_after_ms=after, attempts=[attempt], waiting=True)

    @rule(stream=streams, offsets=sources, owner=owners, after=spans)
    def keep_alive(self, stream: tuple, offsets: list[int], owner: str, after: int) -> None:
        self.say(Kind.KEEPALIVE, stream, offsets, owner=owner, redeliver_after_ms=[after])

    @rule(stream=streams, offsets=sources, owner=owners, after=spans, attempt=attempts, how=st.integers(0, 2))
    def retry(self, stream: tuple, offsets: list[int], owner: str, after: int, attempt: int, how: int) -> None:
        fields = {"owner": owner, "redeliver_after_ms": [after], "attempts": [attempt]}
        self.say(Kind.RETRY, stream, offsets, waiting=how == 1, released=how == 2, **fields)

    @rule(stream=streams, offsets=sources, deadline=st.sampled_from([0, 12_345]))
    def end(self, stream: tuple, offsets: list[int], deadline: int) -> None:
        self.say(Kind.END, stream, offsets, deadlines=[deadline])

    @rule(after=st.lists(spans, min_size=1, max_size=5))
    def delay(self, after: list[int]) -> None:
        offsets = [next(self.ids) for _ in after]
        self.enter(offsets, after)

    def enter(self, offsets: list[int], after: list[int], **fields: object) -> None:
        self.delayed.update(zip(offsets, (self.clock + span for span in after), strict=True))
        fields |= {"redeliver_after_ms": after, "attempts": [1], "waiting": True, "target_topic": "t"}
        self.say(Kind.START, DELAYED, offsets, **fields)

    @precondition(lambda self: self.delayed)
    @rule(pick=st.data(), named=st.booleans())
    def cancel(self, pick: st.DataObject, *, named: bool) -> None:
        offset = pick.draw(st.sampled_from(sorted(self.delayed)))
        self.say(Kind.END, DELAYED, [offset], deadlines=[self.delayed[offset]] if named else [])

    @precondition(lambda self: self.delayed)
    @rule(pick=st.data(), after=spans, named=st.booleans())
    def put_off(self, pick: st.DataObject, after: int, *, named: bool) -> None:
        offset = pick.draw(st.sampled_from(sorted(self.delayed)))
        self.enter([offset], [after], deadlines=[self.delayed[offset] if named else 0])

    @rule(data=st.binary(max_size=8))
    def garbage(self, data: bytes) -> None:
        self.write(None, b"\xff" + data)

    @rule(span=spans)
    def time_passes(self, span: int) -> None:
        self.clock += span

    # What the host does

    @rule()
    def batch(self) -> None:
        self.run_batch(len(self.log))

    @rule(count=st.integers(1, 3))
    def small_batch(self, count: int) -> None:
        self.run_batch(min(self.read + count, len(self.log)))

    @rule()
    def batch_that_dies_before_its_commit(self) -> None:
        """Its letters may be out. The state is what it was, and the same batch is run again."""
        lost = DictShelf(self.shelf)
        harvest = self.run_ledger(Ledger(lost, gate=self.oracle.gate), len(self.log))
        again = self.run_ledger(Ledger(DictShelf(self.shelf), gate=self.oracle.gate), len(self.log))
        assert again == harvest

    @rule()
    def state_is_lost(self) -> None:
        """Everything is read again, and nothing is given out before the present end of the log."""
        self.crashed = True
        self.shelf = DictShelf()
        self.oracle = Oracle(gate=len(self.log))
        self.resident = None
        self.read = 0

    @rule()
    def host_restarts(self) -> None:
        """The state is kept, but since when the log has grown is not known."""
        self.oracle.gate = len(self.log)
        self.oracle.is_open = not self.log
        self.resident = None

    def run_ledger(self, ledger: Ledger, until: int) -> Harvest:
        for offset in range(self.read, until):
            timestamp, _, data = self.log[offset]
            ledger.apply(offset, timestamp, data)
        harvest = ledger.collect()
        ledger.save()
        return harvest

    def run_batch(self, until: int) -> Harvest:
        ledger = Ledger(self.shelf, gate=self.oracle.gate)
        harvest = self.run_ledger(ledger, until)
        if self.resident is not None:
            assert self.run_ledger(self.resident, until) == harvest
        for offset in range(self.read, until):
            timestamp, marker, _ = self.log[offset]
            self.oracle.apply(offset, timestamp, marker)
        self.read = until
        letters, confirmations = self.oracle.collect()
        assert ledger.gate_is_open == self.oracle.is_open
        assert letters_of(harvest) == letters
        assert confirmations_of(harvest) == confirmations
        assert harvest.lateness_ms == sorted(harvest.lateness_ms, reverse=True)
        assert all(late > 0 for late in harvest.lateness_ms)
        self.check_when_to_look_again(ledger, harvest)
        self.check_against_the_log(confirmations)
        for data in harvest.markers:
            self.write(decode(data))
        return harvest

    def check_when_to_look_again(self, ledger: Ledger, harvest: Harvest) -> None:
        waits = [lease.deadline + 1 for lease in self.oracle.leases.values()]
        if self.oracle.unconfirmed:
            waits.append(ledger.now + CONFIRM_AFTER_MS)
        assert ledger.hot + ledger.cold >= len(self.oracle.leases)
        if waits:
            assert harvest.next_due is not None
            assert harvest.next_due <= min(waits)

    def check_against_the_log(self, confirmations: Counter) -> None:
        """Without a crash each lease that ran out has exactly one letter: none is confirmed twice."""
        self.given.update(confirmations)
        assert self.crashed or all(count == 1 for count in self.given.values())

    @invariant()
    def state_is_small_where_nothing_waits(self) -> None:
        if not self.oracle.leases and not self.oracle.unconfirmed:
            assert set(self.shelf) <= {META, NAMES}

    def teardown(self) -> None:
        try:
            self.drain()
        finally:
            for each in self.patches:
                each.stop()

    def drain(self) -> None:
        """Look again exactly when told to, and everything comes out, in time and once."""
        self.run_batch(len(self.log))
        self.write(Marker(Kind.TICK))  # what opens a gate
        harvest = self.run_batch(len(self.log))
        for _ in range(2000):
            if harvest.next_due is None:
                break
            self.clock = max(self.clock, harvest.next_due)
            self.write(Marker(Kind.TICK))
            harvest = self.run_batch(len(self.log))
            assert all(late == 1 for late in harvest.lateness_ms)
        assert (self.oracle.leases, self.oracle.unconfirmed) == ({}, {})
        assert set(self.shelf) <= {META, NAMES}
        assert len(self.shelf[META]) < 200


LedgerMachine.TestCase.settings = settings(
    max_examples=120, stateful_step_count=50, deadline=None, suppress_health_check=[*HealthCheck]
)
test_the_ledger_and_the_naive_one_agree = LedgerMachine.TestCase
