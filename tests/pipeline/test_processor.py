"""The ledger in Spark's hands gives out what the ledger alone gives out."""

import json
import random
from itertools import pairwise

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.tws_tester import TwsTester

from marq.core.ledger import Ledger
from marq.core.records import Kind, Letter, Marker, encode
from marq.core.shelf import DictShelf
from marq.pipeline.packing import pack_records, unpack_letters
from marq.pipeline.tracker import LedgerProcessor

MARKERS = "marq.markers"
NOON = 1_800_000_000_000


def start(offset, after, **said):
    usual = {"queue": "q", "topic": "orders", "partition": 1, "owner": "me", "attempts": [1]}
    payload = {"keys": [b"k"], "values": [b"v%d" % offset], "timestamps": [NOON], "headers": [[("h", b"1")]]}
    return Marker(Kind.START, offsets=[offset], redeliver_after_ms=[after], **usual | payload | said)


def said_of(kind, *offsets, **said):
    return Marker(kind, queue="q", topic="orders", partition=1, offsets=list(offsets), owner="me", **said)


def rows_of(markers_partition, records):
    """What Spark would hand to the processor: packed rows, in any order."""
    schema = pa.schema([("mp", pa.int32()), ("offset", pa.int64()), ("timestamp", pa.int64()), ("value", pa.binary())])
    rows = []
    for piece in (records[: len(records) // 2], records[len(records) // 2 :]):
        columns = list(zip(*((markers_partition, *record) for record in piece), strict=True)) or [[], [], [], []]
        batch = pa.RecordBatch.from_arrays(
            [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema
        )
        rows += [Row(**row) for packed in pack_records([batch]) for row in packed.to_pylist()]
    return list(reversed(rows))


def through_spark(tester, markers_partition, records):
    """Letters, markers and the report of one batch."""
    out = tester.test(markers_partition, rows_of(markers_partition, records))
    assert all(row.mp == markers_partition for row in out)
    reports = [json.loads(row.report) for row in out if row.report is not None]
    assert len(reports) == 1
    letters, markers = [], []
    for row in out:
        for batch in unpack_letters(row.letters) if row.letters is not None else ():
            for each in batch.to_pylist():
                headers = [(header["key"], header["value"]) for header in each["headers"]]
                letter = Letter(each["topic"], each["partition"], each["key"], each["value"], headers)
                (markers if letter.topic == MARKERS else letters).append(letter)
    return letters, markers, reports[0]


def through_the_ledger(shelf, gate, records):
    ledger = Ledger(shelf, gate=gate)
    for record in records:
        ledger.apply(*record)
    harvest = ledger.collect()
    ledger.save()
    return harvest, ledger


def history(seed):
    """A life of many messages: batches of (offset, timestamp, value)."""
    chance = random.Random(seed)
    now, offset = NOON, 0
    for _ in range(40):
        records = []
        for _ in range(chance.randint(1, 6)):
            now += chance.randint(0, 2_000)
            message = chance.randint(0, 30)
            marker = chance.choice(
                [
                    start(message, chance.choice([500, 5_000, 200_000, 90_000_000]), owner=chance.choice(["me", ""])),
                    start(message, 1_000, attempts=[5], max_attempts=5, dead_letter_topic="marq.dead"),
                    said_of(Kind.END, message),
                    said_of(Kind.KEEPALIVE, message, redeliver_after_ms=[5_000]),
                    said_of(Kind.RETRY, message, redeliver_after_ms=[700], attempts=[2], waiting=True),
                    Marker(Kind.TICK),
                ]
            )
            value = chance.choice([encode(marker), encode(marker), encode(marker), b"\xff", None])
            records.append((offset, now, value))
            offset += chance.randint(1, 3)
        now += chance.choice([0, 0, 5_000, 90_000_000])
        yield records


def test_spark_and_the_ledger_alone_give_out_the_same():
    given_out = 0
    for seed in range(5):
        tester = TwsTester(LedgerProcessor(MARKERS, {1: 20}))
        shelf = DictShelf()
        for records in history(seed):
            letters, markers, report = through_spark(tester, 1, records)
            harvest, ledger = through_the_ledger(shelf, 20, records)
            assert letters == harvest.letters
            assert [marker.value for marker in markers] == harvest.markers
            assert all((marker.partition, marker.key, marker.headers) == (1, None, []) for marker in markers)
            assert report["due"] == harvest.next_due
            assert (report["hot"], report["cold"], report["now"]) == (ledger.hot, ledger.cold, ledger.now)
            assert (report["redelivered"], report["dead"]) == (harvest.redelivered, harvest.dead)
            assert report["late_max"] == max(harvest.lateness_ms, default=None)
            assert report["counts"] == dict(ledger.counts)
            stored = {key[0]: bytes(value[0]) for key, value in tester.peekMapState("shelf", 1).items()}
            assert stored == dict(shelf)
            given_out += len(letters)
    assert given_out > 100


def test_nothing_leaves_before_the_gate():
    records = [(0, NOON, encode(start(7, 1_000))), (1, NOON + 60_000, encode(Marker(Kind.TICK)))]
    tester = TwsTester(LedgerProcessor(MARKERS, {0: 2}))
    letters, _, report = through_spark(tester, 0, records)
    assert (letters, report["open"]) == ([], False)
    letters, _, report = through_spark(tester, 0, [(2, NOON + 60_001, encode(Marker(Kind.TICK)))])
    assert ([letter.value for letter in letters], report["open"]) == ([b"v7"], True)


def test_what_ended_before_the_gate_never_leaves():
    records = [
        (0, NOON, encode(start(7, 1_000))),
        (1, NOON + 60_000, encode(Marker(Kind.TICK))),
        (2, NOON + 60_001, encode(said_of(Kind.END, 7))),
    ]
    tester = TwsTester(LedgerProcessor(MARKERS, {0: 3}))
    for (batch, _), offset in zip(pairwise([*([r] for r in records), None]), range(3), strict=True):
        letters, _, report = through_spark(tester, 0, batch)
        assert (letters, report["offset"]) == ([], offset)
    letters, _, report = through_spark(tester, 0, [(3, NOON + 99_000, encode(Marker(Kind.TICK)))])
    assert (letters, report["open"]) == ([], True)


def test_a_partition_without_a_gate_is_open_from_the_start():
    tester = TwsTester(LedgerProcessor(MARKERS, {}))
    _, _, report = through_spark(tester, 5, [(0, NOON, encode(Marker(Kind.TICK)))])
    assert report == {
        "mp": 5,
        "offset": 0,
        "now": NOON,
        "due": None,
        "open": True,
        "hot": 0,
        "cold": 0,
        "redelivered": 0,
        "dead": 0,
        "late_p50": None,
        "late_max": None,
        "counts": {},
    }


def test_partitions_know_nothing_of_each_other():
    tester = TwsTester(LedgerProcessor(MARKERS, {}))
    through_spark(tester, 0, [(0, NOON, encode(start(1, 1_000)))])
    letters, _, report = through_spark(tester, 1, [(0, NOON + 60_000, encode(Marker(Kind.TICK)))])
    assert (letters, report["hot"]) == ([], 0)
    letters, _, _ = through_spark(tester, 0, [(1, NOON + 60_000, encode(Marker(Kind.TICK)))])
    assert [letter.value for letter in letters] == [b"v1"]
