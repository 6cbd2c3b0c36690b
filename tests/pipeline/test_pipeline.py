"""The pipeline on a real broker: what is late comes back, what ended does not, whichever process dies."""

import shutil
from collections import defaultdict
from itertools import count

import pytest

from marq.core.records import Kind, Marker, decode, encode, provenance, stream_key
from marq.settings import TopicSettings
from marq.transport.base import TopicSpec
from marq.transport.kafka import KafkaTransport

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(200)]

BROKER_TIME = {"message.timestamp.type": "LogAppendTime"}
LATE_MS_MAX = 5_000  # a loaded machine's; the heartbeat alone would take up to 15 s
NO_MARKER = b"\xff no marker"
numbers = count()


class Listening:
    """Everything on some topics, from the beginning."""

    def on_assigned(self, partitions):
        pass

    def on_revoked(self, places):
        pass

    def on_lost(self, places):
        pass

    def on_commit_failed(self):
        pass


class World:
    """Topics of a test's own, a producer of markers and a reader of everything."""

    def __init__(self, bootstrap):
        self.number = next(numbers)
        self.topics = TopicSettings(prefix=f"p{self.number}")
        self.orders = f"p{self.number}.orders"
        self.transport = KafkaTransport(bootstrap)
        self.transport.ensure_topics(
            [
                TopicSpec(self.topics.markers, 2, 1, BROKER_TIME),
                TopicSpec(self.orders, 3, 1, BROKER_TIME),
                TopicSpec(self.topics.dead, 1, 1),
            ]
        )
        self.publisher = self.transport.publisher()
        self.reader = self.transport.subscription(
            f"reader-{self.number}",
            [self.orders, self.topics.dead, self.topics.markers],
            Listening(),
            session_timeout=10.0,
        )
        self.letters = defaultdict(list)  # by topic
        self.markers = []
        self.deadlines = {}

    def close(self):
        self.reader.close()
        self.transport.close()

    def mark(self, marker, wait=True):
        """Write a marker; its broker timestamp."""
        times = []
        key = stream_key(marker.queue, marker.topic, marker.partition)
        self.publisher.publish(
            self.topics.markers,
            encode(marker),
            key=key,
            partition=marker.partition % 2,
            report=lambda error, record: times.append((error, record.timestamp()[1])),
        )
        self.publisher.flush(10)
        ((error, time),) = times
        assert not error
        return time

    def lease(self, offset, after_ms, partition=None, **said):
        partition = offset % 3 if partition is None else partition
        marker = Marker(
            Kind.START,
            queue="q",
            topic=said.pop("topic", self.orders),
            partition=partition,
            offsets=[offset],
            owner="me",
            redeliver_after_ms=[after_ms],
            attempts=[said.pop("attempt", 1)],
            max_attempts=5,
            dead_letter_topic=self.topics.dead,
            keys=[b"key-%d" % offset],
            values=[b"value-%d" % offset],
            headers=[[("user", b"x"), ("empty", None)]],
            timestamps=[1_700_000_000_000],
            **said,
        )
        self.deadlines[b"value-%d" % offset] = self.mark(marker) + after_ms

    def end(self, offset):
        marker = Marker(Kind.END, queue="q", topic=self.orders, partition=offset % 3, offsets=[offset], owner="me")
        self.mark(marker)

    def read(self):
        for run in self.reader.poll(1000, 0.1):
            for record in run.records:
                if run.topic == self.topics.markers and record.value() == NO_MARKER:
                    continue
                if run.topic == self.topics.markers:
                    self.markers.append((run.partition, decode(record.value())))
                else:
                    self.letters[run.topic].append(record)

    def values(self, topic=None):
        self.read()
        return sorted(record.value() for record in self.letters[topic or self.orders])

    def of_kind(self, kind):
        self.read()
        return [
            (partition, offset)
            for partition, marker in self.markers
            if marker.kind == kind
            for offset in marker.offsets
        ]

    def lateness(self):
        """Of each letter, on the broker's clock. Of a topic with the broker's timestamps, that is."""
        return [record.timestamp()[1] - self.deadlines[record.value()] for record in self.letters[self.orders]]


@pytest.fixture
def world(kafka_server):
    world = World(kafka_server.bootstrap)
    yield world
    world.close()


