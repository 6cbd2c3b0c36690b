"""The sum at the end: what was claimed on the way, beside what the broker holds when everything has stopped."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from marq.codecs import codec_for
from marq.core import records
from marq.core.caution import CLEAN
from marq.demo import plan
from marq.demo.log import Held, LeaseBook, Returned, TopicReader, committed, replay
from marq.demo.plan import Order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from marq.app import App
    from marq.demo.tally import Tally
    from marq.queue import Queue
    from marq.transport.base import Assigned, Place, Record

ENCODE = codec_for(Order).encode


@dataclass(frozen=True)
class Check:
    """One line of the table."""

    what: str
    claimed: int  # by those who did the work
    held: int  # by the broker
    ok: bool
    how: str


@dataclass(frozen=True)
class Killed:
    """The worker that was killed."""

    name: str
    pid: int
    consumer: str
    leases: int  # durable, with a handler at work, when the signal was sent


class Evidence:
    """Everything that lies on the topics, and what the group has committed."""

    def __init__(self, app: App, queue: Queue[Order]) -> None:
        self.queue = queue
        self.messages = _read(app, queue.topic)
        self.letters = _read(app, app.dead_letter_topic)
        self.markers = _read(app, app.markers_topic)
        self.ends = app.transport.end_offsets(queue.topic)
        group = f"{app.settings.topics.prefix}-{queue.name}"
        self.commits: dict[int, Assigned] = committed(app.transport, group, queue.topic)
        self.book = LeaseBook()
        for record in self.markers:
            self.book.read(record.value())
        self.ledger = replay(self.markers)

    @cached_property
    def originals(self) -> dict[str, Record]:
        """What the sender wrote, by id."""
        return {_own_id(record): record for record in self.messages if _past(record).id is None}

    @cached_property
    def copies(self) -> list[tuple[str, int, Record]]:
        """What the pipeline gave back: id, attempt and the record."""
        return [(past.id, past.attempt, record) for record in self.messages if (past := _past(record)).id is not None]

    @cached_property
    def _ids(self) -> dict[tuple[Place, int], str]:
        return {
            ((record.topic(), record.partition()), record.offset()): _past(record).id or _own_id(record)
            for record in self.messages
        }

    def id_at(self, place: Place, offset: int) -> str:
        """The message that lies there, or whose copy does."""
        return self._ids.get((place, offset), records.message_id(*place, offset))

    @property
    def uncommitted(self) -> int:
        """How many records of the topic the group has not settled."""
        return sum(end - max(0, self.commits[partition].start) for partition, end in self.ends.items())

    @property
    def unclean(self) -> int:
        """Partitions of which no consumer has said at its end that it left nothing behind."""
        return sum(each.metadata != CLEAN for each in self.commits.values())


def audit(
    evidence: Evidence, tally: Tally, orders: Sequence[Order], sent: Sequence[str], killed: Killed
) -> list[Check]:
    """Every line of the table. `sent` are the ids of the orders, in order."""
    originals, letters = evidence.originals, _letters_by_id(evidence)
    poison = {sent[order.number] for order in orders if order.kind == "poison"}
    intact = [_is_as_sent(originals.get(identity), order) for identity, order in zip(sent, orders, strict=True)]
    acked_by_broker = originals.keys() - letters.keys()
    good_letters = sum(
        len(found) == 1 and identity in poison and _is_true(found[0], originals.get(identity))
        for identity, found in letters.items()
    )
    return [
        Check(
            "sent",
            len(sent),
            len(originals),
            originals.keys() == set(sent) and all(intact),
            "with payload, key and headers as sent",
        ),
        Check(
            "acked",
            len(tally.acked),
            len(acked_by_broker),
            set(tally.acked) == acked_by_broker,
            "by workers; settled and no dead letter",
        ),
        Check(
            "dead",
            len(poison),
            len(evidence.letters),
            good_letters == len(poison) == len(evidence.letters) and tally.attempts_seen <= plan.ATTEMPTS,
            f"each after exactly {plan.ATTEMPTS} attempts, and intact",
        ),
        Check(
            "sent = acked + dead",
            len(tally.acked) + len(poison),
            len(acked_by_broker) + len(letters),
            len(sent) == len(tally.acked) + len(poison) == len(acked_by_broker) + len(letters),
            "nothing is lost, and nothing is both",
        ),
        _retried(evidence, tally, killed),
        _redelivered(evidence),
        _killed(evidence, killed),
        _duplicates(evidence, tally, killed),
        _left(evidence),
    ]


def _retried(evidence: Evidence, tally: Tally, killed: Killed) -> Check:
    """Only a nack of the killed worker may be missing in the log: it died before the retry was durable."""
    logged = {(evidence.id_at(place, offset), attempt) for place, offset, attempt in evidence.book.retries}
    said: dict[bool, set[tuple[str, int]]] = defaultdict(set)
    for worker in tally.workers:
        failures = ((each.id, each.attempt + 1) for each in worker.failures if each.attempt < plan.ATTEMPTS)
        said[worker.name == killed.name].update(failures)
    missing = (said[True] | said[False]) - logged
    cut = f"; {len(missing)} cut off by the kill" if missing else ""
    return Check(
        "retried",
        len(said[True] | said[False]),
        len(logged),
        said[False] <= logged <= said[True] | said[False],
        f"failed attempts that were put off{cut}",
    )


def _redelivered(evidence: Evidence) -> Check:
    """Each copy on the topic has its REDELIVERED marker, and is what its original was."""
    told = {(evidence.id_at(each.place, each.offset), _next_attempt(each.held)) for each in evidence.book.returned}
    lie = {(identity, attempt) for identity, attempt, _ in evidence.copies}
    intact = all(_is_copy(record, evidence.originals.get(identity)) for identity, _, record in evidence.copies)
    delayed = sum(each.held.waiting for each in evidence.book.returned)
    return Check(
        "redelivered by Spark",
        len(told),
        len(lie),
        told == lie and intact,
        f"{len(told) - delayed} expired leases, {delayed} longer delays, all intact",
    )


def _killed(evidence: Evidence, killed: Killed) -> Check:
    """Every lease that it died with came back as the next attempt, or the partition's next owner has renewed it."""
    copies = {(identity, attempt) for identity, attempt, _ in evidence.copies}
    returned = [each for each in evidence.book.returned if _was_with(each, killed)]
    back = sum((evidence.id_at(each.place, each.offset), _next_attempt(each.held)) in copies for each in returned)
    second = sum(each.held.attempt == 1 for each in returned)
    renewed = sum(_was_with(each, killed) for each in evidence.book.taken_over)
    others = f", {renewed} leased by the next owner" if renewed else ""
    return Check(
        f"leases of worker {killed.name}",
        killed.leases,
        back + renewed,
        killed.leases == back + renewed and back == len(returned) > 0,
        f"redelivered: {second} as attempt 2{others}",
    )


