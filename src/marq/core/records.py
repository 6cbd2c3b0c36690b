"""The wire format: headers on messages, and marker batches to and from bytes.

`docs/reference/markers.md` says the same in words. Nothing here does I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from zlib import crc32

from google.protobuf.message import DecodeError as ProtobufDecodeError

from marq.core.marker_pb2 import Header, Headers, Kind, MarkerBatch
from marq.errors import MalformedMarkerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

WIRE_VERSION = 1
OFFSET_MAX = 1 << 50
DURATION_MS_MAX = 1 << 45  # a thousand years: a sum with any broker timestamp still fits in 64 bits
ATTEMPT_MAX = 1 << 30
NAME_LENGTH_MAX = 1000

HEADER_PREFIX = "marq-"
ATTEMPT = "marq-attempt"
ORIGIN = "marq-origin"
ID = "marq-id"
REASON = "marq-reason"
DUE = "marq-due"
EXPIRES = "marq-expires"
KEY = "marq-key"
TIMESTAMP = "marq-timestamp"
QUEUE = "marq-queue"

_TOPIC_LENGTH_MAX = 249
_DIGITS_MAX = 19  # of a 64-bit number
_LETTER_OVERHEAD_BYTES = 100  # of a letter, besides what it carries
_MESSAGE_OVERHEAD_BYTES = 40  # of a message in a marker batch, besides its payload

HeaderList = list[tuple[str, bytes | None]]
T = TypeVar("T")


@dataclass(slots=True)
class Marker:
    """One marker batch, decoded. A column of one value holds for every message, an empty one says nothing."""

    kind: int
    queue: str = ""
    topic: str = ""
    partition: int = 0
    offsets: list[int] = field(default_factory=list)
    owner: str = ""
    redeliver_after_ms: list[int] = field(default_factory=list)
    deadlines: list[int] = field(default_factory=list)
    attempts: list[int] = field(default_factory=list)
    waiting: bool = False
    released: bool = False
    reason: str = ""
    max_attempts: int = 0
    dead_letter_topic: str = ""
    target_partitions: list[int] = field(default_factory=list)
    target_topic: str = ""
    keys: list[bytes | None] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    headers: list[HeaderList] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)
    version: int = WIRE_VERSION

    @property
    def stream(self) -> tuple[str, str, int]:
        return (self.queue, self.topic, self.partition)


def at(column: Sequence[T], index: int, default: T) -> T:
    """The value of a column for one message."""
    if len(column) > 1:
        return column[index]
    return column[0] if column else default


def spread(column: Sequence[T], count: int, default: T) -> Sequence[T]:
    """The values of a column for every message."""
    return column if len(column) == count else [column[0] if column else default] * count


def encode(marker: Marker) -> bytes:
    """A marker batch as bytes."""
    batch = MarkerBatch(
        version=WIRE_VERSION,
        kind=marker.kind,  # type: ignore[arg-type]  # proto3 enums are open: an unknown kind is carried as its number
        queue=marker.queue,
        topic=marker.topic,
        partition=marker.partition,
        offsets=_deltas(marker.offsets),
        owner=marker.owner,
        redeliver_after_ms=marker.redeliver_after_ms,
        deadlines=marker.deadlines,
        attempts=marker.attempts,
        waiting=marker.waiting,
        released=marker.released,
        reason=marker.reason,
        max_attempts=marker.max_attempts,
        dead_letter_topic=marker.dead_letter_topic,
        target_partitions=marker.target_partitions,
        target_topic=marker.target_topic,
        keys=[key or b"" for key in marker.keys],
        null_keys=[i for i, key in enumerate(marker.keys) if key is None],
        values=[value or b"" for value in marker.values],
        null_values=[i for i, value in enumerate(marker.values) if value is None],
        timestamps=_deltas(marker.timestamps),
    )
    if any(marker.headers):
        batch.headers.extend(
            Headers(headers=[Header(name=name, value=value) for name, value in headers]) for headers in marker.headers
        )
    return batch.SerializeToString()


def decode(data: bytes | None, *, payload: bool = True) -> Marker:
    """The marker batch in these bytes; `MalformedMarkerError` when there is none, never anything else.

    Without `payload` the columns that only a copy of the message needs are checked but left out, which is
    what makes reading a START cheap.
    """
    try:
        batch = MarkerBatch.FromString(data or b"")
    except ProtobufDecodeError as error:
        raise MalformedMarkerError(f"not a marker batch: {error}") from error
    marker = Marker(
        kind=int(batch.kind),
        queue=batch.queue,
        topic=batch.topic,
        partition=batch.partition,
        offsets=list(accumulate(batch.offsets)),
        owner=batch.owner,
        redeliver_after_ms=list(batch.redeliver_after_ms),
        deadlines=list(batch.deadlines),
        attempts=list(batch.attempts),
        waiting=batch.waiting,
        released=batch.released,
        reason=batch.reason,
        max_attempts=batch.max_attempts,
        dead_letter_topic=batch.dead_letter_topic,
        target_partitions=list(batch.target_partitions),
        target_topic=batch.target_topic,
        timestamps=list(accumulate(batch.timestamps)),
        version=batch.version,
    )
    _check(marker, batch)
    if payload:
        marker.keys = _with_nulls(batch.keys, batch.null_keys)
        marker.values = _with_nulls(batch.values, batch.null_values)
        marker.headers = [
            [(each.name, each.value if each.HasField("value") else None) for each in headers.headers]
            for headers in batch.headers
        ]
    return marker


def _deltas(numbers: Sequence[int]) -> list[int]:
    return [*numbers[:1], *(after - before for before, after in pairwise(numbers))]


def _with_nulls(column: Sequence[bytes], nulls: Sequence[int]) -> list[bytes | None]:
    values: list[bytes | None] = list(column)
    for position in nulls:
        values[position] = None
    return values


def _check(marker: Marker, batch: MarkerBatch) -> None:
    """Refuse what would break the ledger's arithmetic; what is merely odd is let through."""
    if marker.version < 1:
        raise MalformedMarkerError("a marker batch without a version")
    names = (marker.queue, marker.topic, marker.owner, marker.target_topic, marker.dead_letter_topic)
    if max(map(len, names)) > NAME_LENGTH_MAX:
        raise MalformedMarkerError(f"a name of more than {NAME_LENGTH_MAX} characters")
    count = len(marker.offsets)
    lengths = {
        "redeliver_after_ms": len(marker.redeliver_after_ms),
        "deadlines": len(marker.deadlines),
        "attempts": len(marker.attempts),
        "target_partitions": len(marker.target_partitions),
        "timestamps": len(marker.timestamps),
        "keys": len(batch.keys),
        "values": len(batch.values),
        "headers": len(batch.headers),
    }
    for name, length in lengths.items():
        if length > 1 and length != count:
            raise MalformedMarkerError(f"{count} offsets but {length} {name}")
    if max(batch.null_keys, default=-1) >= len(batch.keys) or max(batch.null_values, default=-1) >= len(batch.values):
        raise MalformedMarkerError("a null beyond the end of its column")
    _check_range("offsets", marker.offsets, 0, OFFSET_MAX)
    _check_range("redeliver_after_ms", marker.redeliver_after_ms, 0, DURATION_MS_MAX)
    _check_range("deadlines", marker.deadlines, 0, 2 * DURATION_MS_MAX)
    _check_range("timestamps", marker.timestamps, 0, DURATION_MS_MAX)
    _check_range("attempts", marker.attempts, 1, ATTEMPT_MAX)


