"""Sending: marq's `send_many` and `send` beside the bare client with the same settings."""

from __future__ import annotations

from collections import deque

from confluent_kafka import Producer

from marq.app import App
from marq.bench.rounds import Lap, Stopwatch, Subject
from marq.errors import BenchError
from marq.message import Receipt

QUEUE = "bench"
OUTSTANDING_MAX = 10_000
POLL_EVERY = 1_000


def subjects(bootstrap: str, app: App, messages: int, size: int) -> list[Subject]:
    """The same payload, key and topic for all."""
    queue = app.queue(QUEUE)
    app.ensure_topics()
    payload = (bytes(range(256)) * (size // 256 + 1))[:size]
    payloads = [payload] * messages
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 5,
            "partitioner": "random",
            "sticky.partitioning.linger.ms": 0,
            "queue.buffering.max.messages": 200_000,
            "acks": "all",
            "enable.idempotence": True,
        }
    )

    def bare(_: int) -> Lap:
        watch = Stopwatch()
        _produce(producer, queue.topic, QUEUE.encode(), payloads)
        return watch.lap(messages)

    def send_many(_: int) -> Lap:
        watch = Stopwatch()
        return watch.lap(queue.send_many(payloads))

    def send(_: int) -> Lap:
        watch = Stopwatch()
        outstanding: deque[Receipt] = deque()
        resolved = 0
        for value in payloads:
            outstanding.append(queue.send(value))
            if len(outstanding) >= OUTSTANDING_MAX:
                outstanding.popleft().result()
                resolved += 1
        for receipt in outstanding:
            receipt.result()
            resolved += 1
        return watch.lap(resolved)

    return [
        Subject("confluent-kafka", bare),
        Subject("marq-send-many", send_many),
        Subject("marq-send", send),
    ]


def _produce(producer: Producer, topic: str, key: bytes, payloads: list[bytes]) -> None:
    """The bare client's loop, as its documentation has it."""
    produce, poll = producer.produce, producer.poll
    for number, value in enumerate(payloads, 1):
        while True:
            try:
                produce(topic, value, key)
            except BufferError:
                poll(0.01)
            else:
                break
        if number % POLL_EVERY == 0:
            poll(0)
    if producer.flush(60):
        raise BenchError("The bare client could not send everything within a minute. Is the broker well?")
