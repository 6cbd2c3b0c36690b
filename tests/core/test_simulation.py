"""Desks, a log and the ledger under virtual time: hundreds of small worlds, each grown from a seed.

A *calm* world has everything that happens without anybody dying: slow handlers, late reports, refused markers, lost
pipeline state, partitions changing hands. There the guarantees are strict: one hand-out per attempt, exactly so many
attempts, exactly one dead letter. A *rough* world adds kills, stalls, lost partitions and repeated pipeline batches.
There a message may be handed out again, but none may be lost, early, or given away while a desk holds its lease.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from marq.core.desk import Desk
from marq.core.frontier import ACKED, IN_FLIGHT, LOST, PARKED, PENDING, Sheet
from marq.core.lease import Lease, Order, State, Terms
from marq.core.ledger import Ledger
from marq.core.records import Kind, Marker, Original, dead_letter_of, encode, home, provenance, stream_key
from marq.core.shelf import DictShelf

if TYPE_CHECKING:
    from collections.abc import Callable

QUEUE, TOPIC, DEAD = "q", "t", "dead"
PARTITIONS, MARKERS = 3, 2
MESSAGES = 30
BUSY = 12.0  # virtual seconds in which things go wrong
LIMIT = 240.0  # virtual seconds after which a message that is not settled counts as lost
EPOCH_MS = 1_700_000_000_000
SESSION = 1.5
CLEAN, OPEN = "clean", "open"


@dataclass
class Record:
    """With the accessors of a real one."""

    _offset: int
    _value: bytes | None
    _headers: list[tuple[str, bytes | None]]
    _millis: int

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return QUEUE.encode()

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self._headers or None

    def timestamp(self) -> tuple[int, int]:
        return 1, self._millis


@dataclass
class Handle:
    """What the application has of a message."""

    sheet: Sheet
    index: int
    name: str
    attempt: int
    key: tuple[Any, int]


class World:
    """The broker, the group, the pipeline and the clock."""

    def __init__(self, seed: int, *, rough: bool) -> None:
        self.random = random.Random(seed)
        self.rough = rough
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self.logs: list[list[Record]] = [[] for _ in range(PARTITIONS)]
        self.markers: list[list[Record]] = [[] for _ in range(MARKERS)]
        self.dead: list[Record] = []
        self.committed: dict[int, tuple[int, str]] = {}
        self.owners: dict[int, Member | None] = dict.fromkeys(range(PARTITIONS))
        self.members: list[Member] = []
        self.attempts_max = self.random.choice([1, 2, 3])
        self.always_fails = {str(i) for i in range(MESSAGES) if self.random.random() < 0.15}
        self.handed: defaultdict[str, list[int]] = defaultdict(list)
        self.acked: Counter[str] = Counter()
        self.not_before: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
        self.doubled: set[str] = set()  # messages of which there are copies that go their own ways
        self.given: Counter[str] = Counter()  # the latest attempt that the pipeline gave out
        self.starters: defaultdict[tuple[int, int], set[str]] = defaultdict(set)
        self.pipeline = Pipeline(self)
        self.births = 0

    # Time

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (self.now + seconds, self._sequence, what))

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    @property
    def is_busy(self) -> bool:
        return self.now < BUSY

    @property
    def millis(self) -> int:
        return EPOCH_MS + int(self.now * 1000)

    def run(self) -> None:
        for i in range(MESSAGES):
            self.after(self.random.uniform(0, BUSY * 0.7), lambda i=i: self.append(TOPIC, None, str(i).encode(), []))
        for _ in range(self.random.choice([1, 2, 3])):
            self.join()
        self.after(0.5, self._trouble)
        self.after(0.05, self.pipeline.batch)
        while self._events and not self.is_over():
            self.now, _, what = heapq.heappop(self._events)
            assert self.now < LIMIT, f"never settled: {set(map(str, range(MESSAGES))) - self.settled()}"
            what()

    def settled(self) -> set[str]:
        return set(self.acked) | {record.value().decode() for record in self.dead if record.value()}

    def is_over(self) -> bool:
        return not self.is_busy and len(self.settled()) == MESSAGES and self.pipeline.is_idle()

    # The log

    def append(self, topic: str, partition: int | None, value: bytes | None, headers: Any) -> None:
        if topic == DEAD:
            self.dead.append(Record(len(self.dead), value, headers, self.millis))
            return
        log = self.logs[self.random.randrange(PARTITIONS) if partition is None else partition]
        log.append(Record(len(log), value, headers, self.millis))

    def mark(self, marker: Marker, sender: str) -> None:
        if marker.kind == Kind.START:
            for offset, value, attempt in zip(marker.offsets, marker.values, marker.attempts, strict=True):
                senders = self.starters[marker.partition, offset]
                senders.add(sender)
                if self.rough and (attempt < self.given[value.decode()] or len(senders) > 1):
                    self.doubled.add(value.decode())  # leased anew by somebody who had not heard of the other
        log = self.markers[home(stream_key(*marker.stream), MARKERS)]
        log.append(Record(len(log), encode(marker), [], self.millis))

    # The group

    def join(self) -> None:
        self.births += 1
        member = Member(self, f"c{self.births}")
        self.members.append(member)
        self._assign()

    def _assign(self) -> None:
        for partition, owner in self.owners.items():
            if owner is None and self.members:
                member = self.random.choice(self.members)
                self.owners[partition] = member
                member.assign(partition)

    def released(self, partition: int) -> None:
        self.owners[partition] = None
        self._assign()

    def gone(self, member: Member) -> None:
        """Its partitions are free at once when it left, and when its session has run out when it died."""
        for partition, owner in self.owners.items():
            if owner is member:
                self.owners[partition] = None
        if not self.members:
            self.join()
        self._assign()

    def _trouble(self) -> None:  # noqa: C901 - one branch for each thing that can happen
        """Something happens to the group."""
        if not self.is_busy:
            return
        self.after(self.random.uniform(0.2, 2.0), self._trouble)
        if not self.members:
            return
        member = self.random.choice(self.members)
        kinds = ["move", "join", "leave", "refuse"] + (["kill", "stall", "lose", "rebuild", "repeat"] * self.rough)
        match self.random.choice(kinds):
            case "move" if member.partitions() and not member.revoking:
                member.revoke([self.random.choice(member.partitions())])
            case "join" if len(self.members) < 4:
                self.join()
            case "leave" if len(self.members) > 1 and not member.revoking:
                member.leave()
            case "refuse":
                member.refusals = self.random.randrange(1, 4) if self.rough else 1
            case "kill":
                member.kill()
                self.members.remove(member)
                self.after(SESSION, lambda: self.gone(member))
            case "stall":
                member.stalled_until = self.now + self.random.uniform(0.5, 5.0)
            case "lose" if member.partitions() and len(self.members) > 1 and not member.revoking:
                partition = self.random.choice(member.partitions())
                other = self.random.choice([each for each in self.members if each is not member])
                self.owners[partition] = other
                other.assign(partition)
                self.after(self.random.uniform(0, 1), lambda: member.lose(partition))
            case "rebuild":
                self.pipeline.rebuild()
            case "repeat":
                self.pipeline.repeats = True
            case _:
                pass

    def believes(self, name: str) -> str | None:
        """Which living consumer rightly takes this message for its own. Copies, in a rough world, confuse that."""
        if name in self.doubled or len(set(self.handed[name])) < len(self.handed[name]):
            return None
        for member in self.members:
            for lease in member.desk.leases.values():
                is_kept = lease.state in {State.LEASED, State.HELD} and lease.durable
                of_it = lease.record.value() == name.encode() and lease.place[1] not in member.lost
                if is_kept and of_it and not lease.has_run_out(member.clock()):
                    return f"{member.name} has {name} in its hands"
        return None


class Pipeline:
    """A ledger per markers partition, run in batches that take their time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._shelves = [DictShelf() for _ in range(MARKERS)]
        self._read = [0] * MARKERS
        self._gates = [0] * MARKERS
        self._next_tick = [0.0] * MARKERS
        self.repeats = False
        self._waiting = 0
        self._written: set[tuple[str, str, int]] = set()

    def is_idle(self) -> bool:
        return not self._waiting and all(
            read == len(log) for read, log in zip(self._read, self._world.markers, strict=True)
        )

    def rebuild(self) -> None:
        """The checkpoint is gone: from the log alone."""
        self._shelves = [DictShelf() for _ in range(MARKERS)]
        self._read = [0] * MARKERS
        self._gates = [len(log) for log in self._world.markers]

    def batch(self) -> None:
        world = self._world
        results = []
        for mp, log in enumerate(world.markers):
            if world.now >= self._next_tick[mp]:
                self._next_tick[mp] = world.now + world.random.uniform(0.05, 0.5)
                log.append(Record(len(log), encode(Marker(Kind.TICK)), [], world.millis))
            shelf = DictShelf(self._shelves[mp])
            ledger = Ledger(shelf, gate=self._gates[mp])
            for record in log[self._read[mp] :]:
                ledger.apply(record.offset(), record.timestamp()[1], record.value())
            harvest = ledger.collect()
            ledger.save()
            results.append((mp, harvest, shelf, len(log), ledger.hot + ledger.cold))
        shelves = self._shelves
        world.after(world.random.uniform(0.01, 0.3), lambda: self._write(results, shelves))

    def _write(self, results: list[Any], shelves: list[DictShelf]) -> None:
        world = self._world
        world.after(world.random.uniform(0.0, 0.1), self.batch)
        if shelves is not self._shelves:  # rebuilt meanwhile: this batch never was
            return
        repeats, self.repeats = self.repeats, False
        self._waiting = 0
        for mp, harvest, shelf, end, in_flight in results:
            for letter in harvest.letters:
                self._deliver(letter)
            if repeats:  # killed after writing: the state is that of before, so all of it comes again
                self._waiting += 1
                continue
            for marker in harvest.markers:
                world.markers[mp].append(Record(len(world.markers[mp]), marker, [], world.millis))
            self._shelves[mp] = shelf
            self._read[mp] = end
            self._waiting += in_flight

    def _deliver(self, letter: Any) -> None:
        """What was due when the batch was read, so nobody who has kept in touch believes to have it."""
        name, attempt = letter.value.decode(), provenance(letter.headers).attempt
        world = self._world
        if world.rough and (letter.topic, name, attempt) in self._written:
            world.doubled.add(name)  # by a batch that was killed before it was on record
        self._written.add((letter.topic, name, attempt))
        world.given[name] = max(world.given[name], attempt)
        assert (whose := world.believes(name)) is None, whose
        world.append(letter.topic, letter.partition, letter.value, letter.headers)


