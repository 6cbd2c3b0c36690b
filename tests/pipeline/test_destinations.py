"""Letters whose topic or partition is gone still arrive somewhere."""

from typing import ClassVar

import pyarrow as pa
import pytest

from marq.core.records import Letter
from marq.pipeline import destinations
from marq.pipeline.destinations import Destinations, settle
from marq.pipeline.packing import pack_letters, unpack_letters


def arrow(*letters):
    (blob,) = pack_letters(letters)
    (batch,) = unpack_letters(blob)
    return batch


def test_a_place_that_exists_is_kept():
    letters = arrow(Letter("orders", 1, b"k", b"v", [("h", None)]), Letter("orders", None, None, None, []))
    settled = settle(letters, {"orders": 2}, "dead")
    assert settled.select(letters.schema.names) == letters
    assert settled.column("orphan").to_pylist() == [False, False]


def test_a_partition_that_is_gone_becomes_any():
    settled = settle(arrow(Letter("orders", 5, b"k", b"v", [])), {"orders": 2}, "dead")
    (row,) = settled.to_pylist()
    assert (row["topic"], row["partition"], row["key"], row["orphan"]) == ("orders", None, b"k", False)


def test_a_letter_without_a_topic_is_a_dead_letter_that_says_so():
    letters = arrow(
        Letter("gone", 0, b"k", b"v", [("h", b"1")]),
        Letter("gone", None, None, None, [("marq-reason", b"lease expired")]),
        Letter("orders", 0, None, b"w", []),
    )
    settled = settle(letters, {"gone": 0, "orders": 1}, "dead")
    first, second, third = settled.to_pylist()
    assert (first["topic"], first["partition"], first["key"], first["value"]) == ("dead", None, b"k", b"v")
    assert first["headers"] == [
        {"key": "h", "value": b"1"},
        {"key": "marq-reason", "value": b"topic gone does not exist"},
    ]
    assert second["headers"] == [{"key": "marq-reason", "value": b"lease expired; topic gone does not exist"}]
    assert (third["topic"], third["partition"], third["orphan"]) == ("orders", 0, False)
    assert [first["orphan"], second["orphan"]] == [True, True]


class FakeTransport:
    """A cluster of which one can see how often it was asked."""

    topics: ClassVar[dict[str, int]] = {}
    asked: ClassVar[list[str]] = []

    def __init__(self, url, kafka=None):
        self.url = url

    def partitions(self, topic):
        self.asked.append(topic)
        return self.topics.get(topic, 0)

    def close(self):
        pass


@pytest.fixture
def cluster(monkeypatch):
    monkeypatch.setattr(destinations, "KafkaTransport", FakeTransport)
    monkeypatch.setattr(FakeTransport, "topics", {"orders": 2, "dead": 1})
    monkeypatch.setattr(FakeTransport, "asked", [])
    monkeypatch.setattr(destinations, "_known", {})
    monkeypatch.setattr(destinations, "_known_in", [0])
    return FakeTransport


def routed(letters, generation=1):
    batch = pa.RecordBatch.from_pydict({"letters": list(pack_letters(letters))})
    out = Destinations("broker:9092", "dead", {}, generation).route([batch])
    return [(row["topic"], row["partition"]) for each in out for row in each.to_pylist()]


def test_topics_are_looked_up_once(cluster):
    letters = [Letter("orders", 1, None, b"v", []), Letter("orders", None, None, b"v", [])]
    assert routed(letters) == [("orders", 1), ("orders", None)]
    assert routed(letters) == [("orders", 1), ("orders", None)]
    assert cluster.asked == ["orders"]


def test_a_partition_beyond_what_is_known_is_asked_for_again(cluster):
    routed([Letter("orders", 0, None, b"v", [])])
    cluster.topics["orders"] = 4
    assert routed([Letter("orders", 3, None, b"v", [])]) == [("orders", 3)]


def test_a_topic_made_later_is_found(cluster):
    letters = [Letter("late", 0, None, b"v", [])]
    assert routed(letters) == [("dead", None)]
    cluster.topics["late"] = 1
    assert routed(letters) == [("late", 0)]


def test_after_a_restart_a_topic_that_vanished_is_noticed(cluster):
    letters = [Letter("orders", 0, None, b"v", [])]
    routed(letters)
    del cluster.topics["orders"]
    assert routed(letters, generation=2) == [("dead", None)]
