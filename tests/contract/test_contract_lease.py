"""Leases: what is slow, what changes hands, what dies."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from datetime import timedelta
from typing import Any

from marq import App, Retry
from marq.core.caution import CLEAN, OPEN
from marq.core.records import Kind
from marq.testing import MemoryTransport, kill
from marq.transport.base import TopicSpec

SOON = {"mark_after": timedelta(milliseconds=100), "lease": timedelta(seconds=10)}
LATE = {"mark_after": timedelta(seconds=5), "lease": timedelta(seconds=10)}


def offsets(markers: list[Any]) -> Counter[tuple[int, int]]:
    return Counter((marker.partition, offset) for marker in markers for offset in marker.offsets)


def begin(broker: Any, queue: Any) -> None:
    """Give the group a clean past: without one, the first window is leased before it is handed out."""
    app = queue._app
    with broker.consume(queue) as consumer:
        wanted = app.settings.topics.partitions
        until = time.monotonic() + 15
        while len(consumer._desk.frontiers) < wanted:
            consumer.receive(timeout=timedelta(milliseconds=50))
            assert time.monotonic() < until


def test_fast_messages_leave_no_markers(broker: Any, take: Any) -> None:
    app = broker.app()
    queue = app.queue("orders", int)
    begin(broker, queue)
    queue.send_many(range(50))
    with broker.consume(queue, **LATE) as consumer:
        for message in take(consumer, 50):
            message.ack()
    assert broker.markers(app) == []


def test_a_group_without_a_past_leases_first(broker: Any, take: Any) -> None:
    app = broker.app()
    queue = app.queue("orders", int)
    queue.send_many(range(10))
    with broker.consume(queue, **LATE) as consumer:
        messages = take(consumer, 10)
        starts = broker.markers(app, Kind.START)
        assert offsets(starts) == Counter((m._sheet.place[1], m._record.offset()) for m in messages)
        for message in messages:
            message.ack()


def test_the_group_knows_of_us_before_anything_is_handed_out(broker: Any, take: Any) -> None:
    app = broker.app()
    queue = app.queue("orders", int)
    begin(broker, queue)
    assert {metadata for _, metadata in broker.committed(app, queue).values()} == {CLEAN}
    queue.send(1).result()
    with broker.consume(queue, commit_interval=timedelta(seconds=60), **LATE) as consumer:
        [message] = take(consumer, 1)
        partition = message._sheet.place[1]
        assert broker.committed(app, queue)[partition][1] == OPEN
        message.ack()
    assert broker.committed(app, queue)[partition][1] == CLEAN


def test_a_slow_message_is_leased_and_the_frontier_moves_on(broker: Any, take: Any, eventually: Any) -> None:
    app = broker.app(partitions=1)
    queue = app.queue("orders", str)
    begin(broker, queue)
    queue.send_many(["slow", "fast", "slower"], key="k", headers={"h": "1"})
    with broker.consume(queue, **SOON) as consumer:
        slow, fast, slower = take(consumer, 3)
        fast.ack()
        [start] = eventually(lambda: broker.markers(app, Kind.START))
        assert offsets([start]) == {(0, 0): 1, (0, 2): 1}
        assert (start.queue, start.topic, start.owner) == ("orders", queue.topic, consumer.id)
        assert (start.values, start.attempts, start.waiting) == ([b"slow", b"slower"], [1, 1], False)
        assert start.headers == [[("h", b"1"), ("marq-key", b"k")]] * 2
        assert start.redeliver_after_ms == [10_000, 10_000]
        assert (start.max_attempts, start.dead_letter_topic) == (5, app.dead_letter_topic)
        eventually(lambda: broker.committed(app, queue)[0][0] == 3)
        slow.ack()
        [end] = eventually(lambda: broker.markers(app, Kind.END))
        assert offsets([end]) == {(0, 0): 1}
        slower.ack()
        eventually(lambda: len(broker.markers(app, Kind.END)) == 2)


def test_a_long_job_keeps_its_lease(broker: Any, take: Any, eventually: Any) -> None:
    app = broker.app()
    queue = app.queue("orders", str)
    queue.send("long")
    with broker.consume(queue, lease=timedelta(seconds=1), mark_after=timedelta(milliseconds=50)) as consumer:
        [message] = take(consumer, 1)
        eventually(lambda: len(broker.markers(app, Kind.KEEPALIVE)) >= 4)  # that is longer than the lease
        message.ack()
    assert consumer.counts.get("expired", 0) == 0


def test_extend_asks_for_a_lease_at_once(broker: Any, take: Any, eventually: Any) -> None:
    app = broker.app()
    queue = app.queue("orders", str)
    begin(broker, queue)
    queue.send("long")
    with broker.consume(queue, **LATE) as consumer:
        [message] = take(consumer, 1)
        message.extend(timedelta(minutes=5))
        [start] = eventually(lambda: broker.markers(app, Kind.START))
        assert start.redeliver_after_ms == [300_000]
        eventually(lambda: consumer.counts.get("leased"))
        message.extend(timedelta(minutes=7))
        [keep] = eventually(lambda: broker.markers(app, Kind.KEEPALIVE))
        assert keep.redeliver_after_ms == [420_000]
        message.ack()


def test_a_nack_for_longer_than_may_be_held_is_the_pipeline_s(broker: Any, take: Any, eventually: Any) -> None:
    app = broker.app()
    queue = app.queue("orders", str)
    begin(broker, queue)
    queue.send("a")
    with broker.consume(queue, hold_max=timedelta(milliseconds=100), **LATE) as consumer:
        [message] = take(consumer, 1)
        message.nack(delay=timedelta(seconds=600))
        [start] = eventually(lambda: broker.markers(app, Kind.START))
        assert (start.owner, start.waiting, start.attempts) == ("", True, [2])
        assert start.redeliver_after_ms == [600_000]


def test_close_gives_back_what_is_not_settled(broker: Any, take: Any, eventually: Any) -> None:
    app = broker.app(partitions=1)
    queue = app.queue("orders", str)
    begin(broker, queue)
    queue.send_many(["acked", "open", "held"])
    with broker.consume(queue, **LATE) as consumer:
        acked, _, held = take(consumer, 3)
        acked.ack()
        held.nack(delay=timedelta(seconds=30))
        eventually(lambda: broker.markers(app, Kind.START))
    starts = broker.markers(app, Kind.START)
    given_back = [marker for marker in starts if not marker.owner]
    assert [(marker.offsets, marker.attempts, marker.waiting) for marker in given_back] == [([1], [1], True)]
    [retry] = broker.markers(app, Kind.RETRY)
    assert (retry.offsets, retry.attempts, retry.released, retry.waiting) == ([2], [2], True, True)
    assert 25_000 < retry.redeliver_after_ms[0] <= 30_000
    assert broker.committed(app, queue)[0] == (3, CLEAN)


def test_two_consumers_share_and_hand_over_without_loss_or_repetition(
    broker: Any, take: Any, loop: Any, eventually: Any
) -> None:
    app = broker.app(partitions=4)
    queue = app.queue("orders", int)
    begin(broker, queue)
    queue.send_many(range(200))
    first = broker.consume(queue, max_in_flight=50, **LATE)
    held = take(first, 20)
    running = loop(first)
    running.start()
    eventually(lambda: len(running.values) == 180)
    second = broker.consume(queue, **LATE)
    joined = loop(second)
    joined.start()
    eventually(lambda: len(first._desk.frontiers) == 2 and len(second._desk.frontiers) == 2, timeout=20)
    for message in held:
        message.ack()
    queue.send_many(range(200, 400))
    eventually(lambda: len(running.values) + len(joined.values) == 380)
    running.end()
    first.close()
    queue.send_many(range(400, 500))
    eventually(lambda: len(running.values) + len(joined.values) == 480, timeout=20)
    joined.end()
    second.close()
    assert joined.values
    assert Counter([*(message.value for message in held), *running.values, *joined.values]) == Counter(range(500))


def test_a_slow_consumer_does_not_hand_out_what_the_group_took_from_it(
    broker: Any, take: Any, loop: Any, eventually: Any
) -> None:
    app = broker.app(partitions=2)
    queue = app.queue("orders", int)
    begin(broker, queue)
    queue.send_many(range(100))
    slow = broker.consume(queue, **LATE)
    values = []
    while len(slow._hand._messages) < 20:  # now a batch is in its hands, of which the application has taken a few
        [message] = take(slow, 1)
        values.append(message.value)
        message.ack()
    other = broker.consume(queue, **LATE)
    joined = loop(other)
    joined.start()  # the application stands still, and the keeper polls in its place
    eventually(lambda: len(slow._desk.frontiers) == 1 and len(other._desk.frontiers) == 1, timeout=20)
    running = loop(slow)
    running.start()
    eventually(lambda: len(values) + len(running.values) + len(joined.values) >= 100)
    queue.send_many([100])
    eventually(lambda: 100 in running.values + joined.values)
    running.end()
    joined.end()
    assert joined.values
    assert Counter([*values, *running.values, *joined.values]) == Counter(range(101))


CHILD = """
import sys, time
from datetime import timedelta
from marq import App, ConsumerSettings, TopicSettings
url, prefix = sys.argv[1:]
app = App(url, topics=TopicSettings(prefix=prefix, partitions=2))
consumer = app.queue("orders", int).consume(
    session_timeout=timedelta(seconds=6), lease=timedelta(seconds=60), mark_after=timedelta(seconds=30)
)
got = []
while len(got) < 20:
    got += consumer.receive(20 - len(got))
