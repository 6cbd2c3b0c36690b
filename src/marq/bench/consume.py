"""Reading a backlog: marq's lazy leases beside the bare client and beside Kafka's own share groups."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import chain, count, islice
from typing import Any

from confluent_kafka import AcknowledgeType, Consumer, ShareConsumer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from marq.app import App
from marq.bench.rounds import Lap, Stopwatch, Subject
from marq.core.caution import CLEAN
from marq.errors import BenchError

QUEUE = "bench"
STALL_SECONDS = 60.0
STALLED = "A subject stopped receiving before it had everything. Is the broker well?"
POLL_BATCH = 500
FETCH = {"fetch.queue.backoff.ms": 5, "fetch.wait.max.ms": 100}  # as marq has it; a share consumer refuses it
_numbers = count(1)


def handle(payload: bytes) -> int:
    """What stands for a user's handler: the call counts, not the work."""
    return len(payload)


def subjects(bootstrap: str, app: App, messages: int, size: int) -> list[Subject]:
    """Fill the queue once; every subject then reads all of it, in every round, as a group of its own."""
    queue = app.queue(QUEUE)
    payload = bytes(range(256)) * (size // 256 + 1)
    for _ in range(0, messages, 50_000):
        queue.send_many([payload[:size]] * min(50_000, messages))
    return [
        Subject("marq-lazy", lambda _: _marq(bootstrap, app, messages)),
        Subject("confluent-kafka", lambda _: _bare(bootstrap, queue.topic, messages)),
        Subject("share-consumer", lambda _: _share(bootstrap, queue.topic, messages)),
    ]


def _marq(bootstrap: str, app: App, messages: int) -> Lap:
    queue = app.queue(QUEUE)
    _rewind(bootstrap, f"{app.settings.topics.prefix}-{QUEUE}", queue.topic, app.settings.topics.partitions)
    with queue.consume(poll_batch=POLL_BATCH) as consumer:
        first = consumer.receive(1, timedelta(seconds=STALL_SECONDS))
        if not first:
            raise BenchError(STALLED)
        watch = Stopwatch()
        for message in chain(first, islice(consumer, messages - 1)):
            handle(message.value)
            message.ack()
        return watch.lap(messages)


def _rewind(bootstrap: str, group: str, topic: str, partitions: int) -> None:
    """As if the group had been closed in order at the beginning of the topic."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    places = [TopicPartition(topic, partition, 0, CLEAN) for partition in range(partitions)]
    consumer.commit(offsets=places, asynchronous=False)
    consumer.close()


def _bare(bootstrap: str, topic: str, messages: int) -> Lap:
    """The client as marq configures it, and nothing else."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"bare-{next(_numbers)}",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": "cooperative-sticky",
            **FETCH,
        }
    )
    consumer.subscribe([topic])
    try:
        seen = 0
        watch: Stopwatch | None = None
        for batch in _until_stalled(lambda: consumer.consume(POLL_BATCH, 0.05)):
            watch = watch or Stopwatch()
            seen += len(batch)
            if seen >= messages:
                return watch.lap(seen)
        raise BenchError(STALLED)
    finally:
        consumer.close()


def _share(bootstrap: str, topic: str, messages: int) -> Lap:
    """Kafka's share group from Python (a preview in confluent-kafka), each record accepted explicitly."""
    group = f"share-{next(_numbers)}"
    with _share_group(bootstrap, group, topic) as consumer:
        seen = 0
        watch: Stopwatch | None = None
        accept = AcknowledgeType.ACCEPT
        for batch in _until_stalled(lambda: consumer.poll(0.5)):
            watch = watch or Stopwatch()
            for record in batch:
                if record.error() is None:
                    handle(record.value())
                    consumer.acknowledge(record, accept)
                    seen += 1
            consumer.commit_async()
            if seen >= messages:
                return watch.lap(seen)
        raise BenchError(STALLED)


@contextmanager
def _share_group(bootstrap: str, group: str, topic: str) -> Iterator[Any]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    entry = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(10)
    consumer = ShareConsumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "share.acknowledgement.mode": "explicit"}
    )
    try:
        consumer.subscribe([topic])
        yield consumer
    finally:
        consumer.close()


def _until_stalled(poll: Any) -> Iterator[Any]:
    heard = time.monotonic()
    while time.monotonic() - heard < STALL_SECONDS:
        batch = poll()
        if len(batch):
            heard = time.monotonic()
            yield batch
