"""A letter that cannot go where it should must not stop all the others.

Kafka's producer waits a minute for a topic or a partition that does not exist and then fails, and with it Spark's
whole batch, for ever. So each letter's place is checked before it reaches the sink, on the executor that writes it:
a partition that is no longer there becomes any partition, a letter without a topic goes to the dead-letter topic, and
so does one that is larger than its topic takes. What is too large for the dead-letter topic too is left out and named:
the log still has its START. Only a missing dead-letter topic stops everything, because that can be mended.

Topics are looked up once and then known. When one vanishes afterwards the batch does fail; the pipeline restarts the
query with the next `generation`, which makes the executors look again.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from marq.core.records import ID, REASON
from marq.pipeline.packing import LETTERS, unpack_letters
from marq.transport.kafka import KafkaTransport

# Columns the sink does not see.
ORPHAN = "orphan"  # this letter went to the dead-letter topic instead
UNWRITABLE = "unwritable"  # its id, and why it can go nowhere
SETTLED = LETTERS.append(pa.field(ORPHAN, pa.bool_())).append(pa.field(UNWRITABLE, pa.string()))

# Kafka's brokers take no letter for these from anyone. Other names may begin with two underscores.
_INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state", "__cluster_metadata"})
_OVERHEAD_BYTES = 200  # of a record in a batch of its own


class Topic(NamedTuple):
    """What is known of a topic."""

    partitions: int  # 0: there is none
    bytes_max: int | None = None  # None: not known


_known: dict[str, Topic] = {}
_NO_TOPIC = Topic(0)
_known_in: list[int] = [0]  # the generation in which the topics were looked up


@dataclass(frozen=True)
class Destinations:
    """What an executor must know to check a letter's place. It travels there, so it holds no connection."""

    url: str
    dead_letters: str
    kafka: Mapping[str, str] = field(default_factory=dict)
    generation: int = 0

    def route(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Arrow batches of (letters) as batches for the Kafka sink."""
        if _known_in[0] != self.generation:
            _known.clear()
            _known_in[0] = self.generation
        for batch in batches:
            for blob in batch.column("letters").to_pylist():
                for letters in unpack_letters(blob):
                    yield settle(letters, self._topics(letters), self.dead_letters)

    def _topics(self, letters: Any) -> dict[str, Topic]:
        """What these letters' topics are like; asks again when a letter is beyond what is known."""
        needed = {self.dead_letters: 1}
        for topic, partition in _places(letters):
            needed[topic] = max(needed.get(topic, 1), (partition or 0) + 1)
        unknown = [topic for topic, count in needed.items() if _known.get(topic, _NO_TOPIC).partitions < count]
        if unknown:
            self._look_up(unknown)
        return {topic: _known[topic] for topic in needed}

    def _look_up(self, topics: list[str]) -> None:
        transport = KafkaTransport(self.url, self.kafka)
        try:
            for topic in topics:
                partitions = transport.partitions(topic)
                _known[topic] = Topic(partitions, transport.bytes_max(topic)) if partitions else _NO_TOPIC
        finally:
            transport.close()


def _places(letters: Any) -> set[tuple[str, int | None]]:
    pairs = pa.table([letters.column("topic"), letters.column("partition")], names=["topic", "partition"])
    distinct = pairs.group_by(["topic", "partition"]).aggregate([])
    return set(zip(distinct.column("topic").to_pylist(), distinct.column("partition").to_pylist(), strict=True))


def settle(letters: Any, topics: Mapping[str, Topic], dead_letters: str) -> Any:
    """Letters with a place that takes them, and the columns that the sink does not see."""
    if _are_fine(letters, topics):
        nothing = [pa.array([False] * len(letters), pa.bool_()), pa.nulls(len(letters), pa.string())]
        return pa.RecordBatch.from_arrays([*letters.columns, *nothing], schema=SETTLED)
    rows = letters.to_pylist()
    for row in rows:
        wrong = _obstacle(row, topics)
        row[ORPHAN], row[UNWRITABLE] = wrong is not None, None
        if wrong is not None:
            row["headers"] = _with_reason(row["headers"], wrong)
            row["topic"], row["partition"] = dead_letters, None
            still_wrong = _obstacle(row, topics)
            if still_wrong is not None and topics[dead_letters].partitions:
                _leave_out(row, still_wrong if still_wrong == wrong else f"{wrong}; {still_wrong}")
        elif row["partition"] is not None and row["partition"] >= topics[row["topic"]].partitions:
            row["partition"] = None
    return pa.RecordBatch.from_pylist(rows, schema=SETTLED)


def _are_fine(letters: Any, topics: Mapping[str, Topic]) -> bool:
    """Whether all of them can go as they are. Nearly always, and found out without a look at each."""
    places = _places(letters)
    if any(topic in _INTERNAL or (partition or 0) >= topics[topic].partitions for topic, partition in places):
        return False
    limits = [limit for topic, _ in places if (limit := topics[topic].bytes_max) is not None]
    longest = [pc.call_function("binary_length", [letters.column(name)]) for name in ("key", "value")]
    at_most: int = (
        sum(pc.call_function("max", [each]).as_py() or 0 for each in longest) + letters.column("headers").nbytes
    )
    return all(at_most + _OVERHEAD_BYTES <= limit for limit in limits)


def _obstacle(row: Mapping[str, Any], topics: Mapping[str, Topic]) -> str | None:
    """Why this letter cannot go to its topic."""
    name = row["topic"]
    if name in _INTERNAL:
        return f"topic {name} is Kafka's own"
    if not topics[name].partitions:
        return f"topic {name} does not exist"
    limit = topics[name].bytes_max
    if limit is not None and _is_larger(row, limit):
        return f"larger than topic {name} takes ({limit} bytes)"
    return None


def _is_larger(row: Mapping[str, Any], limit: int) -> bool:
    """The broker measures what the sink has compressed."""
    parts = [
        row["key"],
        row["value"],
        *(part for each in row["headers"] for part in (each["key"].encode(), each["value"])),
    ]
    data = b"".join(part or b"" for part in parts)
    overhead = _OVERHEAD_BYTES + 10 * len(row["headers"])
    if overhead + len(data) <= limit:
        return False
    compressed = len(pa.compress(data, codec="lz4", asbytes=True))
    return overhead + compressed + compressed // 50 > limit  # Java's may come out a little larger


def _leave_out(row: dict[str, Any], why: str) -> None:
    identity = [
        each["value"].decode(errors="replace") for each in row["headers"] if each["key"] == ID and each["value"]
    ]
    row[ORPHAN], row[UNWRITABLE] = False, f"{identity[0] if identity else 'a letter without an id'}: {why}"
    row["key"], row["value"], row["headers"] = None, None, []


def _with_reason(headers: list[dict[str, Any]], reason: str) -> list[dict[str, Any]]:
    """What is already said about a dead letter stays said."""
    earlier = [header["value"].decode(errors="replace") for header in headers if header["key"] == REASON]
    kept = [header for header in headers if header["key"] != REASON]
    return [*kept, {"key": REASON, "value": "; ".join([*earlier, reason]).encode()}]