got[0].ack()
print("ready", got[0].value, flush=True)
time.sleep(120)
"""


def test_what_a_killed_consumer_had_comes_back_and_is_leased_first(broker: Any, take: Any) -> None:
    app = broker.app()
    queue = app.queue("orders", int)
    begin(broker, queue)
    queue.send_many(range(20))
    acked = _die_with_them(broker, app, take)
    started = time.monotonic()
    with broker.consume(queue, lease=timedelta(seconds=60), mark_after=timedelta(seconds=30)) as consumer:
        messages: dict[int, Any] = {}
        while len(messages.keys() - {acked}) < 19:
            for message in take(consumer, 1):
                # Before it is handed out, the log knows that it is: if it kills us too, that counts.
                messages[message.value] = message
        assert time.monotonic() - started < 6 + 3
        starts = offsets(broker.markers(app, Kind.START))
        assert set(starts) >= {(m._sheet.place[1], m._record.offset()) for m in messages.values()}
        assert {message.attempt for message in messages.values()} == {1}
        for message in messages.values():
            message.ack()
    assert set(messages) | {acked} == set(range(20))


def _die_with_them(broker: Any, app: Any, take: Any) -> int:
    if broker.kind == "memory":
        consumer = app.queue("orders", int).consume(lease=timedelta(seconds=60), mark_after=timedelta(seconds=30))
        messages = take(consumer, 20)
        messages[0].ack()
        kill(consumer)
        return int(messages[0].value)
    command = [sys.executable, "-c", CHILD, broker.url, app.settings.topics.prefix]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            said = child.stdout.readline().split()
            assert said[:1] == ["ready"]
        finally:
            os.kill(child.pid, signal.SIGKILL)
    return int(said[1])


def test_a_killed_consumer_s_leases_come_back_as_the_next_attempt(take: Any) -> None:
    broker = MemoryTransport.named("killed")
    with App("memory://killed") as app:
        queue = app.queue("orders", str, retry=Retry(5))
        receipt = queue.send("a", key="k", headers={"h": "1"}).result()
        first = queue.consume(lease=timedelta(seconds=1), mark_after=timedelta(0))
        [message] = take(first, 1)
        kill(first)
        killed = time.monotonic()
        with queue.consume(lease=timedelta(seconds=1)) as second:
            [again] = take(second, 1)
            assert 0.5 < time.monotonic() - killed < 3
            assert (again.id, again.attempt, again.value, again.key) == (receipt.id, 2, "a", b"k")
            assert again.headers == [("h", b"1")]
            assert again.timestamp == message.timestamp
            again.ack()
    broker.close()
    MemoryTransport.forget("killed")


def test_a_message_that_fits_no_marker_is_kept_in_place(broker: Any, take: Any, eventually: Any) -> None:
    app = broker.app(partitions=1)
    small = {"message.timestamp.type": "LogAppendTime", "max.message.bytes": "2000"}
    app.transport.ensure_topics([TopicSpec(app.markers_topic, 2, config=small)])
    queue = app.queue("orders", str, retry=Retry(3))
    queue.send_many(["x" * 5_000, "small"])
    with broker.consume(queue, **SOON) as consumer:
        large, other = take(consumer, 2)
        other.ack()
        large.nack(timedelta(milliseconds=100))
        [again] = take(consumer, 1)
        assert (again.value, again.attempt) == (large.value, 2)
        assert broker.committed(app, queue)[0][0] == 0
        started = time.monotonic()
    assert time.monotonic() - started < 5  # there is nothing to wait for
    with broker.consume(queue, **SOON) as consumer:
        back = take(consumer, 2)  # the offset could not pass it, so what was acked behind it comes too
        assert {message.value for message in back} == {"x" * 5_000, "small"}
        for message in back:
            message.ack()
        eventually(lambda: broker.committed(app, queue)[0][0] == 2)
    assert all(len(marker.values) == 0 or marker.values == [b"small"] for marker in broker.markers(app))


def test_close_in_the_middle_of_a_batch_leaves_the_rest_to_others(broker: Any, take: Any) -> None:
    app = broker.app(partitions=1)
    queue = app.queue("orders", int)
    begin(broker, queue)
    queue.send_many(range(20))
    values = []
    for _ in range(20):
        with broker.consume(queue, **LATE) as consumer:
            for message in consumer:
                values.append(message.value)
                message.ack()
                if len(values) % 5 == 0:
                    break
        if len(values) == 20:
            break
    assert sorted(values) == list(range(20))
    assert broker.markers(app) == []
    assert broker.committed(app, queue)[0] == (20, CLEAN)


def test_who_takes_over_from_the_dead_and_goes_at_once_does_not_vouch_for_what_they_left(take: Any) -> None:
    with App("memory://") as app:
        queue = app.queue("orders", int)

        def join(consumer: Any) -> None:
            while len(consumer._desk.frontiers) < 4:
                consumer.receive(timeout=timedelta(milliseconds=10))

        with queue.consume(**LATE) as before:  # who leaves in order is followed by one who leases nothing in advance
            join(before)
        queue.send_many(range(10))
        first = queue.consume(max_in_flight=100, **LATE)
        take(first, 10)
        kill(first)

        def notes() -> set[str]:
            return {commit.metadata for commit in app.transport.committed(f"marq-{queue.name}").values()}

        with queue.consume(max_in_flight=100, poll_batch=1, **LATE) as second:
            join(second)
        assert OPEN in notes()
        queue.send_many(range(1_000))
        with queue.consume(max_in_flight=100, **LATE) as third:
            for _ in range(10):
                for message in take(third, 100):
                    message.ack()
        assert notes() == {CLEAN}
