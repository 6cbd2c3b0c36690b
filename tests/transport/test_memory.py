"""The in-memory broker: what it does beyond the contract that it shares with Kafka."""

import gc
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from marq import App, Retry
from marq.core.records import Kind, decode
from marq.errors import ConfigurationError, LeaseExpiredError, MessageTooLargeError, TransportError
from marq.testing import ManualClock, MemoryTransport, kill
from marq.transport.base import Assigned, Commit, Place, TopicSpec

A, B = ("t", 0), ("t", 1)


class Ear:
    """A listener that writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []

    def on_assigned(self, partitions: list[Assigned]) -> None:
        self.heard.append(("assigned", sorted(partitions)))

    def on_revoked(self, places: list[Place]) -> None:
        self.heard.append(("revoked", sorted(places)))

    def on_lost(self, places: list[Place]) -> None:
        self.heard.append(("lost", sorted(places)))

    def on_commit_failed(self) -> None:
        self.heard.append(("commit failed", None))


@pytest.fixture
def broker() -> Iterator[MemoryTransport]:
    transport = MemoryTransport(clock=ManualClock(), seed=1)
    transport.ensure_topics([TopicSpec("t", 2)])
    yield transport
    transport.close()


@pytest.fixture
def member(broker: MemoryTransport) -> Any:
    def join(*topics: str, group: str = "g") -> tuple[Any, Ear]:
        ear = Ear()
        return broker.subscription(group, list(topics or ["t"]), ear, session_timeout=10), ear

    return join


def publish(broker: MemoryTransport, count: int, partition: int = 0, **options: Any) -> None:
    for number in range(count):
        broker.publisher().publish("t", b"%d" % number, partition=partition, **options)


def offsets(runs: Any) -> dict[Place, list[int]]:
    return {(run.topic, run.partition): [record.offset() for record in run.records] for run in runs}


# Names


def test_a_name_is_one_broker_and_no_name_is_a_new_one() -> None:
    assert MemoryTransport.named("") is not MemoryTransport.named("")
    one = MemoryTransport.named("one")
    assert MemoryTransport.named("one") is one
    with pytest.raises(ConfigurationError, match="exists already, with another clock"):
        MemoryTransport.named("one", clock=ManualClock())
    MemoryTransport.forget("one")
    clock = ManualClock()
    other = MemoryTransport.named("one", clock=clock)
    assert other is not one
    assert MemoryTransport.named("one", clock=clock) is other
    MemoryTransport.forget("one")
    MemoryTransport.forget("one")


def test_two_apps_on_one_name_share_messages_and_the_first_to_close_harms_nobody(eventually: Any) -> None:
    def threads() -> set[str]:
        return {thread.name for thread in threading.enumerate() if thread.name.startswith("marq-memory")}

    before = threads()
    with App("memory://shared") as reader:
        with App("memory://shared") as writer:
            writer.queue("q").send(b"x").result()
        with reader.queue("q").consume(mark_after=timedelta(0)) as consumer:
            [message] = consumer.receive()
            message.nack(timedelta(0))
            [again] = consumer.receive()
            again.ack()
    eventually(lambda: threads() == before)
    MemoryTransport.forget("shared")


# Records


def test_records_look_like_kafka_s(broker: MemoryTransport) -> None:
    publisher = broker.publisher()
    publisher.publish("t", b"v", b"k", [("h", None)], partition=1, timestamp=123)
    publisher.publish("t", None, partition=1)
    first, second = broker.records("t")
    assert (first.topic(), first.partition(), first.offset()) == ("t", 1, 0)
    assert (first.key(), first.value(), first.headers(), first.timestamp()) == (b"k", b"v", [("h", None)], (1, 123))
    assert (second.key(), second.value(), second.headers(), second.offset()) == (None, None, None, 1)
    assert second.timestamp() == (1, broker.clock.millis())
    assert repr(second) == "<MemoryRecord t/1/1>"
    assert broker.records("nowhere") == []


def test_a_topic_may_be_stamped_by_the_broker(broker: MemoryTransport) -> None:
    broker.ensure_topics([TopicSpec("stamped", 1, config={"message.timestamp.type": "LogAppendTime"})])
    broker.publisher().publish("stamped", b"v", timestamp=123)
    assert broker.records("stamped")[0].timestamp() == (2, broker.clock.millis())


def test_a_record_that_is_too_large_is_refused_at_once(broker: MemoryTransport) -> None:
    broker.ensure_topics([TopicSpec("small", 1, config={"max.message.bytes": "1000"})])
    publisher = broker.publisher()
    publisher.publish("small", b"x" * 900)
    for value, headers in ((b"x" * 1000, None), (b"x" * 500, [("h", b"y" * 500)])):
        with pytest.raises(MessageTooLargeError):
            publisher.publish("small", value, headers=headers)
    assert broker.end_offsets("small") == {0: 1}


def test_a_topic_that_is_missing_is_told_in_the_report(broker: MemoryTransport) -> None:
    told: list[Any] = []
    publisher = broker.publisher()
    publisher.publish("nowhere", b"v", report=lambda error, record: told.append((error, record)))
    publisher.publish("t", b"v", partition=9, report=lambda error, record: told.append((error, record)))
    publisher.publish("nowhere", b"v")
    assert publisher.flush(5) == 0
    errors = [publisher.error(error) for error, _ in told]
    assert [type(error) for error in errors] == [TransportError, TransportError]
    assert "There is no such topic: nowhere" in str(errors[0])
    assert "There is no such partition: t" in str(errors[1])


def test_reports_wait_for_somebody_who_serves(broker: MemoryTransport, eventually: Any) -> None:
    told: list[int] = []
    publisher = broker.publisher()
    publisher.publish("t", b"a", partition=0, report=lambda _, r: told.append(r.offset()))
    publisher.publish("t", b"b", partition=0, report=lambda _, r: told.append(r.offset()))
    assert publisher.flush(5) == 0
    assert told == [0, 1]
    assert publisher.serve(0.01) == 0
    publisher.publish("t", b"c", partition=0, report=lambda _, r: told.append(r.offset()))
    eventually(lambda: told == [0, 1, 2])  # nobody serves, so the publisher's own thread does


def test_of_many_only_what_was_refused_is_told(broker: MemoryTransport) -> None:
    told: list[Any] = []
    publisher = broker.publisher()
    publisher.publish_many("t", [b"a", b"b"], b"k", lambda error, _: told.append(error))
    assert publisher.flush_many(5) == 0
    assert told == []
    publisher.publish_many("nowhere", [b"a", b"b"], b"k", lambda error, _: told.append(error))
    assert publisher.flush_many(5) == 0
    assert len(told) == 2
    assert sum(broker.end_offsets("t").values()) == 2


def test_a_report_that_raises_stops_nothing(broker: MemoryTransport, eventually: Any, caplog: Any) -> None:
    told: list[str] = []

    def fail(error: Any, record: Any) -> None:
        raise RuntimeError("broken report")

    publisher = broker.publisher()
    publisher.publish("t", b"a", report=fail)
    eventually(lambda: "a report raised an error" in caplog.text)
    publisher.publish("t", b"b", report=lambda *_: told.append("b"))
    eventually(lambda: told == ["b"])
    assert publisher.flush(1) == 0


def test_the_seed_decides_on_partitions() -> None:
    spread = []
    for _ in range(2):
        transport = MemoryTransport(clock=ManualClock(), seed=7)
        transport.ensure_topics([TopicSpec("t", 4)])
        transport.publisher().publish_many("t", [b"x"] * 100, None, lambda *_: None)
        spread.append([len([r for r in transport.records("t") if r.partition() == p]) for p in range(4)])
        transport.close()
    assert spread[0] == spread[1]
    assert len(spread[0]) == 4
    assert all(spread[0])


# Groups


def test_a_member_gets_everything_in_the_order_of_each_partition(broker: MemoryTransport, member: Any) -> None:
    publish(broker, 5, 0)
    publish(broker, 5, 1)
    subscription, ear = member()
    seen: dict[Place, list[int]] = {A: [], B: []}
    for _ in range(4):
        runs = subscription.poll(3, 0)
        assert sum(len(run.records) for run in runs) <= 3
        for run in runs:
            assert run.keys == [None] * len(run.records)
            assert run.values == [record.value() for record in run.records]
            seen[run.topic, run.partition] += [record.offset() for record in run.records]
    assert seen == {A: [0, 1, 2, 3, 4], B: [0, 1, 2, 3, 4]}
    assert ear.heard == [("assigned", [Assigned("t", 0, 0, None), Assigned("t", 1, 0, None)])]
    assert subscription.poll(3, 0.01) == []


def test_groups_do_not_see_each_other(broker: MemoryTransport, member: Any) -> None:
    publish(broker, 2)
    for group in ("g", "h"):
        assert offsets(member(group=group)[0].poll(10, 0)) == {A: [0, 1]}


def test_poll_waits_for_what_comes(broker: MemoryTransport, member: Any) -> None:
    subscription, _ = member()
    assert subscription.poll(10, 0) == []
    timer = threading.Timer(0.1, lambda: publish(broker, 1))
    timer.start()
    started = time.monotonic()
    assert offsets(subscription.poll(10, 10)) == {A: [0]}
    assert 0.05 < time.monotonic() - started < 5
    timer.join()


def test_a_topic_that_is_made_later_is_found(broker: MemoryTransport, member: Any) -> None:
    subscription, ear = member("t", "later")
    assert subscription.poll(1, 0) == []
    broker.ensure_topics([TopicSpec("later", 1)])
    subscription.poll(1, 0)
    assert ear.heard[-1] == ("assigned", [Assigned("later", 0, 0, None)])


def test_partitions_move_inside_polls_and_commits_go_along(broker: MemoryTransport, member: Any) -> None:
    publish(broker, 4, 0)
    publish(broker, 4, 1)
    first, ear_one = member()
    first.poll(100, 0)
    second, ear_two = member()
    assert second.poll(100, 0) == []  # nothing is free before the first has let go
    assert ear_two.heard == []
    first.commit({A: Commit(3, "note"), B: Commit(2, "note")}, wait=True)
    first.poll(100, 0)
    [(_, [moved])] = [each for each in ear_one.heard if each[0] == "revoked"]
    assert offsets(second.poll(100, 0)) == {moved: [3] if moved == A else [2, 3]}
    assert ear_two.heard == [("assigned", [Assigned(*moved, 3 if moved == A else 2, "note")])]
    with pytest.raises(TransportError, match="belongs to somebody else"):
        first.commit({moved: Commit(0)}, wait=True)
    first.commit({moved: Commit(0)}, wait=False)
    first.poll(100, 0)
    assert ear_one.heard[-1] == ("commit failed", None)
    assert broker.committed("g")[moved].offset == (3 if moved == A else 2)
    second.close()
    assert ear_two.heard[-1] == ("revoked", [moved])
    first.poll(100, 0)
    assert ear_one.heard[-1][0] == "assigned"
    first.close()
    first.close()
    assert ear_one.heard[-1] == ("revoked", [A, B])


def test_members_share_evenly_whatever_they_read(broker: MemoryTransport, member: Any) -> None:
    broker.ensure_topics([TopicSpec("u", 6)])
    members = [member("t", "u"), member("u"), member("t", "u"), member("nowhere")]
    for _ in range(3):
        for subscription, _ in members:
            subscription.poll(1, 0)
    shares = [Counter(place[0] for place in subscription._positions) for subscription, _ in members]
    assert sum(shares, Counter()) == Counter(t=2, u=6)
    assert sorted(share.total() for share in shares) == [0, 2, 3, 3]


def test_a_member_that_is_thrown_out_hears_of_it_and_comes_back(broker: MemoryTransport, member: Any) -> None:
    subscription, ear = member()
    subscription.poll(1, 0)
    subscription.expire()
    other, _ = member()
    other.poll(1, 0)
    assert len(other._positions) == 2
    assert subscription.poll(1, 0) == []
    assert ear.heard[-1] == ("lost", [A, B])
    other.poll(1, 0)
    subscription.poll(1, 0)
    assert ear.heard[-1][0] == "assigned"
    subscription.kill()
    subscription.expire()
    subscription.kill()
    assert subscription.poll(1, 0.01) == []
    other.poll(1, 0)
    assert len(other._positions) == 2


def test_paused_partitions_wait(broker: MemoryTransport, member: Any) -> None:
    subscription, _ = member()
    subscription.poll(1, 0)
    subscription.pause([A, ("not ours", 0)])
    publish(broker, 1, 0)
    publish(broker, 1, 1)
    assert offsets(subscription.poll(10, 0)) == {B: [0]}
    subscription.resume([A])
    assert offsets(subscription.poll(10, 0)) == {A: [0]}


# Time


def test_time_stands_still_until_it_is_moved() -> None:
    clock = ManualClock()
    start, zero = clock.millis(), clock.monotonic()
    for _ in range(1000):
        clock.move(timedelta(milliseconds=100))
    assert clock.millis() - start == 100_000
    assert clock.monotonic() - zero == 100.0
    with pytest.raises(ConfigurationError, match="only goes forward"):
        clock.move(timedelta(seconds=-1))
    clock.move_to_millis(start)
    assert clock.millis() - start == 100_000


def test_advance_wants_a_clock_that_can_be_moved(broker: MemoryTransport) -> None:
    with pytest.raises(ConfigurationError, match="ManualClock"):
        MemoryTransport().advance(timedelta(seconds=1))
    with pytest.raises(ConfigurationError, match="forward"):
        broker.advance(timedelta(seconds=-1))


@pytest.fixture
def still() -> Iterator[tuple[MemoryTransport, App]]:
    """An app whose broker's time stands still."""
    transport = MemoryTransport.named("still", clock=ManualClock())
    with App("memory://still") as app:
        yield transport, app
    transport.close()
    MemoryTransport.forget("still")