def _was_with(lost: Returned, killed: Killed) -> bool:
    return lost.held.owner == killed.consumer and not lost.held.waiting


def _duplicates(evidence: Evidence, tally: Tally, killed: Killed) -> Check:
    """An ack counts when its offset is committed. What the dead worker had acked since its last commit came again."""
    twice = {identity for identity, count in tally.acked.items() if count > 1}
    by_the_killed = {ack.id for worker in tally.workers if worker.name == killed.name for ack in worker.acks}
    redelivered = {identity for identity, _, _ in evidence.copies}
    explained = twice & (by_the_killed | redelivered)
    return Check(
        "handled twice",
        len(twice),
        len(explained),
        explained == twice,
        f"acked by worker {killed.name} after its last commit",
    )


def _left(evidence: Evidence) -> Check:
    left = evidence.ledger["hot"] + evidence.ledger["cold"] + evidence.uncommitted
    return Check(
        "left",
        0,
        left,
        left == 0 and evidence.unclean == 0 and evidence.ledger["malformed"] == 0,
        f"open leases (of {len(evidence.markers):,} markers), offsets",
    )


def _read(app: App, topic: str) -> list[Record]:
    reader = TopicReader(app.transport, [topic])
    try:
        return reader.read_all()
    finally:
        reader.close()


def _past(record: Record) -> records.Provenance:
    return records.provenance(record.headers())


def _own_id(record: Record) -> str:
    return records.message_id(record.topic(), record.partition(), record.offset())


def _letters_by_id(evidence: Evidence) -> dict[str, list[Record]]:
    letters: dict[str, list[Record]] = defaultdict(list)
    for record in evidence.letters:
        letters[_past(record).id or ""].append(record)
    return letters


def _next_attempt(held: Held) -> int:
    """An attempt that never began is not spent."""
    return held.attempt if held.waiting else held.attempt + 1


def _users(record: Record) -> list[tuple[str, bytes | None]]:
    """The headers that are not marq's own, and the sender's key, which is."""
    return sorted(
        (name, value)
        for name, value in record.headers() or []
        if not name.startswith(records.HEADER_PREFIX) or name == records.KEY
    )


def _is_as_sent(record: Record | None, order: Order) -> bool:
    if record is None:
        return False
    sent = sorted([*plan.headers_of(order), (records.KEY, plan.key_of(order).encode())])
    return record.value() == ENCODE(order) and _users(record) == sent


def _is_copy(copy: Record, original: Record | None) -> bool:
    """Payload, keys, headers and the time of sending are untouched."""
    return (
        original is not None
        and copy.value() == original.value()
        and copy.key() == original.key()
        and _users(copy) == _users(original)
        and _past(copy).timestamp == original.timestamp()[1]
    )


def _is_true(letter: Record, original: Record | None) -> bool:
    """A dead letter that tells the whole story."""
    headers = Counter(name for name, _ in letter.headers() or [])
    told = dict(letter.headers() or [])
    return (
        original is not None
        and _is_copy(letter, original)
        and _past(letter).attempt == plan.ATTEMPTS
        and bool(told.get(records.REASON))
        and told.get(records.ORIGIN) == _own_id(original).encode()
        and told.get(records.QUEUE) == plan.QUEUE.encode()
        and max(headers.values()) == 1
    )
