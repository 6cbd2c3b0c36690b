"""Consuming: every message is settled on its own, and only when its settlement is safe."""

import threading
import time
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from marq import App, Retry
from marq.errors import AlreadySettledError, ConfigurationError

AT_ONCE = Retry.fixed(timedelta(0), attempts=3)


@dataclass
class Email:
    to: str


def headers_of(record: Any) -> dict[str, bytes]:
    return dict(record.headers() or [])


def settled_on_broker(broker: Any, app: App, queue: Any) -> bool:
    """Whether the group has committed past everything on the queue's topic."""
    committed = broker.committed(app, queue)
    ends = app.transport.end_offsets(queue.topic)
    return all(committed.get(partition, (0, ""))[0] == end for partition, end in ends.items())


def test_queues_on_one_topic_do_not_see_each_other(broker: Any, take: Any, eventually: Any) -> None:
    app = broker.app()
    busy, silent = app.queue("busy", str), app.queue("silent", str)
    assert busy.topic == silent.topic
    busy.send_many([f"b{i}" for i in range(50)])
    with broker.consume(silent) as quiet, broker.consume(busy) as consumer:
        assert quiet.receive(timeout=timedelta(milliseconds=500)) == []
        messages = take(consumer, 50)
        assert {message.value for message in messages} == {f"b{i}" for i in range(50)}
        # The silent queue's group moves past what is not its own: it would read it again and again.
        eventually(lambda: quiet.receive(timeout=timedelta(0)) or settled_on_broker(broker, app, silent))
        silent.send("s").result()
        [own] = take(quiet, 1)
        assert own.value == "s"
        own.ack()
        for message in messages:
            message.ack()


def test_what_is_acked_is_not_seen_again(broker: Any, take: Any) -> None:
    app = broker.app()
    queue = app.queue("orders", str)
    queue.send_many([f"m{i}" for i in range(100)])
    with broker.consume(queue) as consumer:
        for message in take(consumer, 100):
            message.ack()
    assert settled_on_broker(broker, app, queue)
    queue.send("later").result()
    with broker.consume(queue) as consumer:
        [message] = take(consumer, 1)
        assert message.value == "later"
        message.ack()
        assert consumer.receive(timeout=timedelta(milliseconds=300)) == []


def test_a_nack_brings_the_message_back_after_its_delay(broker: Any, take: Any) -> None:
    queue = broker.app().queue("orders", str, retry=Retry(5))
    receipt = queue.send("a", key="k", headers={"h": "1"}).result()
    with broker.consume(queue) as consumer:
        [first] = take(consumer, 1)
        nacked = time.monotonic()
        first.nack(delay=timedelta(milliseconds=700))
        assert consumer.receive(timeout=timedelta(milliseconds=400)) == []
        [second] = take(consumer, 1)
        waited = time.monotonic() - nacked
        assert waited >= 0.7
        assert waited < 1.5
        assert (second.attempt, second.value, second.key) == (2, "a", b"k")
        assert second.headers == [("h", b"1")]
        assert second.id == first.id == receipt.id
        assert second.timestamp == first.timestamp
        second.ack()


def test_a_message_that_always_fails_is_tried_so_often_and_then_dead(broker: Any, take: Any, eventually: Any) -> None:
    app = broker.app()
    queue = app.queue("orders", str, retry=AT_ONCE)
    receipt = queue.send("poison", key="k", headers={"h": "1"}).result()
    queue.send("fine")
    attempts: list[int] = []
    fine = 0  # it may lie on another partition and come last
    with broker.consume(queue) as consumer:
        while len(attempts) < 3 or not fine:
            [message] = take(consumer, 1)
            if message.value == "fine":
                fine += 1
                message.ack()
            else:
                attempts.append(message.attempt)
                message.nack()
        assert consumer.receive(timeout=timedelta(milliseconds=300)) == []
    assert attempts == [1, 2, 3]
    [letter] = broker.dead(app)
    assert letter.value() == b"poison"
    assert letter.key() == b"orders"
    headers = headers_of(letter)
    assert headers.pop("marq-timestamp").isdigit()
    assert headers == {
        "h": b"1",
        "marq-key": b"k",
        "marq-id": receipt.id.encode(),
        "marq-origin": receipt.id.encode(),
        "marq-attempt": b"3",
        "marq-queue": b"orders",
        "marq-reason": b"failed 3 times",
    }
    assert settled_on_broker(broker, app, queue)


def test_retries_follow_the_queue_s_policy(broker: Any, take: Any) -> None:
    retry = Retry(3, delay=timedelta(milliseconds=200), factor=2.0, jitter=0)
    queue = broker.app().queue("orders", str, retry=retry)
    queue.send("a")
    waits = []
    with broker.consume(queue) as consumer:
        [message] = take(consumer, 1)
        for _ in range(2):
            nacked = time.monotonic()
            message.nack()
            [message] = take(consumer, 1)
            waits.append(time.monotonic() - nacked)
        message.ack()
    assert 0.2 <= waits[0] < 0.38
    assert 0.4 <= waits[1] < 0.78