def test_what_is_given_up_for_an_hour_comes_after_an_hour(still: tuple[MemoryTransport, App]) -> None:
    transport, app = still
    queue = app.queue("q", str)
    queue.send("later", key="k")
    with queue.consume() as consumer:
        [message] = consumer.receive()
        message.nack(timedelta(hours=1))
    assert transport.advance(timedelta(minutes=59, seconds=59)) is None
    with queue.consume() as consumer:
        assert consumer.receive(timeout=timedelta(milliseconds=50)) == []
        transport.advance(timedelta(seconds=2))
        [again] = consumer.receive()
        assert (again.value, again.attempt, again.key, again.id) == ("later", 2, b"k", message.id)
        again.ack()
    redelivered = transport.records(queue.topic)[-1]
    assert redelivered.timestamp()[1] - transport.records(queue.topic)[0].timestamp()[1] == 3_600_001


def test_everything_due_on_the_way_happens_at_its_own_time(still: tuple[MemoryTransport, App]) -> None:
    transport, app = still
    queue = app.queue("q", int)
    queue.send_many(range(5))
    with queue.consume(hold_max=timedelta(0)) as consumer:
        for message in consumer.receive(5):
            message.nack(timedelta(minutes=1 + message.value))
        got = consumer.receive(5, timeout=timedelta(milliseconds=50))
        while len(transport.records(queue.topic)) < 5 or got:
            for message in got:
                message.nack(timedelta(minutes=1 + message.value))
            got = consumer.receive(5, timeout=timedelta(milliseconds=50))
    start = transport.clock.millis()
    transport.advance(timedelta(hours=1))
    times = sorted(r.timestamp()[1] - start for r in transport.records(queue.topic) if r.headers())
    assert times == [60_001, 120_001, 180_001, 240_001, 300_001]
    assert transport.clock.millis() - start == 3_600_000
    kinds = Counter(decode(record.value()).kind for record in transport.records(app.markers_topic))
    assert kinds[Kind.REDELIVERED] >= 1


