"""The pulse: appends ticks to the markers topic, so that the broker's clock reaches the ledger when nothing else does.

When and where is decided by `marq.core.aim`; the thread here only does what it says.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from marq.core.aim import Aim
from marq.core.records import Kind, Marker, encode
from marq.errors import MarqError
from marq.telemetry import Event
from marq.transport.base import Publisher, Record

log = logging.getLogger("marq.pipeline")

TICK = encode(Marker(Kind.TICK))
SERVE_EVERY = 0.05


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Pulse:
    """A thread with a publisher. `report` and `start_over` may be called from any thread."""

    def __init__(self, publisher: Publisher, topic: str, aim: Aim, clock: Callable[[], int] = monotonic_ms) -> None:
        self._publisher = publisher
        self._topic = topic
        self._aim = aim
        self._clock = clock
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="marq-pulse", daemon=True)
        self.ticks = 0
        self.last_error: str | None = None

    def stop(self) -> None:
        with self._changed:
            self._stopping.set()
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def report(self, partition: int, *, due: int | None, seen: int) -> None:
        """What a batch said of a partition."""
        with self._changed:
            self._aim.report(partition, due=due, seen=seen)
            self._changed.notify()

    def start_over(self, partitions: Iterable[int]) -> None:
        """The query has been started, or started again: each partition gets a tick."""
        with self._changed:
            self._aim.watch(partitions)
            self._aim.start_over()
            self._changed.notify()
        if self._thread.ident is None:
            self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            with self._changed:
                targets = self._aim.take(self._clock())
            for partition in targets:
                self._tick(partition)
            with self._changed:
                waiting = self._aim.on_their_way
                if not waiting and not self._stopping.is_set():
                    self._changed.wait(self._aim.wait(self._clock()) / 1000)
            if waiting:
                self._publisher.serve(SERVE_EVERY)

    def _tick(self, partition: int) -> None:
        try:
            self._publisher.publish(self._topic, TICK, partition=partition, report=partial(self._reported, partition))
        except MarqError as error:
            self._failed(partition, error)

    def _reported(self, partition: int, error: Any, record: Record) -> None:
        if error:
            self._failed(partition, self._publisher.error(error))
            return
        with self._changed:
            self._aim.delivered(partition, time=record.timestamp()[1], moment=self._clock())
            self.ticks += 1
            self.last_error = None
            self._changed.notify()

    def _failed(self, partition: int, error: MarqError) -> None:
        log.warning(
            "a tick for markers partition %d was not taken and will be sent again: %s",
            partition,
            error,
            extra={"event": Event.TICK_FAILED},
        )
        with self._changed:
            self._aim.failed(partition, moment=self._clock())
            self.last_error = str(error)
            self._changed.notify()
