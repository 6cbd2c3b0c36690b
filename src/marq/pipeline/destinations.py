"""Letters whose topic is gone must not stop all the others.

Kafka's producer waits a minute for a topic or a partition that does not exist and then fails, and with it Spark's
whole batch, for ever. So each letter's place is checked before it reaches the sink, on the executor that writes it:
a partition that is no longer there becomes any partition, a letter without a topic goes to the dead-letter topic.

Topics are looked up once and then known. When one vanishes afterwards the batch does fail; the pipeline restarts the
query with the next `generation`, which makes the executors look again.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from marq.core.records import REASON
from marq.pipeline.packing import LETTERS, unpack_letters
from marq.transport.kafka import KafkaTransport

ORPHAN = "orphan"  # a column the sink does not see: this letter lost its topic

_known: dict[str, int] = {}
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
                    yield settle(letters, self._partitions(letters), self.dead_letters)

    def _partitions(self, letters: Any) -> dict[str, int]:
        """How many partitions each topic of these letters has; asks again when a letter is beyond what is known."""
        needed: dict[str, int] = {}
        for topic, partition in _places(letters):
            needed[topic] = max(needed.get(topic, 1), (partition or 0) + 1)
        unknown = [topic for topic, count in needed.items() if _known.get(topic, 0) < count]
        if unknown:
            self._look_up(unknown)
        return {topic: _known.get(topic, 0) for topic in needed}

    def _look_up(self, topics: list[str]) -> None:
        transport = KafkaTransport(self.url, self.kafka)
        try:
            _known.update((topic, transport.partitions(topic)) for topic in topics)
        finally:
            transport.close()


def _places(letters: Any) -> set[tuple[str, int | None]]:
    pairs = pa.table([letters.column("topic"), letters.column("partition")], names=["topic", "partition"])
    distinct = pairs.group_by(["topic", "partition"]).aggregate([])
    return set(zip(distinct.column("topic").to_pylist(), distinct.column("partition").to_pylist(), strict=True))


def settle(letters: Any, partitions: Mapping[str, int], dead_letters: str) -> Any:
    """Letters with a place that exists, and the `orphan` column."""
    lost = [(t, p) for t, p in _places(letters) if partitions[t] == 0 or (p is not None and p >= partitions[t])]
    if not lost:
        return letters.append_column(ORPHAN, pa.array([False] * len(letters), pa.bool_()))
    rows = letters.to_pylist()
    for row in rows:
        count = partitions[row["topic"]]
        row[ORPHAN] = count == 0
        if count == 0:
            row["headers"] = _with_reason(row["headers"], f"topic {row['topic']} does not exist")
            row["topic"], row["partition"] = dead_letters, None
        elif row["partition"] is not None and row["partition"] >= count:
            row["partition"] = None
    return pa.RecordBatch.from_pylist(rows, schema=LETTERS.append(pa.field(ORPHAN, pa.bool_())))


def _with_reason(headers: list[dict[str, Any]], reason: str) -> list[dict[str, Any]]:
    """What is already said about a dead letter stays said."""
    earlier = [header["value"].decode(errors="replace") for header in headers if header["key"] == REASON]
    kept = [header for header in headers if header["key"] != REASON]
    return [*kept, {"key": REASON, "value": "; ".join([*earlier, reason]).encode()}]
