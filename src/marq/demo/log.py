"""Reads the topics as they are, and what their markers say about leases: the demo's witness against itself."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from marq.core import records
from marq.core.ledger import Ledger
from marq.core.records import Kind, Marker
from marq.core.shelf import DictShelf
from marq.errors import TransportError
from marq.transport.base import Assigned, Place, Record, Transport

READ_SECONDS = 30.0
SESSION_SECONDS = 10.0
MANY = 5_000


class _Watcher:
    """Notes what the group knows of each partition."""

    def __init__(self) -> None:
        self.assigned: dict[Place, Assigned] = {}

    def on_assigned(self, partitions: Sequence[Assigned]) -> None:
        self.assigned.update(((each.topic, each.partition), each) for each in partitions)

    def on_revoked(self, places: Sequence[Place]) -> None:
        """Nothing was committed, and nothing is to be."""

    def on_lost(self, places: Sequence[Place]) -> None:
        """Nothing was committed, and nothing is to be."""

    def on_commit_failed(self) -> None:
        """There are no commits."""


class TopicReader:
    """Everything that lies on some topics, from the beginning, as a group that never commits."""

    def __init__(self, transport: Transport, topics: Sequence[str]) -> None:
        self._transport = transport
        self._topics = topics
        group = f"marq-demo-{secrets.token_hex(4)}"
        self._subscription = transport.subscription(group, topics, _Watcher(), session_timeout=SESSION_SECONDS)
        self._next: dict[Place, int] = {}

    def read(self, timeout: float = 0) -> list[Record]:
        """What has come since the last call."""
        runs = self._subscription.poll(MANY, timeout)
        self._next.update(((run.topic, run.partition), run.records[-1].offset() + 1) for run in runs)
        return [record for run in runs for record in run.records]

    def read_all(self) -> list[Record]:
        """What has come since the last call, at least up to the present end."""
        ends = {(topic, p): end for topic in self._topics for p, end in self._transport.end_offsets(topic).items()}
        found: list[Record] = []
        give_up = time.monotonic() + READ_SECONDS
        while any(self._next.get(place, 0) < end for place, end in ends.items()):
            if time.monotonic() > give_up:
                raise TransportError(
                    f"The end of {', '.join(self._topics)} could not be read in {READ_SECONDS:.0f} s. Is this machine "
                    "very busy?"
                )
            found.extend(self.read(0.1))
        return found

    def close(self) -> None:
        self._subscription.close()


def committed(transport: Transport, group: str, topic: str) -> dict[int, Assigned]:
    """What a group without members has committed: joining it is the plain way to be told."""
    watcher = _Watcher()
    subscription = transport.subscription(group, [topic], watcher, session_timeout=SESSION_SECONDS)
    give_up = time.monotonic() + READ_SECONDS
    try:
        while len(watcher.assigned) < transport.partitions(topic):
            if time.monotonic() > give_up:
                raise TransportError(
                    f"Group {group} let nobody join in {READ_SECONDS:.0f} s. Is this machine very busy?"
                )
            subscription.poll(1, 0.1)
    finally:
        subscription.close()
    return {partition: each for (_, partition), each in watcher.assigned.items()}


class Held(NamedTuple):
    """A lease as the log knows it."""

    owner: str
    attempt: int
    waiting: bool  # its attempt has not begun: it is a retry whose delay goes on


class Returned(NamedTuple):
    """A lease whose owner lost it, and the message with it."""

    place: Place
    offset: int
    held: Held


@dataclass
class LeaseBook:
    """Every lease that the markers speak of, and how it ended."""

    live: dict[tuple[Place, int], Held] = field(default_factory=dict)
    leased: int = 0  # messages leased while a handler had them
    returned: list[Returned] = field(default_factory=list)  # by the pipeline, as a copy on the topic
    kinds: Counter[str] = field(default_factory=Counter)  # messages by marker kind
    taken_over: list[Returned] = field(default_factory=list)  # by the next owner of their partition
    retries: set[tuple[Place, int, int]] = field(default_factory=set)  # place, offset, attempt to come

    def read(self, data: bytes | None) -> None:
        """One record of the markers topic."""
        marker = records.decode(data, payload=False)
        self.kinds[Kind.Name(marker.kind)] += max(1, len(marker.offsets))
        for position, offset in enumerate(marker.offsets):
            self._take(marker, position, ((marker.topic, marker.partition), offset))

    def _take(self, marker: Marker, position: int, key: tuple[Place, int]) -> None:
        known = self.live.get(key)
        if marker.kind in {Kind.START, Kind.RETRY}:
            attempt = max(records.at(marker.attempts, position, 1), known.attempt if known else 1)
            self.live[key] = Held(marker.owner, attempt, marker.waiting)
            if marker.waiting:
                self.retries.add((*key, attempt))
            elif known is None:
                self.leased += 1
            elif marker.kind == Kind.START and known.owner != marker.owner:
                self.taken_over.append(Returned(*key, known))
        elif known is None:
            return
        elif marker.kind == Kind.KEEPALIVE:
            self.live[key] = known._replace(waiting=False)
        elif marker.kind in {Kind.END, Kind.REDELIVERED, Kind.DEAD}:
            del self.live[key]
            if marker.kind == Kind.REDELIVERED:
                self.returned.append(Returned(*key, known))

    def in_hands_of(self, owner: str) -> int:
        """How many messages this consumer's handlers have under a durable lease."""
        return sum(held.owner == owner and not held.waiting for held in self.live.values())


def replay(markers: Sequence[Record]) -> Mapping[str, int]:
    """What marq's own ledger, fed with the whole log, holds in the end."""
    ledgers: dict[int, Ledger] = {}
    for record in markers:
        ledger = ledgers.setdefault(record.partition(), Ledger(DictShelf()))
        ledger.apply(record.offset(), record.timestamp()[1], record.value())
    counts: Counter[str] = Counter(hot=0, cold=0, malformed=0)
    for ledger in ledgers.values():
        counts.update({"hot": ledger.hot, "cold": ledger.cold, "malformed": ledger.counts["malformed"]})
    return counts
