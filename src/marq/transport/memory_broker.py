"""What the in-memory broker is made of: clocks, logs and consumer groups. `memory.py` puts a transport's face on it."""

from __future__ import annotations

import random
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from marq.errors import ConfigurationError, MessageTooLargeError, TransportError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from marq.transport.base import Commit, Headers, Place, TopicSpec

CREATE_TIME, LOG_APPEND_TIME = 1, 2  # kinds of timestamps, numbered as in Kafka's client

# As of librdkafka's message.max.bytes, so that what memory:// takes kafka:// takes too.
MESSAGE_BYTES_MAX = 1_000_000
RECORD_OVERHEAD = 64
MICROS = 1_000_000


class Clock(Protocol):
    """The broker's time: milliseconds since 1970 for records, and seconds that only ever grow."""

    def millis(self) -> int: ...
    def monotonic(self) -> float: ...


class SystemClock:
    """The machine's time, but without its jumps: the wall clock is read once."""

    def __init__(self) -> None:
        self._epoch = time.time() - time.monotonic()

    def millis(self) -> int:
        return int((self._epoch + time.monotonic()) * 1000)

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """Time that stands still until a test moves it: `transport.advance(...)`."""

    def __init__(self, start_millis: int = 1_767_225_600_000) -> None:  # the first of January 2026
        self._start = start_millis
        self._micros = 0  # whole numbers: a thousand steps of 0.1 s are exactly 100 s

    def millis(self) -> int:
        return self._start + self._micros // 1000

    def monotonic(self) -> float:
        return self._micros / MICROS

    def move(self, by: timedelta) -> None:
        if by < timedelta(0):
            raise ConfigurationError(f"time only goes forward: it cannot be moved by {by}")
        self._micros += by // timedelta(microseconds=1)

    def move_to_millis(self, millis: int) -> None:
        self._micros = max(self._micros, (millis - self._start) * 1000)


class MemoryRecord:
    """A record with the accessors of Kafka's client, so that nobody can tell the difference."""

    __slots__ = ("_headers", "_key", "_offset", "_partition", "_timestamp", "_topic", "_value")

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]] | None,
        timestamp: tuple[int, int],
    ) -> None:
        self._topic, self._partition, self._offset = topic, partition, offset
        self._key, self._value, self._headers, self._timestamp = key, value, headers, timestamp

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        return self._timestamp

    def __repr__(self) -> str:
        return f"<MemoryRecord {self._topic}/{self._partition}/{self._offset}>"


class Topic:
    """A topic's partitions: a list of records each, whose index is the offset."""

    def __init__(self, spec: TopicSpec) -> None:
        self.name = spec.name
        self.logs: list[list[MemoryRecord]] = [[] for _ in range(spec.partitions)]
        self.by_broker_clock = spec.config.get("message.timestamp.type") == "LogAppendTime"
        self.bytes_max = int(spec.config.get("max.message.bytes", MESSAGE_BYTES_MAX))

    def check_size(self, key: bytes | None, value: bytes | None, headers: Headers | None) -> None:
        size = len(key or b"") + len(value or b"")
        if headers:
            size += sum(len(name) + len(data or b"") for name, data in headers)
        if size + RECORD_OVERHEAD > self.bytes_max:
            raise MessageTooLargeError


