"""The tracker: the markers topic through the ledger, and back to Kafka what falls due.

    Kafka source -> pack (Arrow, before the shuffle) -> group by markers partition -> the ledger in
    transformWithState -> observe what it reports -> unpack (Arrow) -> Kafka sink

Time mode is None: no timers, because Spark would then run empty batches without end. Time comes from the broker's
timestamps, and ticks make it pass (`marq.core.aim`).
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median_low
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name in every Spark program
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from marq.core.ledger import Harvest, Ledger
from marq.core.records import Letter
from marq.pipeline.destinations import ORPHAN, UNWRITABLE, Destinations
from marq.pipeline.packing import in_order, pack_letters, pack_records

QUERY = "marq-tracker"
LEDGER = "ledger"  # names of what is observed
SINK = "sink"

PACKED = "mp int, first bigint, records binary"
TRACKED = "mp int, report string, letters binary"
ROUTED = (
    "topic string, partition int, key binary, value binary, "
    f"headers array<struct<key:string,value:binary>>, {ORPHAN} boolean, {UNWRITABLE} string"
)

# One entry of the state is a blob of the ledger's; see marq.core.shelf. Types instead of strings spare a round trip.
_KEY = StructType([StructField("k", StringType())])
_VALUE = StructType([StructField("v", BinaryType())])


class MapStateShelf:
    """The ledger's shelf in Spark's state store. Each call is a round trip to the JVM."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def get(self, key: str) -> bytes | None:
        row = self._state.getValue((key,))
        return None if row is None else bytes(row[0])

    def put(self, key: str, value: bytes) -> None:
        self._state.updateValue((key,), (value,))

    def delete(self, key: str) -> None:
        self._state.removeKey((key,))


class LedgerProcessor(StatefulProcessor):  # type: ignore[misc]  # pyspark has no types that hold
    """One ledger per markers partition, in the hands of Spark."""

    def __init__(self, markers_topic: str, gates: Mapping[int, int]) -> None:
        self._markers_topic = markers_topic
        self._gates = dict(gates)
        self._state: Any = None

    def init(self, handle: Any) -> None:
        self._state = handle.getMapState("shelf", _KEY, _VALUE)

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: tuple[int, ...],
        rows: Iterable[Any],
        timerValues: Any,  # noqa: N803, ARG002 - Spark's name
    ) -> Iterator[Any]:
        markers_partition = int(key[0])
        ledger = Ledger(MapStateShelf(self._state), gate=self._gates.get(markers_partition, 0))
        last = 0
        for record in in_order(rows):
            ledger.apply(*record)
            last = record.offset
        harvest = ledger.collect()
        ledger.save()
        report: str | None = report_of(ledger, harvest, markers_partition, last)
        markers = (Letter(self._markers_topic, markers_partition, None, value, []) for value in harvest.markers)
        for blob in pack_letters([*harvest.letters, *markers]):
            yield Row(mp=markers_partition, report=report, letters=blob)
            report = None
        if report is not None:
            yield Row(mp=markers_partition, report=report, letters=None)

    def close(self) -> None:
        self._state = None


def report_of(ledger: Ledger, harvest: Harvest, markers_partition: int, last: int) -> str:
    """What a batch says of one markers partition: to the pulse, and to whoever watches. JSON, so it can grow."""
    late = harvest.lateness_ms
    return json.dumps(
        {
            "mp": markers_partition,
            "offset": last,
            "now": ledger.now,
            "due": harvest.next_due,
            "open": ledger.gate_is_open,
            "hot": ledger.hot,
            "cold": ledger.cold,
            "redelivered": harvest.redelivered,
            "dead": harvest.dead,
            "late_p50": median_low(late) if late else None,
            "late_max": max(late, default=None),
            "counts": dict(ledger.counts),
        }
    )


@dataclass(frozen=True)
class Tracker:
    """What the tracker's query needs to know."""

    bootstrap: str
    markers_topic: str
    checkpoint: str
    destinations: Destinations
    gates: Mapping[int, int]
    trigger_ms: int = 100
    records_per_batch_max: int = 4_000  # of up to 1 MB: they pass through the heap in small pieces, and over the disk
    stop_at_data_loss: bool = True
    kafka: Mapping[str, str] = field(default_factory=dict)  # Java client properties, for security

    def start(self, session: SparkSession) -> StreamingQuery:
        writer = self._letters(self._tracked(session)).writeStream.format("kafka").options(**self._sink_options())
        return (
            writer.queryName(QUERY)
            .outputMode("update")
            .option("checkpointLocation", self.checkpoint)
            .trigger(processingTime=f"{self.trigger_ms} milliseconds")
            .start()
        )

    def _tracked(self, session: SparkSession) -> Any:
        source = session.readStream.format("kafka").options(**self._source_options()).load()
        columns = (
            F.col("partition").alias("mp"),
            "offset",
            F.unix_millis("timestamp").alias("timestamp"),
            "value",
        )
        packed = source.select(*columns).mapInArrow(pack_records, PACKED)
        processor = LedgerProcessor(self.markers_topic, self.gates)
        return packed.groupBy("mp").transformWithState(processor, TRACKED, "Update", "None")

    def _letters(self, tracked: Any) -> Any:
        # A batch reports only the partitions that had records, so each one's report must arrive whole.
        reports = F.concat_ws("\n", F.collect_list("report")).alias("reports")
        blobs = tracked.observe(LEDGER, reports).where("letters is not null").select("letters")
        routed = blobs.mapInArrow(self.destinations.route, ROUTED)
        orphans = F.sum(F.col(ORPHAN).cast("bigint")).alias("orphans")
        unwritable = F.concat_ws("\n", F.collect_list(UNWRITABLE)).alias(UNWRITABLE)
        observed = routed.observe(SINK, F.count(F.lit(1)).alias("letters"), orphans, unwritable)
        return observed.where(F.col(UNWRITABLE).isNull()).drop(ORPHAN, UNWRITABLE)

    def _source_options(self) -> dict[str, str]:
        return {
            **_prefixed(self.kafka),
            "kafka.bootstrap.servers": self.bootstrap,
            "subscribe": self.markers_topic,
            "startingOffsets": "earliest",
            "failOnDataLoss": str(self.stop_at_data_loss).lower(),
            "maxOffsetsPerTrigger": str(self.records_per_batch_max),
            "kafka.isolation.level": "read_committed",
            # Spark asks for the end of the partition behind each poll, and the broker answers in turn: with the
            # default of 500 ms an idle partition makes each batch half a second longer.
            "kafka.fetch.max.wait.ms": "10",
        }

    def _sink_options(self) -> dict[str, str]:
        return {
            **_prefixed(self.kafka),
            "kafka.bootstrap.servers": self.bootstrap,
            "kafka.acks": "all",
            "kafka.enable.idempotence": "true",
            "kafka.linger.ms": "5",
            "kafka.compression.type": "lz4",
            "kafka.buffer.memory": str(128 << 20),
            "kafka.max.request.size": str(128 << 20),  # the topic's own limit is the one that counts
            # A topic that vanished stops all letters until the batch fails; a broker that is away for longer than this
            # costs a restart of the query, which goes on from its checkpoint.
            "kafka.max.block.ms": "30000",
            "kafka.request.timeout.ms": "15000",
            "kafka.delivery.timeout.ms": "30000",
        }


def _prefixed(options: Mapping[str, str]) -> dict[str, str]:
    return {f"kafka.{name}": value for name, value in options.items()}
