"""What marq asks of a broker. `kafka://` and `memory://` answer it; nothing else in marq knows which one it talks to.

The shapes follow the hot path: records travel in runs of one partition, with their keys and values taken out in bulk,
so that the consumer does no Python work per message that a C loop can do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from marq.errors import MarqError

Headers = Sequence[tuple[str, bytes | None]]
Place = tuple[str, int]  # topic and partition

DEFAULT_TIMEOUT = 30.0


class Record(Protocol):
    """A record as the client library hands it out: accessors, not attributes."""

    def topic(self) -> str: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> list[tuple[str, bytes | None]] | None: ...
    def timestamp(self) -> tuple[int, int]: ...  # (kind, milliseconds)


class Run(NamedTuple):
    """Records of one partition, in the order of the log. Offsets may have gaps."""

    topic: str
    partition: int
    records: Sequence[Record]
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]


class Assigned(NamedTuple):
    """A partition that has just become ours, and what the group knows of it."""

    topic: str
    partition: int
    start: int  # the first offset that will be read; -1: not known yet
    metadata: str | None  # of the group's last commit; None: there never was one


class Listener(Protocol):
    """Told about assignments from inside `Subscription.poll`, so never while records are being handed out."""

    def on_assigned(self, partitions: Sequence[Assigned]) -> None: ...
    def on_revoked(self, places: Sequence[Place]) -> None: ...  # still ours until this returns: a commit counts
    def on_lost(self, places: Sequence[Place]) -> None: ...  # somebody else may have them already
    def on_commit_failed(self) -> None: ...  # one that nobody waited for: commit again


class Commit(NamedTuple):
    """The next offset to read, and a note for whoever reads it."""

    offset: int
    metadata: str = ""


class Subscription(Protocol):
    """A member of a consumer group. One thread at a time may poll; `commit` is safe from any thread."""

    def poll(self, max_records: int, timeout: float) -> list[Run]: ...
    def commit(self, positions: Mapping[Place, Commit], *, wait: bool) -> None: ...
    def end(self, place: Place) -> int: ...  # of the log, for a partition that has just been assigned; -1: not known
    def pause(self, places: Sequence[Place]) -> None: ...
    def resume(self, places: Sequence[Place]) -> None: ...
    def close(self) -> None: ...  # revokes first, so the listener may commit


# Called once per published record with what went wrong (falsy when nothing did) and the record as the broker has it.
# The first argument is the client library's own; `Publisher.error` makes a MarqError of it.
Report = Callable[[Any, Record], object]


class Publisher(Protocol):
    """Sends records durably: acknowledged by all replicas, idempotent, in order per partition. Safe from any thread.

    Nothing blocks but `flush` and a full buffer. Reports are called from whichever thread serves.
    """

    def publish(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        *,
        partition: int = -1,  # -1: the transport chooses, at random
        timestamp: int = 0,  # 0: now
        report: Report | None = None,
    ) -> None: ...

    # The fast lane, without headers: `refused` is told of failures alone. Whether all are durable, `flush_many` says.
    def publish_many(self, topic: str, values: Sequence[bytes | None], key: bytes | None, refused: Report) -> None: ...
    def flush_many(self, timeout: float) -> int: ...  # like flush, for the fast lane

    def serve(self, timeout: float) -> int: ...  # call the reports that are due; returns how many
    def flush(self, timeout: float) -> int: ...  # returns how many are still on their way
    def error(self, raw: Any) -> MarqError: ...
    def close(self, timeout: float) -> None: ...


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic as marq wants it."""

    name: str
    partitions: int
    replication: int = -1  # -1: the broker's default
    config: Mapping[str, str] = field(default_factory=dict)


class Transport(Protocol):
    """A broker, or a cluster of them."""

    def publisher(self) -> Publisher: ...

    def subscription(
        self, group: str, topics: Sequence[str], listener: Listener, *, session_timeout: float
    ) -> Subscription: ...

    def ensure_topics(self, specs: Sequence[TopicSpec]) -> None: ...  # creates what is missing, changes nothing

    def partitions(self, topic: str) -> int: ...  # 0: there is no such topic

    def end_offsets(self, topic: str) -> dict[int, int]: ...

    def close(self) -> None: ...
