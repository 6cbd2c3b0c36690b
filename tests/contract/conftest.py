"""One suite, two brokers: what holds for `kafka://` holds for `memory://`, so tests against the second mean much."""

import threading
import uuid
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import confluent_kafka
import pytest

from marq import App, Consumer, ConsumerSettings, Message, Queue, TopicSettings
from marq.core.records import Marker, decode
from marq.stack.kafka import KafkaServer
from marq.testing import MemoryTransport

QUICK = ConsumerSettings(commit_interval=timedelta(milliseconds=50), session_timeout=timedelta(seconds=6))


class Broker:
    """Makes apps on the broker under test, and looks behind their backs."""

    kind = ""
    url = ""

    def __init__(self) -> None:
        self._opened: list[Any] = []

    def app(self, *, partitions: int = 2, consumer: ConsumerSettings = QUICK, prefix: str | None = None) -> App:
        topics = TopicSettings(prefix=prefix or f"t{uuid.uuid4().hex[:10]}", partitions=partitions)
        app = App(self.url, consumer=consumer, topics=topics)
        self._opened.append(app)
        return app

    def consume(self, queue: Queue[Any], **options: Any) -> Consumer[Any]:
        consumer = queue.consume(**options)
        self._opened.append(consumer)
        return consumer

    def close(self) -> None:
        for each in reversed(self._opened):
            each.close()

    def records(self, topic: str) -> Sequence[Any]:
        raise NotImplementedError

    def committed(self, app: App, queue: Queue[Any]) -> dict[int, tuple[int, str]]:
        raise NotImplementedError

    def markers(self, app: App, *kinds: int) -> list[Marker]:
        markers = [decode(record.value()) for record in self.records(app.markers_topic)]
        return [marker for marker in markers if not kinds or marker.kind in kinds]

    def dead(self, app: App) -> Sequence[Any]:
        return self.records(app.dead_letter_topic)

    def produce(self, topic: str, value: bytes | None, key: bytes | None = None, headers: Any = None) -> None:
        """As any program may: around marq."""
        raise NotImplementedError


class InMemory(Broker):
    kind = "memory"

    def __init__(self) -> None:
        super().__init__()
        self._name = uuid.uuid4().hex
        self.url = f"memory://{self._name}"
        self.transport = MemoryTransport.named(self._name)

    def close(self) -> None:
        super().close()
        self.transport.close()
        MemoryTransport.forget(self._name)

    def records(self, topic: str) -> Sequence[Any]:
        return self.transport.records(topic)

    def committed(self, app: App, queue: Queue[Any]) -> dict[int, tuple[int, str]]:
        group = f"{app.settings.topics.prefix}-{queue.name}"
        found = self.transport.committed(group)
        return {partition: tuple(commit) for (_, partition), commit in found.items()}

    def produce(self, topic: str, value: bytes | None, key: bytes | None = None, headers: Any = None) -> None:
        self.transport.publisher().publish(topic, value, key, headers)


class RealKafka(Broker):
    kind = "kafka"

    def __init__(self, server: KafkaServer) -> None:
        super().__init__()
        self.url = f"kafka://{server.bootstrap}"
        self._bootstrap = {"bootstrap.servers": server.bootstrap}

    def records(self, topic: str) -> Sequence[Any]:
        reader = confluent_kafka.Consumer({**self._bootstrap, "group.id": "reader", "fetch.wait.max.ms": 50})
        try:
            places = [
                confluent_kafka.TopicPartition(topic, p, 0) for p in reader.list_topics(topic).topics[topic].partitions
            ]
            ends = {place.partition: reader.get_watermark_offsets(place, timeout=10)[1] for place in places}
            reader.assign(places)
            found: list[Any] = []
            while len(found) < sum(ends.values()):
                record = reader.poll(10)
                assert record is not None, "the broker does not answer"
                assert record.error() is None
                if record.offset() < ends[record.partition()]:
                    found.append(record)
            return sorted(found, key=lambda record: (record.partition(), record.offset()))
        finally:
            reader.close()

    def committed(self, app: App, queue: Queue[Any]) -> dict[int, tuple[int, str]]:
        group = f"{app.settings.topics.prefix}-{queue.name}"
        reader = confluent_kafka.Consumer({**self._bootstrap, "group.id": group})
        try:
            asked = range(app.settings.topics.partitions)
            places = [confluent_kafka.TopicPartition(queue.topic, partition) for partition in asked]
            found = reader.committed(places, timeout=10)
            return {each.partition: (each.offset, each.metadata or "") for each in found if each.offset >= 0}
        finally:
            reader.close()

    def produce(self, topic: str, value: bytes | None, key: bytes | None = None, headers: Any = None) -> None:
        producer = confluent_kafka.Producer(self._bootstrap)
        producer.produce(topic, value, key, headers=headers)
        assert producer.flush(10) == 0


@pytest.fixture(params=["memory", pytest.param("kafka", marks=pytest.mark.broker)])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    made: Broker = InMemory() if request.param == "memory" else RealKafka(request.getfixturevalue("kafka_server"))
    yield made
    made.close()


@pytest.fixture
def app(broker: Broker) -> App:
    return broker.app()


@pytest.fixture
def take() -> Any:
    """Receive exactly so many messages, without settling them."""

    def take(consumer: Consumer[Any], count: int, timeout: float = 15.0) -> list[Message[Any]]:
        got: list[Message[Any]] = []
        misses = 0
        while len(got) < count:
            some = consumer.receive(count - len(got), timeout=timedelta(seconds=1))
            misses = 0 if some else misses + 1
            assert misses < timeout, f"only {len(got)} of {count} messages came"
            got.extend(some)
        return got

    return take


class Loop(threading.Thread):
    """A consumer in a thread of its own that acks what it gets."""

    def __init__(self, consumer: Consumer[Any]) -> None:
        super().__init__(daemon=True)
        self.consumer = consumer
        self.values: list[Any] = []
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            for message in self.consumer:
                self.values.append(message.value)
                message.ack()
        except Exception as error:  # noqa: BLE001 - told to the test, which has another thread
            self.error = error

    def end(self) -> list[Any]:
        self.consumer.stop()
        self.join(timeout=15)
        assert not self.is_alive()
        assert self.error is None
        return self.values


@pytest.fixture
def loop() -> type[Loop]:
    return Loop
