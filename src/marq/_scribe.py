"""Writes what the lease desk orders, and tells the desk what became of it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from marq.core import records
from marq.core.desk import Desk
from marq.core.frontier import Sheet
from marq.core.lease import Lease, Order, State
from marq.errors import MarqError, MessageTooLargeError
from marq.telemetry import Event
from marq.transport.base import Publisher, Record

log = logging.getLogger("marq.consumer")

MARKERS_FAILED = {"event": Event.MARKERS_FAILED}
LETTER_AGAIN = 1.0
REASON_MAX = 500  # characters: with the largest message it still fits into a record
DURABLE_WITHIN = 10.0
SERVE = 0.01


class Scribe:
    """The markers and dead letters of one consumer on their way to the broker.

    `lock` guards the desk and is never held while something is published or reports are served: a report takes it, and
    may run in any thread that serves the publisher, another consumer's too.
    """

    def __init__(
        self,
        desk: Desk,
        lock: threading.RLock,
        publisher: Publisher,
        *,
        markers: str,
        partitions: int,
        wake: Callable[[], object],
    ) -> None:
        self._desk = desk
        self._lock = lock
        self._publisher = publisher
        self._markers, self._partitions = markers, partitions
        self._wake = wake
        self._turn = threading.Lock()  # markers leave in the order in which the desk gave them
        self._outstanding = 0
        self._refused: list[tuple[float, Lease, str]] = []  # dead letters that are written again

    @property
    def is_busy(self) -> bool:
        return self._outstanding > 0

    def flush(self) -> None:
        """Write what the desk has ordered."""
        if not self._desk.has_orders:
            return
        with self._turn:
            with self._lock:
                orders = list(self._desk.orders(time.monotonic()))
                self._outstanding += len(orders)
            for order in orders:
                self._write(order)

    def _write(self, order: Order) -> None:
        marker = order.marker
        key = records.stream_key(*marker.stream)

        def report(error: Any, _: Record) -> None:
            self._reported(order, self._publisher.error(error) if error else None)

        try:
            self._publisher.publish(
                self._markers, records.encode(marker), key, partition=records.home(key, self._partitions), report=report
            )
        except MarqError as error:
            self._reported(order, error)
        except Exception as error:
            log.exception("a marker could not be made, and its messages wait in their place; please report it")
            self._reported(order, MessageTooLargeError(f"no marker can carry it: {error}"))

    def _reported(self, order: Order, error: MarqError | None) -> None:
        now = time.monotonic()
        with self._lock:
            self._outstanding -= 1
            if error is None:
                self._desk.counts["markers_sent"] += 1
                self._desk.delivered(order, now)
            else:
                self._desk.counts["markers_failed"] += 1
                self._desk.failed(order, now, forever=isinstance(error, MessageTooLargeError))
        if error is not None:
            log.warning("a marker could not be written and is written again: %s", error, extra=MARKERS_FAILED)

    def bury(self, lease: Lease, reason: str) -> None:
        """The dead letter first; only when it is durable is the message settled. A refused one is written again."""
        record = lease.record
        terms = self._desk.terms
        original = records.Original(
            terms.queue,
            *lease.place,
            lease.offset,
            record.key(),
            record.value(),
            record.headers() or [],
            max(0, record.timestamp()[1]),
        )
        letter = records.dead_letter_of(
            original, topic=terms.dead_letter_topic, attempts=lease.attempt, reason=reason[:REASON_MAX]
        )

        def report(error: Any, _: Record) -> None:
            self._buried(lease, reason, self._publisher.error(error) if error else None)

        with self._lock:
            self._outstanding += 1
        try:
            self._publisher.publish(letter.topic, letter.value, letter.key, letter.headers, report=report)
        except MarqError as error:
            self._buried(lease, reason, error)

    def _buried(self, lease: Lease, reason: str, error: MarqError | None) -> None:
        where = (*lease.place, lease.offset)
        with self._lock:
            self._outstanding -= 1
            if error is None:
                self._desk.died(lease)
            else:
                lease.letter_refused = True
                self._refused.append((time.monotonic() + LETTER_AGAIN, lease, reason))
        if error is not None:
            topic = self._desk.terms.dead_letter_topic
            log.error("%s/%d/%d stays in flight: its dead letter could not be written to %s: %s", *where, topic, error)
        else:
            log.info("%s/%d/%d is dead: %s", *where, reason, extra={"event": Event.DEAD_LETTERED})
        self._wake()

    def try_refused(self, now: float) -> None:
        """Write the dead letters again that the broker refused a while ago."""
        if not self._refused:
            return
        with self._lock:
            due = [entry for entry in self._refused if entry[0] <= now]
            self._refused = [entry for entry in self._refused if entry[0] > now]
        for _, lease, reason in due:
            if lease.state is State.DYING:  # else its partition went, and it belongs to somebody else
                lease.letter_refused = False
                self.bury(lease, reason)

    def settle(self, sheets: Iterable[Sheet]) -> None:
        """Wait until nothing of these runs is on its way any more. Without a broker there is nothing better to do."""
        waiting = list(sheets)
        until = time.monotonic() + DURABLE_WITHIN
        while time.monotonic() < until:
            with self._lock:
                waiting = [sheet for sheet in waiting if self._desk.awaits(sheet)]
            if not waiting:
                return
            self._publisher.serve(SERVE)
            self.flush()

    def drain(self) -> None:
        """Wait until the broker has answered for everything that was written, and for what its answers call for."""
        until = time.monotonic() + DURABLE_WITHIN
        while (self._outstanding > 0 or self._desk.has_orders) and time.monotonic() < until:
            self._publisher.serve(SERVE)
            self.flush()