def test_dead_letter_says_why(broker: Any, take: Any, eventually: Any) -> None:
    app = broker.app()
    queue = app.queue("orders", str)
    queue.send("bad")
    with broker.consume(queue) as consumer:
        [message] = take(consumer, 1)
        message.dead_letter("the customer is gone")
        [letter] = eventually(lambda: broker.dead(app))
        with pytest.raises(AlreadySettledError):
            message.nack()
    assert headers_of(letter)["marq-reason"] == b"the customer is gone"
    assert headers_of(letter)["marq-attempt"] == b"1"
    assert len(broker.dead(app)) == 1
    assert settled_on_broker(broker, app, queue)


def test_what_cannot_be_read_becomes_a_dead_letter_and_the_loop_goes_on(
    broker: Any, take: Any, eventually: Any
) -> None:
    app = broker.app()
    queue = app.queue("mail", Email)
    app.ensure_topics()
    for payload in (b"not json", b'{"to": 7}', None):
        broker.produce(queue.topic, payload, b"mail")
    queue.send(Email("a@x.org")).result()
    with broker.consume(queue) as consumer:
        [message] = take(consumer, 1)
        assert message.value == Email("a@x.org")
        message.ack()
        while len(letters := broker.dead(app)) < 3:  # what lies on other partitions may be fetched later
            assert consumer.receive(timeout=timedelta(milliseconds=100)) == []
    assert {letter.value() for letter in letters} == {b"not json", b'{"to": 7}', None}
    assert all(headers_of(letter)["marq-reason"].startswith(b"cannot be decoded: not Email") for letter in letters)
    assert settled_on_broker(broker, app, queue)


def test_foreign_records_on_the_topic_do_no_harm(broker: Any, take: Any, eventually: Any) -> None:
    app = broker.app(partitions=1)
    queue = app.queue("orders", str)
    app.ensure_topics()
    broker.produce(queue.topic, b"no key at all")
    broker.produce(queue.topic, None, None)
    broker.produce(queue.topic, b"\xff\xfe", b"\x00\xff")
    for junk in (b"", b"seven", b"-3", b"0", b"9" * 40, b"\xff", None):
        broker.produce(queue.topic, b"junk", b"orders", [("marq-attempt", junk), ("marq-timestamp", b"soon")])
    queue.send("good").result()
    with broker.consume(queue) as consumer:
        messages = take(consumer, 8)
        assert [message.value for message in messages] == ["junk"] * 7 + ["good"]
        assert [message.attempt for message in messages] == [1] * 8
        assert len({message.id for message in messages}) == 8
        messages[0].nack(delay=timedelta(0))
        [again] = take(consumer, 1)
        assert again.attempt == 2
        for message in [again, *messages[1:]]:
            message.ack()
        eventually(lambda: settled_on_broker(broker, app, queue))


def test_acking_twice_is_harmless_and_everything_else_twice_is_an_error(broker: Any, take: Any) -> None:
    queue = broker.app().queue("orders", str)
    queue.send_many(["a", "b"])
    with broker.consume(queue) as consumer:
        acked, nacked = take(consumer, 2)
        acked.ack()
        acked.ack()
        for settle in (acked.nack, lambda: acked.dead_letter("x"), lambda: acked.extend(timedelta(seconds=5))):
            with pytest.raises(AlreadySettledError) as caught:
                settle()
            assert caught.value.message_id == acked.id
        nacked.nack(delay=timedelta(milliseconds=50))
        for settle in (nacked.ack, nacked.nack, lambda: nacked.dead_letter("x")):
            with pytest.raises(AlreadySettledError):
                settle()
        [again] = take(consumer, 1)
        with pytest.raises(AlreadySettledError):  # the first handle is not the second
            nacked.ack()
        again.ack()
        again.ack()


def test_settling_asks_for_sensible_durations(broker: Any, take: Any) -> None:
    queue = broker.app().queue("orders", str)
    queue.send("a")
    with broker.consume(queue) as consumer:
        [message] = take(consumer, 1)
        with pytest.raises(
            ConfigurationError, match=r"nack: delay must be from 0s to 7d \(the topics' retention\), not -1s"
        ):
            message.nack(delay=timedelta(seconds=-1))
        with pytest.raises(ConfigurationError, match="extend: lease must be from 1s to 12h, not 1ms"):
            message.extend(timedelta(milliseconds=1))
        message.ack()