def test_a_killed_consumer_s_leases_run_out_and_in_the_end_become_dead_letters(
    still: tuple[MemoryTransport, App],
) -> None:
    transport, app = still
    queue = app.queue("q", str, retry=Retry(2))
    receipt = queue.send("poison", headers={"h": "1"}).result()
    for attempt in (1, 2):
        consumer = queue.consume(lease=timedelta(seconds=30))
        [message] = consumer.receive()
        assert message.attempt == attempt
        kill(consumer)
        kill(consumer)
        assert consumer.receive(timeout=timedelta(milliseconds=10)) == []
        transport.advance(timedelta(seconds=29))
        assert len(transport.records(queue.topic)) == attempt
        transport.advance(timedelta(seconds=2))
    [letter] = transport.records(app.dead_letter_topic)
    headers = dict(letter.headers() or [])
    assert letter.value() == b"poison"
    assert headers["marq-id"] == headers["marq-origin"] == receipt.id.encode()
    assert (headers["marq-attempt"], headers["marq-reason"], headers["h"]) == (b"2", b"lease expired", b"1")
    assert len(transport.records(queue.topic)) == 2


def test_a_letter_for_a_topic_that_is_missing_gets_one(still: tuple[MemoryTransport, App]) -> None:
    transport, app = still
    queue = app.queue("q", str, retry=Retry(1))
    queue.send("x")
    consumer = queue.consume()
    consumer.receive()
    kill(consumer)
    transport._broker.topics.pop(app.dead_letter_topic)
    transport.advance(timedelta(minutes=1))
    assert [record.value() for record in transport.records(app.dead_letter_topic)] == [b"x"]


