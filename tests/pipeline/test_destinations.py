"""Letters whose topic or partition is gone still arrive somewhere."""

import random
from typing import ClassVar

import pyarrow as pa
import pytest

from marq.core.records import Letter
from marq.pipeline import destinations
from marq.pipeline.destinations import Destinations, Topic, settle
from marq.pipeline.packing import pack_letters, unpack_letters


def arrow(*letters):
    (blob,) = pack_letters(letters)
    (batch,) = unpack_letters(blob)
    return batch


def test_a_place_that_exists_is_kept():
    letters = arrow(Letter("orders", 1, b"k", b"v", [("h", None)]), Letter("orders", None, None, None, []))
    settled = settle(letters, {"orders": Topic(2)}, "dead")
    assert settled.select(letters.schema.names) == letters
    assert settled.column("orphan").to_pylist() == [False, False]


def test_a_partition_that_is_gone_becomes_any():
    settled = settle(arrow(Letter("orders", 5, b"k", b"v", [])), {"orders": Topic(2)}, "dead")
    (row,) = settled.to_pylist()
    assert (row["topic"], row["partition"], row["key"], row["orphan"]) == ("orders", None, b"k", False)


def test_a_letter_without_a_topic_is_a_dead_letter_that_says_so():
    letters = arrow(
        Letter("gone", 0, b"k", b"v", [("h", b"1")]),
        Letter("gone", None, None, None, [("marq-reason", b"lease expired")]),
        Letter("orders", 0, None, b"w", []),
    )
    settled = settle(letters, {"gone": Topic(0), "orders": Topic(1), "dead": Topic(1)}, "dead")
    first, second, third = settled.to_pylist()
    assert (first["topic"], first["partition"], first["key"], first["value"]) == ("dead", None, b"k", b"v")
    assert first["headers"] == [
        {"key": "h", "value": b"1"},
        {"key": "marq-reason", "value": b"topic gone does not exist"},
    ]
    assert second["headers"] == [{"key": "marq-reason", "value": b"lease expired; topic gone does not exist"}]
    assert (third["topic"], third["partition"], third["orphan"]) == ("orders", 0, False)
    assert [first["orphan"], second["orphan"]] == [True, True]


TOPICS = {
    "orders": Topic(1, 1000),
    "roomy": Topic(1, None),
    "dead": Topic(1, 3000),
    "__consumer_offsets": Topic(50, 10**6),
    "__mine": Topic(1, 1000),
}


@pytest.mark.parametrize(
    ("topic", "value", "where", "why"),
    [
        ("orders", b"v", "orders", None),
        ("__mine", b"v", "__mine", None),
        ("__consumer_offsets", b"v", "dead", b"topic __consumer_offsets is Kafka's own"),
        ("orders", random.Random(1).randbytes(1000), "dead", b"larger than topic orders takes (1000 bytes)"),
        ("orders", b"v" * 10_000, "orders", None),  # the sink compresses
        ("roomy", random.Random(1).randbytes(9000), "roomy", None),
    ],
)
def test_what_a_topic_cannot_take_is_a_dead_letter_that_says_so(topic, value, where, why):
    other = Letter("orders", 0, None, b"w", [])
    settled = settle(arrow(Letter(topic, 0, b"k", value, [("h", b"1")]), other), TOPICS, "dead")
    first, second = settled.to_pylist()
    assert (first["topic"], first["value"], first["unwritable"]) == (where, value, None)
    assert {each["key"]: each["value"] for each in first["headers"]}.get("marq-reason") == why
    assert first["orphan"] == (why is not None)
    assert (second["topic"], second["partition"], second["orphan"]) == ("orders", 0, False)


@pytest.mark.parametrize(
    ("topic", "headers", "said"),
    [
        (
            "orders",
            [("marq-id", b"orders/0/7")],
            "orders/0/7: larger than topic orders takes (1000 bytes); larger than topic dead takes (3000 bytes)",
        ),
        ("dead", [("marq-id", None)], "a letter without an id: larger than topic dead takes (3000 bytes)"),
    ],
)
def test_what_no_topic_can_take_is_left_out_and_named(topic, headers, said):
    large = Letter(topic, 0, b"k", random.Random(1).randbytes(5000), headers)
    settled = settle(arrow(large, Letter("orders", 0, None, b"w", [])), TOPICS, "dead")
    first, second = settled.to_pylist()
    assert (first["unwritable"], first["orphan"]) == (said, False)
    assert (first["key"], first["value"], first["headers"]) == (None, None, [])
    assert (second["topic"], second["value"], second["unwritable"]) == ("orders", b"w", None)


def test_without_a_dead_letter_topic_nothing_is_left_out():
    (row,) = settle(arrow(Letter("gone", 0, None, b"v", [])), {"gone": Topic(0), "dead": Topic(0)}, "dead").to_pylist()
    assert (row["topic"], row["value"], row["unwritable"]) == ("dead", b"v", None)


class FakeTransport:
    """A cluster of which one can see how often it was asked."""

    topics: ClassVar[dict[str, int]] = {}
    asked: ClassVar[list[str]] = []
    limits: ClassVar[dict[str, int]] = {}

    def __init__(self, url, kafka=None):
        self.url = url

    def partitions(self, topic):
        self.asked.append(topic)
        return self.topics.get(topic, 0)

    def bytes_max(self, topic):
        return self.limits.get(topic)

    def close(self):
        pass


@pytest.fixture
def cluster(monkeypatch):
    monkeypatch.setattr(destinations, "KafkaTransport", FakeTransport)
    monkeypatch.setattr(FakeTransport, "topics", {"orders": 2, "dead": 1})
    monkeypatch.setattr(FakeTransport, "asked", [])
    monkeypatch.setattr(FakeTransport, "limits", {"orders": 1000, "dead": 3000})
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
    assert sorted(cluster.asked) == ["dead", "orders"]


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


def test_limits_are_looked_up_with_the_topics(cluster):
    assert routed([Letter("orders", 0, None, random.Random(1).randbytes(2000), [])]) == [("dead", None)]
