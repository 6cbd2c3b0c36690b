"""The Kafka transport against a real broker: what the contract's queue does not show."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from marq.errors import ConfigurationError, MessageTooLargeError, TransportError
from marq.stack.kafka import KafkaServer
from marq.transport.base import Assigned, Commit, Place, TopicSpec
from marq.transport.kafka import KafkaTransport

pytestmark = pytest.mark.broker


class Ear:
    def __init__(self) -> None:
        self.assigned: list[Assigned] = []
        self.revoked: list[Place] = []

    def on_assigned(self, partitions: list[Assigned]) -> None:
        self.assigned += partitions

    def on_revoked(self, places: list[Place]) -> None:
        self.revoked += places

    def on_lost(self, places: list[Place]) -> None:
        raise AssertionError(places)

    def on_commit_failed(self) -> None:
        raise AssertionError("no commit fails here")


@pytest.fixture
def transport(kafka_server: KafkaServer) -> Iterator[KafkaTransport]:
    made = KafkaTransport(kafka_server.bootstrap)
    yield made
    made.close()


@pytest.fixture
def topic(transport: KafkaTransport) -> str:
    name = f"t{uuid.uuid4().hex[:10]}"
    transport.ensure_topics([TopicSpec(name, 2, config={"max.message.bytes": "2000"})])
    return name


@pytest.mark.parametrize("key", ["acks", "enable.idempotence", "enable.auto.commit", "group.id"])
def test_what_the_guarantees_rest_on_cannot_be_set(key: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{key} cannot be set"):
        KafkaTransport("localhost:9092", {key: "1"})


def test_what_the_broker_refuses_is_told_in_the_report(transport: KafkaTransport, topic: str) -> None:
    publisher = transport.publisher()
    told: list[Any] = []
    # Of one partition they might travel as one batch, which the broker refuses as a whole.
    publisher.publish(topic, b"x" * 5_000, partition=0, report=lambda error, _: told.append(error))
    publisher.publish(topic, b"fits", partition=1, report=lambda error, _: told.append(error))
    assert publisher.flush(20) == 0
    assert sum(error is None for error in told) == 1
    [error] = [publisher.error(error) for error in told if error is not None]
    assert isinstance(error, MessageTooLargeError)
    assert sum(transport.end_offsets(topic).values()) == 1


def test_how_much_a_topic_takes(transport: KafkaTransport, topic: str) -> None:
    assert transport.bytes_max(topic) == 2000
    assert transport.bytes_max("there-is-no-such-topic") is None


def test_a_partition_that_is_not_there_is_told_in_the_report(transport: KafkaTransport, topic: str) -> None:
    publisher = transport.publisher()
    told: list[Any] = []
    try:
        publisher.publish(topic, b"x", partition=9, report=lambda error, _: told.append(publisher.error(error)))
    except TransportError as error:  # once the topic's partitions are known it is refused at once
        told.append(error)
    assert publisher.flush(20) == 0
    assert isinstance(told[0], TransportError)
    assert "Create the topic, or correct its name." in str(told[0])


def test_two_topics_come_in_runs_of_one_partition_each(transport: KafkaTransport, topic: str) -> None:
    other = f"{topic}-other"
    transport.ensure_topics([TopicSpec(other, 1)])
    publisher = transport.publisher()
    for number in range(10):
        publisher.publish(topic, b"%d" % number, b"k", [("h", b"1")], partition=number % 2, timestamp=1_000 + number)
        publisher.publish(other, b"%d" % number)
    assert publisher.flush(20) == 0
    ear = Ear()
    subscription = transport.subscription(topic, [topic, other], ear, session_timeout=10)
    seen: dict[Place, list[Any]] = {}
    try:
        while sum(map(len, seen.values())) < 20:
            for run in subscription.poll(100, 1):
                seen.setdefault((run.topic, run.partition), []).extend(run.records)
                assert {(record.topic(), record.partition()) for record in run.records} == {(run.topic, run.partition)}
                assert list(run.values) == [record.value() for record in run.records]
                assert list(run.keys) == [record.key() for record in run.records]
        assert set(seen) == {(topic, 0), (topic, 1), (other, 0)}
        assert [record.offset() for record in seen[topic, 0]] == [0, 1, 2, 3, 4]
        first = seen[topic, 0][0]
        assert (first.key(), first.headers(), first.timestamp()) == (b"k", [("h", b"1")], (1, 1_000))
        assert sorted(ear.assigned) == sorted(Assigned(*place, 0, None) for place in seen)
        subscription.commit({(topic, 0): Commit(3, "note")}, wait=True)
    finally:
        subscription.close()
    assert sorted(ear.revoked) == sorted(seen)
    again = Ear()
    subscription = transport.subscription(topic, [topic], again, session_timeout=10)
    try:
        while not again.assigned:
            subscription.poll(1, 0.1)
        assert Assigned(topic, 0, 3, "note") in again.assigned
    finally:
        subscription.close()