def test_a_message_whose_partition_was_lost_says_so(eventually: Any) -> None:
    with App("memory://") as app:
        queue = app.queue("q", str)
        with queue.consume(mark_after=timedelta(seconds=10)) as consumer:
            while len(consumer._desk.frontiers) < 4:
                consumer.receive(timeout=timedelta(milliseconds=10))
        queue.send("x").result()
        with queue.consume(mark_after=timedelta(seconds=10)) as consumer:
            [message] = consumer.receive()
            consumer._subscription.expire()
            eventually(lambda: consumer.counts.get("lost"))
            with pytest.raises(LeaseExpiredError):
                message.nack()
            message.ack()  # too late to matter, and harmless
            assert consumer.counts["stale"] == 2
            [again] = consumer.receive()
            assert (again.value, again.attempt) == ("x", 1)
            again.ack()


def test_kill_is_for_memory_only() -> None:
    class Other:
        _subscription = None

    with pytest.raises(ConfigurationError, match="consumers of memory://"):
        kill(Other())  # type: ignore[arg-type]


def test_the_pipeline_thread_says_when_it_cannot_go_on(eventually: Any, caplog: Any, monkeypatch: Any) -> None:
    from marq.core.ledger import Ledger  # noqa: PLC0415 - broken below, for this test alone

    def fail(*_: Any) -> None:
        raise RuntimeError("broken ledger")

    monkeypatch.setattr(Ledger, "apply", fail)
    with App("memory://") as app:
        app.ensure_topics()
        app.transport.publisher().publish(app.markers_topic, b"anything")
        eventually(lambda: "the pipeline of memory:// stops" in caplog.text)


def test_nothing_is_left_running_when_it_is_closed(eventually: Any) -> None:
    before = set(threading.enumerate())
    app = App("memory://")
    queue = app.queue("q", str)
    queue.send("x").result()
    with queue.consume() as consumer:
        [message] = consumer.receive()
        message.ack()
    app.close()
    del app, queue, consumer, message
    gc.collect()
    eventually(lambda: set(threading.enumerate()) <= before)