def _check_range(name: str, column: Sequence[int], least: int, limit: int) -> None:
    if column and not least <= min(column) <= max(column) < limit:
        raise MalformedMarkerError(f"{name} out of range")


def split(marker: Marker, bytes_max: int) -> Iterator[Marker]:
    """The same marker in parts whose payloads stay under a size, so that no record outgrows the topic's limit."""
    first, size = 0, 0
    for position in range(len(marker.offsets)):
        weight = _weight(marker, position)
        if position > first and size + weight > bytes_max:
            yield select(marker, range(first, position))
            first, size = position, 0
        size += weight
    yield marker if first == 0 else select(marker, range(first, len(marker.offsets)))


def _weight(marker: Marker, position: int) -> int:
    key = at(marker.keys, position, None)
    value = at(marker.values, position, None)
    headers: HeaderList = at(marker.headers, position, [])
    carried = sum(8 + len(name) + len(data or b"") for name, data in headers)
    return _MESSAGE_OVERHEAD_BYTES + len(key or b"") + len(value or b"") + carried


def select(marker: Marker, positions: Sequence[int]) -> Marker:
    """Some messages of a marker, as a marker of their own."""

    def column(values: list[T]) -> list[T]:
        return [values[position] for position in positions] if len(values) > 1 else values

    return replace(
        marker,
        offsets=[marker.offsets[position] for position in positions],
        redeliver_after_ms=column(marker.redeliver_after_ms),
        deadlines=column(marker.deadlines),
        attempts=column(marker.attempts),
        target_partitions=column(marker.target_partitions),
        keys=column(marker.keys),
        values=column(marker.values),
        headers=column(marker.headers),
        timestamps=column(marker.timestamps),
    )


def blank(marker: Marker, keep: set[int]) -> Marker:
    """The same marker with the payloads of all other messages taken out; every message keeps its position."""
    count = len(marker.offsets)

    def column(values: list[T], default: T, nothing: T) -> list[T]:
        return [v if position in keep else nothing for position, v in enumerate(spread(values, count, default))]

    return replace(
        marker,
        keys=column(marker.keys, None, b""),
        values=column(marker.values, None, b""),
        headers=column(marker.headers, [], []),
    )