def test_any_thread_may_settle(broker: Any, take: Any) -> None:
    app = broker.app()
    queue = app.queue("orders", int, retry=AT_ONCE)
    queue.send_many(range(200))
    seen: Counter[int] = Counter()

    def settle(messages: list[Any]) -> None:
        for message in messages:
            if message.value % 10 == 0 and message.attempt == 1:
                message.nack()
            else:
                message.ack()

    with broker.consume(queue) as consumer:
        messages = take(consumer, 200)
        threads = [threading.Thread(target=settle, args=(messages[i::4],)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=10)
        again = take(consumer, 20)
        seen.update(message.value for message in again)
        settle(again)
    assert seen == Counter(range(0, 200, 10))
    assert settled_on_broker(broker, app, queue)


def test_no_more_than_max_in_flight_are_unsettled(broker: Any, take: Any) -> None:
    queue = broker.app().queue("orders", int, retry=Retry.fixed(timedelta(milliseconds=100)))
    queue.send_many(range(100))
    with broker.consume(queue, max_in_flight=10) as consumer:
        messages = take(consumer, 10)
        assert consumer.receive(10, timeout=timedelta(milliseconds=300)) == []
        acked = [message.value for message in messages[:4]]
        for message in messages[:4]:
            message.ack()
        messages = messages[4:] + take(consumer, 4)
        assert consumer.receive(timeout=timedelta(milliseconds=200)) == []
        for message in messages:  # what is nacked makes room too, and its return takes some
            message.nack(delay=timedelta(milliseconds=300))
        messages = take(consumer, 10)
        assert consumer.receive(10, timeout=timedelta(milliseconds=800)) == []
        seen = {message.value for message in messages if message.attempt == 1}
        assert len(seen) + sum(message.attempt == 2 for message in messages) == 10
        values = []
        while messages:
            for message in messages:
                values.append(message.value)
                message.ack()
            messages = consumer.receive(100, timeout=timedelta(milliseconds=500))
            assert len(messages) <= 10
        assert sorted([*values, *acked]) == list(range(100))


def test_a_loop_can_be_left_and_entered_again(broker: Any) -> None:
    queue = broker.app().queue("orders", int)
    queue.send_many(range(30))
    values = []
    with broker.consume(queue) as consumer:
        for _ in range(3):
            for message in consumer:
                values.append(message.value)
                message.ack()
                if len(values) % 10 == 0:
                    break
    assert sorted(values) == list(range(30))


def test_receive_takes_no_more_than_asked_and_loses_none(broker: Any, take: Any) -> None:
    queue = broker.app().queue("orders", int)
    queue.send_many(range(20))
    values = []
    with broker.consume(queue) as consumer:
        while len(values) < 20:
            got = consumer.receive(3, timeout=timedelta(seconds=5))
            assert 1 <= len(got) <= 3
            for message in got:
                values.append(message.value)
                message.ack()
        started = time.monotonic()
        assert consumer.receive(timeout=timedelta(milliseconds=200)) == []
        assert 0.19 <= time.monotonic() - started < 2
    assert sorted(values) == list(range(20))


def test_stop_ends_a_loop_from_another_thread(broker: Any, loop: Any, eventually: Any) -> None:
    queue = broker.app().queue("orders", int)
    queue.send_many(range(5))
    with broker.consume(queue) as consumer:
        running = loop(consumer)
        running.start()
        eventually(lambda: len(running.values) == 5)
        assert sorted(running.end()) == list(range(5))


class Fussy:
    """A user's own codec that raises what the protocol does not allow."""

    def encode(self, value: str, /) -> bytes:
        return value.encode()

    def decode(self, data: bytes | None, /) -> str:
        if data == b"evil":
            raise ValueError("not that one")
        return (data or b"").decode()


def test_whatever_a_codec_raises_costs_only_the_message_it_was_raised_for(broker: Any, take: Any) -> None:
    app = broker.app(partitions=1)
    queue = app.queue("mail", Fussy())
    queue.send_many(["good 0", "good 1", "evil", "good 2", "good 3"])
    with broker.consume(queue) as consumer:
        messages = take(consumer, 4)
        assert [message.value for message in messages] == [f"good {number}" for number in range(4)]
        for message in messages:
            message.ack()
    [letter] = broker.dead(app)
    assert letter.value() == b"evil"
    assert headers_of(letter)["marq-reason"] == b"cannot be decoded: ValueError: not that one"


def test_a_reason_is_cut_where_it_would_not_fit(broker: Any, take: Any) -> None:
    app = broker.app(partitions=1)
    queue = app.queue("mail")
    queue.send(b"x" * app.message_bytes_max).result()
    with broker.consume(queue) as consumer:
        [message] = take(consumer, 1)
        message.dead_letter("because " * 1000)
    [letter] = broker.dead(app)
    assert headers_of(letter)["marq-reason"] == (b"because " * 1000)[:500]
