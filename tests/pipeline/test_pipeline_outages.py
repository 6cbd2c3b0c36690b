"""What breaks around the pipeline mends without it: a broker that is away, a topic that vanishes under a letter."""

import threading

import pytest
from confluent_kafka.admin import AdminClient

from marq.core.records import Kind, Marker, encode, stream_key
from marq.settings import TopicSettings
from marq.stack.kafka import KafkaServer
from marq.transport.base import TopicSpec
from marq.transport.kafka import KafkaTransport

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.chaos, pytest.mark.timeout(300)]

TOPICS = TopicSettings(prefix="outage")
BROKER_TIME = {"message.timestamp.type": "LogAppendTime"}
AWAY_SECONDS = 10


@pytest.fixture
def broker():
    """A broker of this test's own, because it will be killed."""
    with KafkaServer() as server:
        yield server


@pytest.fixture
def transport(broker):
    transport = KafkaTransport(broker.bootstrap)
    names = ("outage.orders", "outage.doomed", TOPICS.dead)
    transport.ensure_topics([TopicSpec(TOPICS.markers, 2, 1, BROKER_TIME), *(TopicSpec(name, 1, 1) for name in names)])
    yield transport
    transport.close()


def lease(transport, topic, offset, after_ms):
    marker = Marker(
        Kind.START,
        queue="q",
        topic=topic,
        partition=0,
        offsets=[offset],
        owner="me",
        redeliver_after_ms=[after_ms],
        attempts=[1],
        values=[b"%d" % offset],
    )
    publisher = transport.publisher()
    errors = []
    publisher.publish(
        TOPICS.markers,
        encode(marker),
        key=stream_key("q", topic, 0),
        partition=0,
        report=lambda error, _: errors.append(error),
    )
    publisher.flush(60)
    assert errors == [None]


def test_the_pipeline_outlives_a_broker_and_a_topic(broker, transport, start_pipeline, eventually, tmp_path):
    pipeline = start_pipeline(TOPICS.prefix, tmp_path / "checkpoint", bootstrap=broker.bootstrap)
    pipeline.await_ready()

    # The broker dies with a lease pending, and is back after a while.
    lease(transport, "outage.orders", 0, 3_000)
    broker.kill()
    threading.Event().wait(AWAY_SECONDS)
    broker.start()
    eventually(lambda: transport.end_offsets("outage.orders") == {0: 1}, 60)
    lease(transport, "outage.orders", 1, 1_000)
    eventually(lambda: transport.end_offsets("outage.orders") == {0: 2}, 15)

    # A topic is deleted after the pipeline has come to know it: at worst one batch fails, and the next knows better.
    lease(transport, "outage.doomed", 2, 500)
    eventually(lambda: transport.end_offsets("outage.doomed") == {0: 1}, 15)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics(["outage.doomed"])["outage.doomed"].result()
    lease(transport, "outage.doomed", 3, 500)
    lease(transport, "outage.orders", 4, 500)
    eventually(lambda: transport.end_offsets(TOPICS.dead) == {0: 1}, 90)
    # Twice when it shared the batch that failed: the letter is the same, with the same id and attempt.
    eventually(lambda: transport.end_offsets("outage.orders")[0] in {3, 4}, 15)
    eventually(lambda: pipeline.status["orphans"] == 1)

    # What it cannot mend it says.
    assert pipeline.stop() == 0
    transport.ensure_topics([TopicSpec("other.markers", 1, 1, BROKER_TIME)])
    stranger = start_pipeline("other", tmp_path / "checkpoint", bootstrap=broker.bootstrap)
    assert "belongs to topic outage.markers" in stranger.await_error()
    for entry in (tmp_path / "checkpoint" / "tracker" / "offsets").glob("[0-9]*"):
        entry.write_text("")
    broken = start_pipeline(TOPICS.prefix, tmp_path / "checkpoint", bootstrap=broker.bootstrap)
    assert "Start with a new, empty checkpoint folder" in broken.await_error()