def stream_key(queue: str, topic: str, partition: int) -> bytes:
    """The Kafka key of a marker record: all markers of a message share a markers partition and stay in order."""
    return f"{queue}\x00{topic}\x00{partition}".encode()


def home(key: bytes, partitions: int) -> int:
    """The markers partition of a stream. Not left to a client's partitioner: two clients must never disagree."""
    return crc32(key) % partitions


def message_id(topic: str, partition: int, offset: int) -> str:
    """A message is named by where it first lay."""
    return f"{topic}/{partition}/{offset}"


@dataclass(frozen=True, slots=True)
class Provenance:
    """What the headers say about a message's past. A message without marq headers is on its first attempt."""

    attempt: int = 1
    id: str | None = None
    timestamp: int | None = None


FIRST_DELIVERY = Provenance()


def provenance(headers: Iterable[tuple[str, bytes | str | None]] | None) -> Provenance:
    """Read marq's headers. Values that make no sense are taken as absent: a foreign header kills no loop."""
    attempt, identity, timestamp = 1, None, None
    for name, value in headers or ():
        if not name.startswith(HEADER_PREFIX) or value is None:
            continue
        text = value.decode(errors="replace") if isinstance(value, bytes) else value
        if name == ID:
            identity = text
        elif text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX:
            if name == ATTEMPT and 0 < int(text) < ATTEMPT_MAX:
                attempt = int(text)
            elif name == TIMESTAMP:
                timestamp = int(text)
    return Provenance(attempt, identity, timestamp)


@lru_cache(maxsize=1024)
def is_topic_name(name: str) -> bool:
    """Whether Kafka takes this as the name of a topic."""
    plain = name.replace(".", "").replace("_", "").replace("-", "")
    allowed = plain.isascii() and (plain.isalnum() or not plain)
    return allowed and 0 < len(name) <= _TOPIC_LENGTH_MAX and name not in {".", ".."}


class Letter(NamedTuple):
    """A record to write: a redelivered copy or a dead letter."""

    topic: str
    partition: int | None  # None: any
    key: bytes | None
    value: bytes | None
    headers: HeaderList

    @property
    def size(self) -> int:
        """About how many bytes it takes, here and on its way."""
        carried = sum(8 + len(name) + len(data or b"") for name, data in self.headers)
        return _LETTER_OVERHEAD_BYTES + len(self.key or b"") + len(self.value or b"") + carried


class Original(NamedTuple):
    """A message as it was when it was leased: everything that its copies must keep."""

    queue: str
    topic: str  # empty: it was delayed from the start and never lay on a topic
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: HeaderList
    timestamp: int | None


def original_of(marker: Marker, position: int) -> Original:
    """One message of a START."""
    return Original(
        marker.queue,
        marker.topic,
        marker.partition,
        marker.offsets[position],
        at(marker.keys, position, None),
        at(marker.values, position, None),
        at(marker.headers, position, []),
        at(marker.timestamps, position, None),
    )


def target_of(marker: Marker, position: int) -> tuple[str, int | None]:
    """Topic and partition for a copy. The source's partition is meant only on the source's own topic."""
    topic = marker.target_topic or marker.topic
    own = marker.partition if topic == marker.topic else -1
    partition = at(marker.target_partitions, position, own)
    return topic, partition if partition >= 0 else None


def copy_of(original: Original, *, topic: str, partition: int | None, attempt: int) -> Letter:
    """The message again, for its next attempt: payload, key, user headers and history untouched."""
    return Letter(topic, partition, original.key, original.value, [*_history(original), (ATTEMPT, b"%d" % attempt)])


def dead_letter_of(original: Original, *, topic: str, attempts: int, reason: str) -> Letter:
    """The message as a dead letter, with what happened to it."""
    headers = [
        *_history(original),
        (ATTEMPT, b"%d" % attempts),
        (QUEUE, original.queue.encode()),
        (REASON, reason.encode()),
    ]
    return Letter(topic, None, original.key, original.value, headers)


def _history(original: Original) -> HeaderList:
    """The user's headers and, set once and never again, where and when the message was first delivered."""
    kept = [(name, value) for name, value in original.headers if name not in _SET_ANEW]
    names = [name for name, _ in kept]
    identity = message_id(original.topic, original.partition, original.offset).encode()
    if ID not in names:
        kept.append((ID, identity))
    if ORIGIN not in names and original.topic:
        kept.append((ORIGIN, identity))
    if TIMESTAMP not in names and original.timestamp is not None:
        kept.append((TIMESTAMP, b"%d" % original.timestamp))
    return kept


_SET_ANEW = frozenset({ATTEMPT, REASON, QUEUE})

__all__ = ["Kind", "Letter", "MalformedMarkerError", "Marker", "Original", "Provenance", "decode", "encode"]