@dataclass
class Batch:
    """Polled messages on their way to the application."""

    sheets: list[Sheet]
    handles: list[Handle]
    position: int = 0


@dataclass(eq=False)
class Member:
    """One consumer, as `marq.consumer` is, but driven by events instead of threads."""

    world: World
    name: str
    refusals: int = 0
    stalled_until: float = 0.0
    is_dead: bool = False
    leaving: bool = False
    revoking: list[int] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._skew = self.world.random.uniform(0, 1e5)  # monotonic clocks have nothing in common
        self.desk = Desk(
            Terms(
                QUEUE, self.name, lease=2.0 if self.world.rough else 5.0, mark_after=0.2, hold_max=1.5, hold_bytes=1500,
                max_attempts=self.world.attempts_max, dead_letter_topic=DEAD,
            )
        )  # fmt: skip
        self._position: dict[int, int] = {}
        self._careful: dict[int, int] = {}
        self._batch: Batch | None = None
        self._due: list[Handle] = []
        self._in_hand: set[int] = set()
        self.hands: dict[int, Handle] = {}
        self._outstanding = 0  # markers and letters without an answer
        self._delays: dict[int, tuple[str, int, float]] = {}  # of nacks that the log does not know of yet
        self._mail_at = 0.0
        self._commit_at = 0.0
        self.world.after(0.01, self.tick)

    def clock(self) -> float:
        return self.world.now + self._skew

    def partitions(self) -> list[int]:
        return [p for p, owner in self.world.owners.items() if owner is self and p in self._position]

    # Assignments

    def assign(self, partition: int) -> None:
        start, metadata = self.world.committed.get(partition, (0, None))
        self.lost.discard(partition)
        self.desk.assigned((TOPIC, partition), start)
        self._position[partition] = start
        if metadata != CLEAN:
            self._careful[partition] = 20
        self.world.committed[partition] = (start, OPEN)
        self.desk.committed([((TOPIC, partition), start)])

    def revoke(self, partitions: list[int]) -> None:
        """As `on_revoked`: lease what the application has, withhold the rest, go when all is durable."""
        self.revoking = partitions
        self._withhold(partitions)
        self.desk.lease_handed([(TOPIC, partition) for partition in partitions])

    def leave(self) -> None:
        self.leaving = True
        for handle in self.hands.values():  # given back unsettled: the same attempt again, for somebody else
            self.world.handed[handle.name].remove(handle.attempt)
        self.hands.clear()
        self.revoking = self.partitions()
        self._withhold(self.revoking)
        self.desk.close(self.clock())

    def _withhold(self, partitions: list[int]) -> None:
        if self._batch is not None:
            kept = [
                handle
                for handle in self._batch.handles[self._batch.position :]
                if handle.sheet.place[1] not in partitions or handle.sheet.flags[handle.index] != IN_FLIGHT
            ]
            self._batch = Batch(self._batch.sheets, kept)

    def _finish_revoking(self) -> None:
        sheets = [s for p in self.revoking for s in self.desk.frontiers[TOPIC, p].sheets]
        if any(PENDING in sheet.flags for sheet in sheets) or self.desk.has_orders:
            return
        if self.leaving and self._outstanding:
            return
        positions = self.desk.positions()
        partitions, self.revoking = self.revoking, []
        for partition in partitions:
            frontier = self.desk.frontiers[TOPIC, partition]
            self.world.committed[partition] = (positions.get((TOPIC, partition), frontier.position), CLEAN)
            self.desk.dropped((TOPIC, partition))
            del self._position[partition]
            self._careful.pop(partition, None)
        if self.leaving:
            self.is_dead = True
            self.world.members.remove(self)
            self.world.gone(self)
        else:
            for partition in partitions:
                self.world.released(partition)

    def lose(self, partition: int) -> None:
        """As `on_lost`."""
        if not self.is_dead and self.world.owners[partition] is not self and partition in self._position:
            self.lost.add(partition)
            self._withhold([partition])
            self.desk.dropped((TOPIC, partition))
            del self._position[partition]
            self._careful.pop(partition, None)
            if partition in self.revoking:
                self.revoking.remove(partition)

    def kill(self) -> None:
        self.is_dead = True

    # The loop and the keeper

    def tick(self) -> None:
        if self.is_dead:
            return
        world = self.world
        world.after(world.random.uniform(0.02, 0.08), self.tick)
        if world.now < self.stalled_until:
            return
        now = self.clock()
        if not self.leaving:
            self._poll()
            self._hand_out()
        self.desk.mark_slow(now)
        self.desk.renew(now)
        for order in list(self.desk.orders(now)):
            self._send(order)
        if world.now >= self._commit_at and not self.revoking:
            self._commit_at = world.now + 0.3
            self._commit()
        if self.revoking or self.leaving:
            self._finish_revoking()
        assert self.desk.held_bytes >= 0

    def _poll(self) -> None:
        for lease in self.desk.ready(self.clock(), 3):
            sheet = Sheet(self, lease.place, [lease.record], 0, flag=PARKED, attempt=lease.attempt)
            self.desk.reissue(lease, sheet, 0)
            self._due.append(self._handle(sheet, 0))
        if self._batch is not None or self.revoking:
            return
        sheets = []
        for partition in self.partitions():
            start = self._position[partition]
            records = self.world.logs[partition][start : start + 5]
            if records:
                sheet = Sheet(self, (TOPIC, partition), records, records[-1].offset() + 1)
                self._position[partition] = sheet.end
                assert self.desk.received(sheet)
                sheets.append(sheet)
                if self._careful.get(partition, 0) > 0:
                    self._careful[partition] -= sheet.count
                    self.desk.lease_all(sheet)
        if sheets:
            self._batch = Batch(sheets, [self._handle(sheet, i) for sheet in sheets for i in range(sheet.count)])

    def _handle(self, sheet: Sheet, index: int) -> Handle:
        record = sheet.records[index]
        attempt = sheet.attempt or provenance(record.headers()).attempt
        return Handle(sheet, index, record.value().decode(), attempt, (sheet.place, record.offset()))

    def _hand_out(self) -> None:
        """Three at a time, what is due first; nothing of a careful batch before its leases are durable."""
        while len(self._in_hand) < 3:
            if self._due:
                handle = self._due.pop(0)
            else:
                batch = self._batch
                if batch is None or any(PENDING in sheet.flags for sheet in batch.sheets if batch.position == 0):
                    return
                if batch.position >= len(batch.handles):
                    self._batch = None
                    return
                handle = batch.handles[batch.position]
                batch.position += 1
                handle.sheet.handed = handle.index + 1
            self._begin(handle)

    def _begin(self, handle: Handle) -> None:
        world = self.world
        early = min(world.not_before.get((handle.name, handle.attempt), [0.0]))
        assert handle.name in world.doubled or world.now >= early - 1e-6, f"{handle} is early"
        if not world.rough:
            for member in world.members:
                assert all(each.name != handle.name for each in member.hands.values()), f"{handle} is out twice"
        world.handed[handle.name].append(handle.attempt)
        self._in_hand.add(id(handle))
        self.hands[id(handle)] = handle
        slow = world.is_busy and world.chance(0.2)
        world.after(world.random.uniform(0.3, 5.0) if slow else world.random.uniform(0, 0.1), lambda: self._end(handle))

    def _end(self, handle: Handle) -> None:
        if self.is_dead or self.leaving:
            return
        if self.world.now < self.stalled_until:
            self.world.after(self.stalled_until - self.world.now, lambda: self._end(handle))
            return
        self._in_hand.discard(id(handle))
        del self.hands[id(handle)]
        fails = handle.name in self.world.always_fails or (self.world.is_busy and self.world.chance(0.25))
        if not fails:
            self._ack(handle)
        elif self.world.is_busy and self.world.chance(0.1) and handle.name not in self.world.always_fails:
            self._bury(handle, "hopeless")
        else:
            self._nack(handle)

    # Settling, as `marq.message` and `marq.consumer` do it

    def _lease_of(self, handle: Handle) -> tuple[int, Lease | None]:
        return handle.sheet.flags[handle.index], self.desk.find(handle.sheet, handle.index)

    def _ack(self, handle: Handle) -> None:
        flag, lease = self._lease_of(handle)
        if flag == IN_FLIGHT:
            handle.sheet.flags[handle.index] = ACKED
        elif lease is not None:
            assert lease.state in {State.MARKING, State.LEASED, State.EXPIRED}
            self.desk.ack(lease)
        else:
            assert flag == LOST
            assert self.world.rough
        self.world.acked[handle.name] += 1

    def _is_ours(self, handle: Handle) -> bool:
        flag, lease = self._lease_of(handle)
        if flag == LOST or (lease is not None and lease.has_run_out(self.clock())):
            assert self.world.rough, f"{handle} was lost in a calm world"
            return False
        return True

    def _nack(self, handle: Handle) -> None:
        if not self._is_ours(handle):
            return
        _, lease = self._lease_of(handle)
        if handle.attempt >= self.world.attempts_max:
            self._bury(handle, "failed")
            return
        delay = self.world.random.choice([0.0, 0.1, 1.0, 1.4, 3.0, 6.0])
        self.desk.nack(handle.sheet, handle.index, lease, delay)
        lease = self.desk.find(handle.sheet, handle.index)
        self._delays[id(lease)] = handle.name, handle.attempt + 1, self.world.now + delay

    def _bury(self, handle: Handle, reason: str) -> None:
        if not self._is_ours(handle):
            return
        _, lease = self._lease_of(handle)
        lease = self.desk.dying(handle.sheet, handle.index, lease)
        record = lease.record
        original = Original(QUEUE, *lease.place, lease.offset, record.key(), record.value(), record.headers() or [], 0)
        letter = dead_letter_of(original, topic=DEAD, attempts=lease.attempt, reason=reason)

        def hear() -> None:
            if not self.is_dead:
                self._outstanding -= 1
                self.desk.died(lease)

        def arrive() -> None:
            self.world.append(DEAD, None, letter.value, letter.headers)
            self.world.after(self.world.random.uniform(0, 0.3), hear)

        self._outstanding += 1
        self.world.after(self.world.random.uniform(0, 0.3), lambda: self.is_dead or arrive())

    # The wire

    def _send(self, order: Order) -> None:
        """In order, each with its own delay on the way there and on the way back; some are refused."""
        self._mail_at = max(self._mail_at, self.world.now + self.world.random.uniform(0.001, 0.15))
        refused = self.refusals > 0
        self.refusals -= refused
        written = not refused or (self.world.rough and self.world.chance(0.3))  # a refusal may be a lost answer
        answer = self.world.random.uniform(0.0, 0.4)

        def arrive() -> None:
            if self.is_dead and self.world.chance(0.5):
                return  # it died with the process
            if written:
                self.world.mark(order.marker, self.name)
                self._delays_count(order)
            self.world.after(answer, hear)

        def hear() -> None:
            if self.is_dead:
                return
            if self.world.now < self.stalled_until:
                self.world.after(self.stalled_until - self.world.now, hear)
                return
            self._outstanding -= 1
            if refused:
                self.desk.failed(order, self.clock(), forever=False)
            else:
                self.desk.delivered(order, self.clock())

        self._outstanding += 1
        self.world.after(self._mail_at - self.world.now, arrive)

    def _delays_count(self, order: Order) -> None:
        """From here on the delay holds, whatever happens to us. A RETRY after the end of its lease changes nothing."""
        for lease in order.leases if order.marker.waiting else ():
            delay = self._delays.pop(id(lease), None)
            if delay and (order.marker.kind == Kind.START or not lease.has_run_out(self.clock())):
                name, attempt, time = delay
                self.world.not_before[name, attempt].append(time)

    def _commit(self) -> None:
        positions = self.desk.positions()
        self.desk.committed(positions.items())
        for (_, partition), position in positions.items():
            self._check_position(partition, position)
            if self.world.owners[partition] is self:
                lost = self.world.rough and self.world.chance(0.1)
                if not lost:
                    self.world.committed[partition] = (position, OPEN)

    def _check_position(self, partition: int, position: int) -> None:
        """A commit never passes what is neither settled nor durable elsewhere."""
        for sheet in self.desk.frontiers[TOPIC, partition].sheets:
            for index, flag in enumerate(sheet.flags):
                assert flag not in {IN_FLIGHT, PENDING} or sheet.records[index].offset() >= position


