"""The pulse's thread, with a publisher that does what the test says."""

import threading
from queue import Queue

import pytest

from marq.core.aim import Aim
from marq.core.records import Kind, decode
from marq.errors import QueueFullError, TransportError
from marq.pipeline.pulse import Pulse

PATIENCE = 10


class Delivered:
    def __init__(self, time):
        self._time = time

    def timestamp(self):
        return (2, self._time)


class FakePublisher:
    """Ticks come out of `ticks`; the test answers each."""

    def __init__(self):
        self.ticks = Queue()
        self.answers = Queue()
        self.refuse = 0

    def publish(self, topic, value, key=None, headers=None, *, partition=-1, timestamp=0, report=None):
        if self.refuse:
            self.refuse -= 1
            raise QueueFullError
        self.ticks.put((topic, decode(value).kind, partition, report))

    def serve(self, timeout):
        if self.answers.empty():
            return 0
        report, error, record = self.answers.get()
        report(error, record)
        return 1

    def error(self, raw):
        return TransportError(raw)

    def next(self):
        return self.ticks.get(timeout=PATIENCE)


class Clock:
    """Time that the test moves, and an event that says when the pulse has looked at it."""

    def __init__(self):
        self.now = 0
        self.read = threading.Event()

    def __call__(self):
        self.read.set()
        return self.now


@pytest.fixture
def publisher():
    return FakePublisher()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def pulse(publisher, clock):
    pulse = Pulse(publisher, "markers", Aim(range(2), heartbeat_ms=10**9), clock)
    pulse.start_over(range(2))
    yield pulse
    pulse.stop()
    assert not pulse.is_alive


def answer(publisher, tick, time=1_000, error=None):
    publisher.answers.put((tick[3], error, Delivered(time)))


@pytest.fixture
def first_ticks(pulse, publisher, eventually):
    """The first ticks, delivered."""
    ticks = [publisher.next(), publisher.next()]
    for tick in ticks:
        answer(publisher, tick)
    eventually(lambda: pulse.ticks == 2)
    return ticks


def test_each_partition_gets_a_tick_at_start(first_ticks):
    assert [tick[:3] for tick in first_ticks] == [("markers", Kind.TICK, 0), ("markers", Kind.TICK, 1)]


@pytest.mark.usefixtures("first_ticks")
def test_a_reported_deadline_gets_a_tick_on_its_partition(pulse, publisher, clock):
    clock.now = 500
    pulse.report(1, due=1_200, seen=1_000)
    assert publisher.next()[:3] == ("markers", Kind.TICK, 1)
    assert publisher.ticks.empty()


@pytest.mark.usefixtures("first_ticks")
def test_after_a_restart_all_get_one(pulse, publisher):
    pulse.start_over(range(2))
    assert {publisher.next()[2], publisher.next()[2]} == {0, 1}


def test_a_tick_that_was_not_taken_is_sent_again(pulse, publisher, clock, eventually):
    publisher.next()
    lost = publisher.next()
    answer(publisher, lost, error="no leader")
    eventually(lambda: pulse.last_error == "no leader")
    clock.now = 1_000
    again = publisher.next()
    assert again[2] == lost[2]
    answer(publisher, again)
    eventually(lambda: pulse.last_error is None)


def test_a_full_buffer_is_no_end(publisher, clock, eventually):
    publisher.refuse = 1
    pulse = Pulse(publisher, "markers", Aim([0], heartbeat_ms=10**9), clock)
    pulse.start_over([0])
    try:
        eventually(lambda: pulse.last_error)
        clock.now = 1_000
        pulse.report(0, due=None, seen=0)
        assert publisher.next()[2] == 0
    finally:
        pulse.stop()


def test_a_pulse_that_never_started_stops():
    Pulse(FakePublisher(), "markers", Aim([0], heartbeat_ms=1)).stop()
