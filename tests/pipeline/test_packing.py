"""Packing: whatever Arrow hands over, the ledger gets each partition's records whole and in order."""

from unittest.mock import patch

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row

from marq.core.records import Letter
from marq.pipeline import packing
from marq.pipeline.packing import MarkerRecord, in_order, pack_letters, pack_records, unpack_letters, unpack_records

SOURCE = pa.schema([("mp", pa.int32()), ("offset", pa.int64()), ("timestamp", pa.int64()), ("value", pa.binary())])

Rows = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 2**50), st.integers(0, 2**41), st.none() | st.binary(max_size=20)),
    max_size=30,
)


def batch_of(rows, schema=SOURCE):
    columns = list(zip(*rows, strict=True)) or [[], [], [], []]
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
    )


def unpacked(packed):
    """What the ledger of each partition would see."""
    seen = {}
    for batch in packed:
        for row in batch.to_pylist():
            records = list(unpack_records(row["records"]))
            assert row["first"] == records[0].offset
            seen.setdefault(row["mp"], []).extend(records)
    return seen


def by_partition(rows):
    seen = {}
    for mp, *record in rows:
        seen.setdefault(mp, []).append(MarkerRecord(*record))
    return seen


@settings(deadline=None)  # Arrow takes its time at the first call
@given(st.lists(Rows, max_size=4))
def test_records_come_back_in_order_per_partition(batches):
    assert unpacked(pack_records(map(batch_of, batches))) == by_partition([row for rows in batches for row in rows])


@settings(deadline=None)  # Arrow takes its time at the first call
@given(Rows, st.integers(0, 10), st.integers(0, 10))
def test_slices_keep_to_their_own_rows(rows, start, length):
    part = batch_of(rows).slice(start, length)
    assert unpacked(pack_records([part])) == by_partition(rows[start : start + length])


def test_one_partition_in_several_batches_is_one_row():
    rows = [(3, offset, 7, b"x") for offset in range(5)]
    packed = list(pack_records([batch_of(rows[:2]), batch_of(rows[2:])]))
    assert [batch.num_rows for batch in packed] == [1]


def test_large_values_are_accepted():
    large = pa.schema([*list(SOURCE)[:3], ("value", pa.large_binary())])
    assert unpacked(pack_records([batch_of([(0, 1, 2, b"y")], large)])) == {0: [(1, 2, b"y")]}


def test_much_is_cut_into_pieces(monkeypatch):
    monkeypatch.setattr(packing, "CHUNK_BYTES", 100)
    rows = [(0, offset, 7, b"x" * 60) for offset in range(5)]
    packed = list(pack_records(batch_of([row]) for row in rows))
    assert [batch.column("first")[0].as_py() for batch in packed] == [0, 2, 4]
    assert unpacked(packed) == by_partition(rows)


@settings(deadline=None)  # Arrow takes its time at the first call
@given(st.lists(st.binary(max_size=200), max_size=12), st.randoms(), st.sampled_from([1, 100, 1 << 20]))
def test_packed_rows_in_any_order_give_records_in_order(values, chance, spooled):
    records = [(0, offset, 7, value) for offset, value in enumerate(values)]
    with patch.object(packing, "CHUNK_BYTES", 100), patch.object(packing, "SPOOL_BYTES", spooled):
        rows = [Row(**row) for each in pack_records(batch_of([r]) for r in records) for row in each.to_pylist()]
        chance.shuffle(rows)
        assert list(in_order(iter(rows))) == [MarkerRecord(*record) for _, *record in records]


Letters = st.builds(
    Letter,
    st.sampled_from(["orders", "dead"]),
    st.none() | st.integers(0, 9),
    st.none() | st.binary(max_size=5),
    st.none() | st.binary(max_size=50),
    st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3),
)


def letters_in(blob):
    for batch in unpack_letters(blob):
        for row in batch.to_pylist():
            headers = [(header["key"], header["value"]) for header in row["headers"]]
            yield Letter(row["topic"], row["partition"], row["key"], row["value"], headers)


@settings(deadline=None)  # Arrow takes its time at the first call
@given(st.lists(Letters, max_size=10))
def test_letters_come_back_as_they_were(letters):
    assert [letter for blob in pack_letters(letters) for letter in letters_in(blob)] == letters


def test_many_letters_are_cut_into_pieces(monkeypatch):
    monkeypatch.setattr(packing, "CHUNK_BYTES", 300)
    letters = [Letter("orders", 0, None, b"x" * 60, []) for _ in range(3)]
    letters += [Letter("orders", 0, None, None, [("h", b"x" * 60)]) for _ in range(2)]
    blobs = list(pack_letters(letters))
    assert [len(list(letters_in(blob))) for blob in blobs] == [2, 2, 1], "headers weigh too"
