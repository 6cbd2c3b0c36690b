"""Sending: what arrives is what was sent, and a receipt says when it is durable."""

import asyncio
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pydantic
import pytest

from marq import App, ConsumerSettings
from marq.errors import ConfigurationError, MessageTooLargeError, SendError


@dataclass
class Email:
    to: str
    lines: list[str]


class Order(msgspec.Struct):
    number: int
    placed: datetime


class Person(pydantic.BaseModel):
    name: str
    born: datetime


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_a_receipt_names_the_message_once_it_is_durable(broker: Any, take: Any) -> None:
    queue = broker.app().queue("orders")
    one = queue.send(b"one")
    assert one.result() is one
    assert one.done()
    many = [queue.send(value).result() for value in (b"two", b"three", b"two")]
    last = asyncio.run(queue.send_async(b"last"))
    receipts = [one, *many, last]
    assert len({receipt.id for receipt in receipts}) == 5
    assert len({(receipt.partition, receipt.offset) for receipt in receipts}) == 5
    with broker.consume(queue) as consumer:
        messages = take(consumer, 5)
    assert {message.id for message in messages} == {receipt.id for receipt in receipts}
    assert Counter(message.value for message in messages) == {b"one": 1, b"two": 2, b"three": 1, b"last": 1}


def test_async_sends_overlap(broker: Any) -> None:
    queue = broker.app().queue("orders", str)

    async def send_all() -> list[Any]:
        return await asyncio.gather(*(queue.send_async(f"m{i}") for i in range(100)))

    receipts = asyncio.run(send_all())
    assert len({receipt.id for receipt in receipts}) == 100


def test_sending_nothing_is_no_error(app: App) -> None:
    assert app.queue("orders").send_many([]) == 0


def test_payloads_of_every_type_arrive_equal(broker: Any, take: Any) -> None:
    app = broker.app(partitions=1)
    examples = [
        (bytes, b"\x00\xff raw"),
        (bytes, b""),
        (str, "grüße \N{SNOWMAN}"),
        (dict, {"a": [1, 2.5, None], "b": {"c": True}}),
        (Email, Email("a@x.org", ["hello", "there"])),
        (Order, Order(7, NOON)),
        (Person, Person(name="Ada", born=NOON)),
    ]
    for number, (kind, value) in enumerate(examples):
        queue = app.queue(f"q{number}", kind)
        queue.send(value)
    for number, (kind, value) in enumerate(examples):
        queue = app.queue(f"q{number}", kind)
        with broker.consume(queue) as consumer:
            [message] = take(consumer, 1)
            assert message.value == value
            assert type(message.value) is kind
            message.ack()


def test_key_headers_and_time_are_kept(broker: Any, take: Any) -> None:
    queue = broker.app().queue("orders", str)
    before = datetime.now(UTC)
    queue.send("a", key="user-7", headers={"trace": "abc", "none": None, "raw": b"\x00\x01"}).result()
    after = datetime.now(UTC)
    with broker.consume(queue) as consumer:
        [message] = take(consumer, 1)
        assert message.key == b"user-7"
        assert message.headers == [("trace", b"abc"), ("none", None), ("raw", b"\x00\x01")]
        assert before - timedelta(milliseconds=2) <= message.timestamp <= after + timedelta(milliseconds=2)
        assert message.attempt == 1
        assert message.queue == "orders"
        message.ack()
    assert queue.send_many(["b"], key=b"raw-key", headers=[("x", "1"), ("x", "2")]) == 1
    with broker.consume(queue) as consumer:
        [message] = take(consumer, 1)
        assert message.key == b"raw-key"
        assert message.headers == [("x", b"1"), ("x", b"2")]
        message.ack()


def test_a_message_without_key_and_headers_has_none(broker: Any, take: Any) -> None:
    queue = broker.app().queue("orders", str)
    queue.send("a")
    with broker.consume(queue) as consumer:
        [message] = take(consumer, 1)
        assert message.key is None
        assert message.headers == []
        message.ack()


def test_one_queue_is_spread_evenly_over_the_partitions(broker: Any) -> None:
    queue = broker.app(partitions=4).queue("orders")
    assert queue.send_many([b"x"] * 10_000) == 10_000
    shares = broker.app(partitions=4).transport.end_offsets(queue.topic)
    assert sorted(shares) == [0, 1, 2, 3]
    assert all(2_200 <= share <= 2_800 for share in shares.values()), shares


def test_a_message_too_large_is_refused_with_advice(broker: Any, take: Any) -> None:
    app = broker.app()
    queue = app.queue("orders")
    with pytest.raises(
        MessageTooLargeError, match=r"1,000,001 bytes; orders takes 995,904.*Send a reference"
    ) as caught:
        queue.send(b"x" * 1_000_001)
    assert caught.value.queue == "orders"
    with pytest.raises(MessageTooLargeError):
        queue.send_many([b"fits", b"x" * 1_000_001])
    with pytest.raises(MessageTooLargeError):
        queue.send(b"x" * (app.message_bytes_max - 10), headers={"h": "y" * 100})
    largest = b"x" * app.message_bytes_max
    queue.send(largest).result()
    with broker.consume(queue) as consumer:
        [message] = take(consumer, 1)
        assert message.value == largest
        message.ack()


@pytest.mark.parametrize(("kind", "wrong"), [(bytes, "text"), (str, b"bytes"), (Email, {"to": "a"}), (dict, [1])])
def test_a_value_of_another_type_is_refused_at_once(kind: type, wrong: Any) -> None:
    with App("memory://") as app:
        queue = app.queue("orders", kind)
        with pytest.raises(TypeError, match="this queue holds"):
            queue.send(wrong)
        with pytest.raises(TypeError):
            queue.send_many([wrong])
        assert app.transport.end_offsets(queue.topic) in ({}, dict.fromkeys(range(4), 0))


def test_headers_with_our_prefix_are_refused(app: App) -> None:
    with pytest.raises(ConfigurationError, match=r"marq-attempt is marq's own"):
        app.queue("orders").send(b"x", headers={"marq-attempt": "7"})


def test_a_receipt_has_no_id_before_it_is_durable() -> None:
    with App("memory://") as app:
        receipt = app.queue("orders").send(b"x")
        if not receipt.done():
            with pytest.raises(SendError, match="before it is durable"):
                _ = receipt.id
        assert receipt.result().id.startswith("marq.messages-0/")


def test_unknown_options_of_consume_come_with_a_suggestion(app: App) -> None:
    queue = app.queue("orders")
    with pytest.raises(ConfigurationError, match=r"no option 'leese'.*'lease'"):
        queue.consume(leese=timedelta(seconds=5))  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="lease must be"):
        queue.consume(lease=timedelta(0))
    with pytest.raises(ConfigurationError, match="mark_after must be"):
        queue.consume(lease=timedelta(seconds=10), mark_after=timedelta(seconds=8))
    with pytest.raises(ConfigurationError):
        ConsumerSettings(max_in_flight=0)


def test_a_topic_that_is_not_there_has_no_partitions_and_no_end(app: App) -> None:
    assert app.transport.partitions("nowhere") == 0
    assert app.transport.end_offsets("nowhere") == {}


def test_topics_are_created_once_and_left_alone(broker: Any) -> None:
    app = broker.app(partitions=3)
    app.queue("orders").send(b"x").result()
    other = broker.app(partitions=5, prefix=app.settings.topics.prefix)
    other.ensure_topics()
    assert other.transport.partitions(other.queue("orders").topic) == 3
    assert sum(other.transport.end_offsets(other.queue("orders").topic).values()) == 1