def named(*offsets):
    return [b"value-%d" % offset for offset in sorted(offsets)]


def test_a_lease_that_runs_out_comes_back_and_the_pipeline_survives_its_deaths(
    world, start_pipeline, eventually, tmp_path
):
    """One test, because each start of Spark costs ten seconds: three lives of a pipeline, one after the other."""
    checkpoint = tmp_path / "checkpoint"
    pipeline = start_pipeline(world.topics.prefix, checkpoint)
    assert pipeline.await_ready()["batches"] >= 1
    what_is_not_ended_in_time_comes_back(world, eventually)
    what_cannot_come_back_is_a_dead_letter(world, pipeline, eventually)

    world.lease(10, 25_000)
    world.lease(11, 3_000)
    world.lease(12, 3_000)
    world.end(12)
    eventually(lambda: pipeline.status["hot"] >= 2)
    pipeline.kill()
    world.lease(13, 1_000)
    world.lease(14, 1_000)
    world.end(14)
    before = world.values()
    pipeline = start_pipeline(world.topics.prefix, checkpoint)
    pipeline.await_ready()
    eventually(lambda: world.values() == sorted([*before, *named(11, 13)]), 15)
    eventually(lambda: {(0, 11), (1, 13)} <= set(world.of_kind(Kind.REDELIVERED)), 15)

    # Its checkpoint gone, the log alone says what is in flight.
    assert pipeline.stop() == 0
    shutil.rmtree(checkpoint)
    pipeline = start_pipeline(world.topics.prefix, checkpoint)
    pipeline.await_ready()
    eventually(lambda: world.values() == sorted([*before, *named(10, 11, 13)]), 40)
    assert min(world.lateness()) > 0

    pipeline.kill_jvm()
    assert "Spark's JVM ended" in pipeline.await_error()
    assert world.values() == sorted([*before, *named(10, 11, 13)])


def what_is_not_ended_in_time_comes_back(world, eventually):
    """Where it came from, as attempt 2, whole, and never early."""
    for offset in range(6):
        world.lease(offset, 1_500)
    for offset in (1, 4):
        world.end(offset)
    world.lease(52, 500, partition=7)  # a partition that is no longer there
    eventually(lambda: world.values() == named(0, 2, 3, 5, 52), 15)
    for record in world.letters[world.orders]:
        offset = int(record.value().removeprefix(b"value-"))
        past = provenance(record.headers())
        assert record.key() == b"key-%d" % offset
        assert record.headers()[:2] == [("user", b"x"), ("empty", None)]
        assert (past.attempt, past.timestamp) == (2, 1_700_000_000_000)
        if offset != 52:
            assert record.partition() == offset % 3
            assert past.id == f"{world.orders}/{offset % 3}/{offset}"
    assert min(world.lateness()) > 0
    assert max(world.lateness()) < LATE_MS_MAX


def what_cannot_come_back_is_a_dead_letter(world, pipeline, eventually):
    """Because its attempts are used up, or its topic is gone or Kafka's own. The log is told of every letter."""
    world.lease(53, 500, topic="__consumer_offsets")
    world.lease(50, 500, attempt=5)
    world.lease(51, 500, topic=f"{world.orders}.gone")
    world.publisher.publish(world.topics.markers, NO_MARKER, partition=0)
    eventually(lambda: world.values(world.topics.dead) == named(50, 51, 53), 15)
    reasons = {record.value(): dict(record.headers())["marq-reason"] for record in world.letters[world.topics.dead]}
    assert reasons == {
        b"value-50": b"lease expired",
        b"value-51": f"topic {world.orders}.gone does not exist".encode(),
        b"value-53": b"topic __consumer_offsets is Kafka's own",
    }
    confirmed = [(offset % 3 % 2, offset) for offset in (0, 2, 3, 5, 51, 53)] + [(1, 52)]
    eventually(lambda: sorted(world.of_kind(Kind.REDELIVERED)) == sorted(confirmed), 15)
    assert world.of_kind(Kind.DEAD) == [(0, 50)]
    eventually(lambda: (pipeline.status["dead"], pipeline.status["orphans"]) == (1, 2))
    assert pipeline.status["counts"]["malformed"] == 1