class Group:
    """A consumer group: what it has committed, who has which partition, and who shall have it.

    Rebalances are cooperative: a partition whose owner changes is first revoked, inside its owner's next poll, and
    only then free to be taken, inside the next poll of whoever shall have it.
    """

    def __init__(self) -> None:
        self.committed: dict[Place, Commit] = {}
        self.owners: dict[Place, Any] = {}
        self._members: list[tuple[Any, frozenset[str]]] = []
        self._plan: dict[Place, Any] = {}

    def join(self, member: Any, topics: Iterable[str]) -> None:
        self._members.append((member, frozenset(topics)))

    def leave(self, member: Any) -> None:
        self._members = [(each, topics) for each, topics in self._members if each is not member]
        self.owners = {place: owner for place, owner in self.owners.items() if owner is not member}

    def plan(self, topics: Mapping[str, Topic]) -> None:
        """Who shall have what: as even as can be, and moving as little as can be."""
        shares: dict[int, list[Place]] = {id(member): [] for member, _ in self._members}
        places = [
            (name, partition)
            for name in sorted({name for _, wanted in self._members for name in wanted} & topics.keys())
            for partition in range(len(topics[name].logs))
        ]
        before = {**self._plan, **self.owners}
        free: list[Place] = []
        for place in places:
            holder = before.get(place)
            if any(member is holder and place[0] in wanted for member, wanted in self._members):
                shares[id(holder)].append(place)
            else:
                free.append(place)
        for place in free:
            min(self._eligible(place, shares), key=len).append(place)
        while self._level_out(shares):
            pass
        self._plan = {place: member for member, _ in self._members for place in shares[id(member)]}

    def _eligible(self, place: Place, shares: dict[int, list[Place]]) -> list[list[Place]]:
        return [shares[id(member)] for member, wanted in self._members if place[0] in wanted]

    def _level_out(self, shares: dict[int, list[Place]]) -> bool:
        for share in sorted(shares.values(), key=len, reverse=True):
            for place in share:
                fewest = min(self._eligible(place, shares), key=len)
                if len(share) - len(fewest) > 1:
                    share.remove(place)
                    fewest.append(place)
                    return True
        return False

    def surplus(self, member: Any) -> list[Place]:
        """What a member has and must give up."""
        return [p for p, owner in self.owners.items() if owner is member and self._plan.get(p) is not member]

    def due(self, member: Any) -> list[Place]:
        """What a member shall have and nobody has."""
        return [p for p, owner in self._plan.items() if owner is member and p not in self.owners]

    def owned(self, member: Any) -> list[Place]:
        return [place for place, owner in self.owners.items() if owner is member]


class Broker:
    """Topics and groups behind one lock. Every method that is not `append` wants it held."""

    def __init__(self, clock: Clock, seed: int | None) -> None:
        self.clock = clock
        self.random = random.Random(seed)
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)  # records or assignments
        self.marked = threading.Condition(self.lock)  # records that the pipeline reads
        self.topics: dict[str, Topic] = {}
        self._groups: dict[str, Group] = {}
        self._marker_topics: set[str] = set()

    def create(self, spec: TopicSpec) -> Topic:
        topic = self.topics.get(spec.name)
        if topic is None:
            topic = self.topics[spec.name] = Topic(spec)
            for group in self._groups.values():
                group.plan(self.topics)
            self.changed.notify_all()
        return topic

    def watch(self, topic: str) -> None:
        """Tell the pipeline of every record on this topic."""
        self._marker_topics.add(topic)

    def group(self, name: str) -> Group:
        return self._groups.setdefault(name, Group())

    def regroup(self, group: Group) -> None:
        """Members came or went."""
        group.plan(self.topics)
        self.changed.notify_all()

    def append(
        self,
        topic_name: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | None = None,
        *,
        partition: int = -1,
        timestamp: int = 0,
    ) -> MemoryRecord:
        with self.lock:
            topic = self.topics.get(topic_name)
            if topic is None or partition >= len(topic.logs):
                missing = "partition" if topic is not None else "topic"
                raise TransportError(
                    f"There is no such {missing}: {topic_name}. Create it, or correct its name.", retryable=False
                )
            topic.check_size(key, value, headers)
            if partition < 0:
                partition = self.random.randrange(len(topic.logs))
            stamp = (CREATE_TIME, timestamp or self.clock.millis())
            if topic.by_broker_clock:
                stamp = (LOG_APPEND_TIME, self.clock.millis())
            log = topic.logs[partition]
            kept = [*headers] if headers else None
            record = MemoryRecord(topic_name, partition, len(log), key, value, kept, stamp)
            log.append(record)
            if topic_name in self._marker_topics:
                self.marked.notify_all()
            self.changed.notify_all()
            return record

    def read(self, place: Place, start: int, count: int) -> Sequence[MemoryRecord]:
        return self.topics[place[0]].logs[place[1]][start : start + count]