def check(world: World) -> None:
    names = set(map(str, range(MESSAGES)))
    letters = Counter(record.value().decode() for record in world.dead)
    assert world.settled() == names
    for name in world.always_fails:
        assert world.acked[name] == 0
        assert letters[name] >= 1
    if world.rough:
        for record in world.dead:
            headers = dict(record.headers())
            hopeless = headers["marq-reason"] == b"hopeless"
            assert hopeless or headers["marq-attempt"] == b"%d" % world.attempts_max
        return
    for name in names:
        attempts = world.handed[name]
        assert attempts == list(range(1, len(attempts) + 1)), f"{name}: {attempts}"
        assert world.acked[name] + letters[name] == 1, f"{name}: {world.acked[name]} acks, {letters[name]} letters"
        if name in world.always_fails:
            assert len(attempts) == world.attempts_max, f"{name}: {attempts}"


@pytest.mark.parametrize("block", range(10))
@pytest.mark.parametrize("kind", ["calm", "rough"])
def test_worlds_hold_together(kind: str, block: int) -> None:
    for seed in range(block * 20, block * 20 + 20):
        world = World(seed, rough=kind == "rough")
        try:
            world.run()
            check(world)
        except BaseException as error:
            error.add_note(f"in the {kind} world of seed {seed}, at {world.now:.3f} s")
            raise
