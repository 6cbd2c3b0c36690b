"""Rows into blobs and back, so that Spark moves a few rows however many records there are.

A row that crosses from the JVM into `transformWithState` becomes a Python object with names; a blob crosses as it is.
The blobs are Arrow IPC streams: they keep nulls, slices and the order of several batches right by themselves.
"""

from collections.abc import Iterable, Iterator
from tempfile import SpooledTemporaryFile
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from marq.core.records import Letter

CHUNK_BYTES = 4 << 20  # of one value: the JVM copies each several times, and its heap is small
SPOOL_BYTES = 64 << 20

RECORDS = pa.schema([("offset", pa.int64()), ("timestamp", pa.int64()), ("value", pa.binary())])
HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
LETTERS = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(HEADER)),
    ]
)


class MarkerRecord(NamedTuple):
    """A record of the markers topic, as the ledger takes it."""

    offset: int
    timestamp: int
    value: bytes | None


def pack_records(batches: Iterable[Any]) -> Iterator[Any]:
    """Arrow batches of (mp, offset, timestamp, value) as rows of (mp, first, records), the order kept within an mp."""
    waiting: dict[int, list[Any]] = {}
    sizes: dict[int, int] = {}
    for batch in batches:
        for markers_partition, part in _by_partition(batch):
            waiting.setdefault(markers_partition, []).append(part)
            sizes[markers_partition] = sizes.get(markers_partition, 0) + part.nbytes
            if sizes[markers_partition] >= CHUNK_BYTES:
                sizes[markers_partition] = 0
                yield _packed(markers_partition, waiting.pop(markers_partition))
    for markers_partition, parts in waiting.items():
        yield _packed(markers_partition, parts)


def _by_partition(batch: Any) -> Iterator[tuple[int, Any]]:
    """Spark reads one Kafka partition per task unless it was told otherwise, so nearly always there is one part."""
    columns = batch.select(RECORDS.names)
    partitions = batch.column("mp").unique().to_pylist()
    if len(partitions) == 1:
        yield partitions[0], columns
        return
    for markers_partition in partitions:
        yield markers_partition, columns.filter(pc.call_function("equal", [batch.column("mp"), markers_partition]))


def _packed(markers_partition: int, parts: list[Any]) -> Any:
    first = parts[0].column("offset")[0].as_py()
    return pa.RecordBatch.from_arrays(
        [
            pa.array([markers_partition], pa.int32()),
            pa.array([first], pa.int64()),
            pa.array([_to_stream(RECORDS, parts)], pa.binary()),
        ],
        names=["mp", "first", "records"],
    )


def in_order(rows: Iterable[Any]) -> Iterator[MarkerRecord]:
    """The records of packed rows, which come in any order. A batch may be large, so what is much waits in a file."""
    with SpooledTemporaryFile(max_size=SPOOL_BYTES) as spool:
        places = []
        for row in rows:
            places.append((int(row.first), spool.tell()))
            spool.write(len(row.records).to_bytes(8))
            spool.write(row.records)
        for _, place in sorted(places):
            spool.seek(place)
            yield from unpack_records(spool.read(int.from_bytes(spool.read(8))))


def unpack_records(blob: bytes) -> Iterator[MarkerRecord]:
    """The records of a blob, in order."""
    for batch in _from_stream(blob):
        columns = (batch.column(name).to_pylist() for name in RECORDS.names)
        yield from map(MarkerRecord._make, zip(*columns, strict=True))


def pack_letters(letters: Iterable[Letter]) -> Iterator[bytes]:
    """Letters as blobs of bounded size."""
    rows: list[Letter] = []
    size = 0
    for letter in letters:
        rows.append(letter)
        size += letter.size
        if size >= CHUNK_BYTES:
            yield _letter_blob(rows)
            rows, size = [], 0
    if rows:
        yield _letter_blob(rows)


def _letter_blob(letters: list[Letter]) -> bytes:
    headers = [[{"key": name, "value": value} for name, value in letter.headers] for letter in letters]
    columns = [
        pa.array([letter.topic for letter in letters], pa.string()),
        pa.array([letter.partition for letter in letters], pa.int32()),
        pa.array([letter.key for letter in letters], pa.binary()),
        pa.array([letter.value for letter in letters], pa.binary()),
        pa.array(headers, pa.list_(HEADER)),
    ]
    return _to_stream(LETTERS, [pa.RecordBatch.from_arrays(columns, schema=LETTERS)])


def unpack_letters(blob: bytes) -> Iterator[Any]:
    """The letters of a blob as Arrow batches, ready for the Kafka sink."""
    return _from_stream(blob)


def _to_stream(schema: Any, batches: list[Any]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch.cast(schema) if batch.schema != schema else batch)
    return bytes(sink.getvalue())


def _from_stream(blob: bytes) -> Iterator[Any]:
    with pa.ipc.open_stream(blob) as reader:
        yield from reader
