"""Messages under leases: polled, handed out, settled; and the thread that keeps what takes longer."""

from __future__ import annotations

import logging
import os
import random
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import islice, repeat
from typing import Any, Generic, Self, TypeVar

from marq._hand import Hand
from marq._intake import Intake
from marq._scribe import Scribe
from marq.codecs import Codec
from marq.core import records
from marq.core.caution import CLEAN, OPEN, Caution
from marq.core.desk import Desk
from marq.core.frontier import ACKED, IN_FLIGHT, LOST, PARKED, Place, Sheet
from marq.core.lease import Lease, State, Terms
from marq.errors import AlreadySettledError, ConfigurationError, LeaseExpiredError, MarqError, TransportError
from marq.message import Message
from marq.retry import DELAY_MAX, Retry
from marq.settings import ConsumerSettings, require_between
from marq.telemetry import Counters, Event
from marq.transport.base import Assigned, Commit, Record, Run, Transport

log = logging.getLogger("marq.consumer")

T = TypeVar("T")

BUSY_POLL = 0.02  # while messages are out, a nack may ask for one of them at any moment
IDLE_POLL = 0.25
FULL_PAUSE = 0.005  # with max_in_flight unsettled, how often to look whether one was settled
TAKEOVER_AFTER = 1.0  # without a poll from the application, the keeper polls, so that the group goes on
GATHER = 0.002  # markers that are asked for together travel together
COMMIT_FAILED = {"event": Event.COMMIT_FAILED}
DECODE_FAILED = {"event": Event.DECODE_FAILED}


class Consumer(Generic[T]):
    """Hands out the messages of one queue. Iterate it in one thread; settle messages in any.

    Made by `queue.consume()`; use it as a context manager, so that what is not settled goes back at once.
    """

    def __init__(
        self,
        *,
        queue: str,
        topics: Sequence[str],
        group: str,
        markers: str,
        dead_letters: str,
        transport: Transport,
        codec: Codec[T],
        retry: Retry,
        settings: ConsumerSettings,
        delay_max: timedelta,
        shared: bool,
    ) -> None:
        self.queue = queue
        self.id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._settings = settings
        self._retry = retry
        self._delay_max = min(delay_max, DELAY_MAX)
        self._shared = shared
        partitions = transport.partitions(markers)
        if not partitions:
            raise ConfigurationError(f"There is no topic {markers}. Create marq's topics: App(...).ensure_topics().")
        self._desk = Desk(
            Terms(
                queue=queue,
                owner=self.id,
                lease=settings.lease.total_seconds(),
                mark_after=settings.mark_after.total_seconds(),
                hold_max=settings.hold_max.total_seconds(),
                hold_bytes=settings.hold_bytes,
                max_attempts=retry.max_attempts,
                dead_letter_topic=dead_letters,
            )
        )
        self._intake = Intake(codec, queue.encode() if shared else None, self._desk.counts)
        self._lock = threading.RLock()  # the desk; never held while publishing or serving reports
        # Held for every call into the subscription. The client lets one thread in at a time: a commit that waited there
        # for a poll to end would stop the rebalance in that poll, and come after it, for partitions of somebody else.
        self._poll_lock = threading.Lock()
        self._commit_at = 0.0
        self._wake = threading.Event()
        self._closing = False
        self._closed = False
        self._failure: MarqError | None = None
        self._hand: Hand[T] = Hand()
        self._stash: list[tuple[list[Message[T]], list[Sheet]]] = []
        self._caution = Caution(settings.max_in_flight)
        self._polled_at = time.monotonic()
        self._paused: list[Place] = []
        self._publisher = transport.publisher()
        self._scribe = Scribe(
            self._desk, self._lock, self._publisher, markers=markers, partitions=partitions, wake=self._wake.set
        )
        self._subscription = transport.subscription(
            group, topics, self, session_timeout=settings.session_timeout.total_seconds()
        )
        self._keeper = threading.Thread(target=self._keep, name=f"marq-keeper-{queue}", daemon=True)
        self._keeper.start()

    # Handing out

    def __iter__(self) -> Iterator[Message[T]]:
        while True:
            yield from self._hand.rest
            if not self._next_batch(None):
                return

    def receive(self, max_messages: int = 1, timeout: timedelta = timedelta(seconds=1)) -> list[Message[T]]:
        """At most so many messages, as soon as there is one; an empty list when there is none in time."""
        require_between("receive: timeout", timeout, timedelta(0), timedelta(days=1))
        until = time.monotonic() + timeout.total_seconds()
        messages: list[Message[T]] = []
        while not messages and not self._closing:
            messages = list(islice(self._hand.rest, max_messages))
            if not messages and not self._next_batch(until):
                break
        return messages

    def _next_batch(self, until: float | None) -> bool:
        """Wait for something to hand out. False: the consumer closes, or the time is up."""
        with self._lock:
            self._hand.note()
        while not self._closing:
            if self._failure is not None:
                raise self._failure
            with self._lock:
                due, room, wait = self._look()
            if due:
                self._wake.set()
                self._deal(due, ())
                return True
            if self._stash:
                with self._lock:
                    messages, sheets = self._stash.pop(0)
                self._deal([m for m in messages if m._sheet.flags[m._index] != LOST], sheets)  # noqa: SLF001
                return True
            if room > 0:
                if until is not None:
                    wait = min(wait, max(0.0, until - time.monotonic()))
                if self._poll(room, wait):
                    return True
            else:
                time.sleep(FULL_PAUSE)
            if until is not None and time.monotonic() >= until:
                break
        return False

    def _look(self) -> tuple[list[Message[T]], int, float]:
        """Held messages that are due, how many more may be in flight, and how long to wait for one."""
        now = time.monotonic()
        unsettled = self._desk.unsettled()
        room = min(self._settings.poll_batch, self._settings.max_in_flight - unsettled)
        due = [self._reissue(lease) for lease in self._desk.ready(now, room)]
        chunk = BUSY_POLL if self._desk.leases or unsettled else IDLE_POLL
        return due, room, max(0.0, min(chunk, self._desk.next_due() - now))

    def _reissue(self, lease: Lease) -> Message[T]:
        sheet = Sheet(self, lease.place, [lease.record], 0, flag=PARKED, attempt=lease.attempt)
        self._desk.reissue(lease, sheet, 0)
        return Message(lease.record, self._intake.value(lease.record.value()), sheet, 0)

    def _poll(self, room: int, wait: float) -> bool:
        with self._poll_lock:
            if self._paused:
                with self._lock:
                    paused = [place for place in self._paused if place in self._desk.frontiers]
                self._subscription.resume(paused)
                self._paused = []
            runs = self._subscription.poll(room, wait)
            self._polled_at = time.monotonic()
            messages, sheets = self._take_all(runs) if runs else ([], [])
            self._commit_if_due(self._polled_at)
        if messages:
            self._deal(messages, sheets)
        return bool(messages)

    def _take_all(self, runs: Sequence[Run]) -> tuple[list[Message[T]], list[Sheet]]:
        try:
            return self._take(runs)
        except BaseException:
            self._failure = TransportError(
                "Reading was interrupted. Close this consumer and open another; nothing is lost."
            )
            raise

    def _take(self, runs: Sequence[Run]) -> tuple[list[Message[T]], list[Sheet]]:
        messages: list[Message[T]] = []
        sheets: list[Sheet] = []
        careful = False
        for run in runs:
            rows, values, broken, end = self._intake.open(run)
            sheet = Sheet(self, (run.topic, run.partition), rows, end)
            with self._lock:
                if not self._desk.received(sheet):
                    continue
                if self._caution.leases_first(sheet.place, sheet.count):
                    careful = True
                    self._desk.lease_all(sheet)
            sheets.append(sheet)
            opened = list(map(Message, rows, values, repeat(sheet), range(len(rows))))
            if broken:
                opened = self._without(opened, broken)
            messages.extend(opened)
        if careful:
            self._scribe.flush()
            self._scribe.settle(sheets)
        self._commit_before_handing(sheets, careful)
        return messages, sheets

    def _commit_before_handing(self, sheets: Sequence[Sheet], careful: bool) -> None:
        """Nothing is handed out before the group knows that somebody is at work here: what comes now may kill us."""
        unknown = self._caution.is_unannounced(sheet.place for sheet in sheets)
        if not (careful or unknown or self._caution.commits_now(time.monotonic())):
            return
        try:
            self._commit(wait=careful or unknown)
            if careful or unknown:
                with self._lock:
                    frontiers = self._desk.frontiers.items()
                    self._caution.announced(place for place, frontier in frontiers if frontier.committed >= 0)
        except TransportError as error:
            log.warning(
                "a commit before messages are handed out failed and is made again: %s", error, extra=COMMIT_FAILED
            )
            self.on_commit_failed()

    def _without(self, messages: list[Message[T]], broken: dict[int, str]) -> list[Message[T]]:
        """What cannot be read becomes a dead letter here: it would fail in every handler, for ever."""
        for index, reason in broken.items():
            log.warning("%r becomes a dead letter: %s", messages[index], reason, extra=DECODE_FAILED)
            with self._lock:
                dying = self._desk.dying(*self._lease_of(messages[index]))
            self._scribe.bury(dying, f"cannot be decoded: {reason}")
        return [message for index, message in enumerate(messages) if index not in broken]

    def _deal(self, messages: list[Message[T]], sheets: Sequence[Sheet]) -> None:
        with self._lock:
            self._hand.deal(messages, sheets)

    # Settling: what a message asks for when one byte is not enough

    def _lease_of(self, message: Message[Any]) -> tuple[Sheet, int, Lease | None]:
        sheet, index = message._sheet, message._index  # noqa: SLF001 - a message is a handle on the consumer's sheet
        return sheet, index, self._desk.find(sheet, index)

    def _still_ours(self, message: Message[Any]) -> tuple[Sheet, int, Lease | None]:
        """The lease to settle, or an error that says why there is none."""
        sheet, index, lease = self._lease_of(message)
        flag = sheet.flags[index]
        if flag == LOST or self._closed or (lease is not None and lease.has_run_out(time.monotonic())):
            self._desk.counts["stale"] += 1
            raise LeaseExpiredError(message_id=message.id)
        settled = lease is None and flag != IN_FLIGHT
        if settled or (lease is not None and lease.state not in {State.MARKING, State.LEASED}):
            raise AlreadySettledError(message_id=message.id)
        return sheet, index, lease

    def ack_late(self, message: Message[Any]) -> None:
        with self._lock:
            sheet, index, lease = self._lease_of(message)
            if lease is not None and lease.state in {State.MARKING, State.LEASED, State.EXPIRED}:
                self._desk.ack(lease)
            elif sheet.flags[index] == LOST or self._closed:
                self._desk.counts["stale"] += 1
            elif sheet.flags[index] != ACKED:
                raise AlreadySettledError(message_id=message.id)
        self._wake.set()

    def nack(self, message: Message[Any], delay: timedelta | None) -> None:
        if delay is not None:
            require_between("nack: delay", delay, timedelta(0), self._delay_max, "the topics' retention")
        with self._lock:
            sheet, index, lease = self._still_ours(message)
            attempt = lease.attempt if lease is not None else self._desk.attempt_of(sheet, index)
            dying = None
            if 0 < self._retry.max_attempts <= attempt:
                dying = self._desk.dying(sheet, index, lease)
            else:
                wait = delay if delay is not None else self._retry.delay_after(attempt, random.random)
                self._desk.nack(sheet, index, lease, wait.total_seconds())
        if dying is not None:
            self._scribe.bury(dying, f"failed {attempt} times")
        self._wake.set()

    def extend(self, message: Message[Any], lease_for: timedelta) -> None:
        require_between("extend: lease", lease_for, timedelta(seconds=1), timedelta(hours=12))
        with self._lock:
            sheet, index, lease = self._still_ours(message)
            self._desk.extend(sheet, index, lease, lease_for.total_seconds(), time.monotonic())
        self._wake.set()

    def dead_letter(self, message: Message[Any], reason: str) -> None:
        if not isinstance(reason, str):
            raise TypeError(f"dead_letter: the reason must be str, not {type(reason).__name__}")
        with self._lock:
            dying = self._desk.dying(*self._still_ours(message))
        self._scribe.bury(dying, reason)
        self._wake.set()

    def key_of(self, record: Record) -> bytes | None:
        if not self._shared:
            return record.key()
        return next((data for name, data in record.headers() or () if name == records.KEY), None)

    # Assignments, told from inside a poll

    def on_assigned(self, partitions: Sequence[Assigned]) -> None:
        for topic, partition, start, metadata in partitions:
            end = self._subscription.end((topic, partition)) if metadata not in {None, CLEAN} else -1
            log.info("%s/%d is ours", topic, partition, extra={"event": Event.CONSUMER_ASSIGNED})
            with self._lock:
                self._desk.assigned((topic, partition), start)
                if not self._caution.assigned((topic, partition), metadata, time.monotonic(), end):
                    log.info("%s/%d was not left in order", topic, partition, extra={"event": Event.UNCLEAN_TAKEOVER})
        self._wake.set()

    def on_revoked(self, places: Sequence[Place]) -> None:
        """What the application has is leased before the partition goes, so the next owner does not get it too."""
        with self._lock:
            self._hand.withhold(places)
            self._desk.lease_handed(places)
            frontiers = [self._desk.frontiers[place] for place in places if place in self._desk.frontiers]
            sheets = [sheet for frontier in frontiers for sheet in frontier.sheets]
        self._scribe.flush()
        self._scribe.settle(sheets)
        try:
            self._commit(wait=True, leaving=places)
        except TransportError as error:
            log.warning(
                "the last commit before a partition went failed; its next owner reads a little again: %s",
                error,
                extra=COMMIT_FAILED,
            )
        self._drop(places)

    def on_lost(self, places: Sequence[Place]) -> None:
        log.warning(
            "lost %d partitions of %s: another consumer may have them already",
            len(places),
            self.queue,
            extra={"event": Event.CONSUMER_LOST},
        )
        with self._lock:
            self._hand.withhold(places)
        self._drop(places)

    def _drop(self, places: Sequence[Place]) -> None:
        with self._lock:
            for place in places:
                self._desk.dropped(place)
                log.info("%s/%d goes", *place, extra={"event": Event.CONSUMER_REVOKED})
                self._caution.dropped(place)

    def on_commit_failed(self) -> None:
        with self._lock:
            self._desk.counts["commit_failed"] += 1
            self._desk.commit_again()

    # The keeper

    def _keep(self) -> None:
        """Marks what is slow, keeps leases alive, commits, and polls when the application does not."""
        scan = max(0.01, self._settings.mark_after.total_seconds() / 4)
        commit_every = self._settings.commit_interval.total_seconds()
        marked = 0
        while not self._closed:
            self._wake.wait(0.005 if self._scribe.is_busy else min(scan, commit_every, 0.25))
            if self._wake.is_set():
                self._wake.clear()
                time.sleep(GATHER)
            try:
                now = time.monotonic()
                with self._lock:
                    self._hand.note()
                    self._desk.mark_slow(now)
                    self._desk.renew(now)
                self._scribe.flush()
                self._publisher.serve(0)
                self._scribe.try_refused(now)
                if marked != (marked := self._desk.counts["leased"] + self._desk.counts["held"]):
                    self._commit_at = 0.0  # a lease whose offset is not committed would be read again after a crash
                self._commit_between_polls(now)
                if now - self._polled_at > TAKEOVER_AFTER and not self._closing:
                    self._poll_for_the_group()
            except MarqError as error:
                self._give_up_on(error)
            except Exception:
                log.exception("the keeper of %s goes on after an error; please report it", self.queue)

    def _give_up_on(self, error: MarqError) -> None:
        if isinstance(error, TransportError) and not error.retryable:
            self._failure = error
        log.warning("the keeper of %s tries again after: %s", self.queue, error)

    def _poll_for_the_group(self) -> None:
        """A handler that takes long must not cost the group its member: poll with everything paused."""
        if not self._poll_lock.acquire(blocking=False):
            return
        try:
            with self._lock:
                self._paused = list(self._desk.frontiers)
            self._subscription.pause(self._paused)
            runs = self._subscription.poll(100, 0)
            if runs:
                batch = self._take_all(runs)
                if batch[0]:
                    with self._lock:
                        self._stash.append(batch)
        finally:
            self._poll_lock.release()

    def _commit_between_polls(self, now: float) -> None:
        """While the application is busy. When it polls it commits itself."""
        if now >= self._commit_at and self._poll_lock.acquire(blocking=False):
            try:
                self._commit_if_due(now)
            finally:
                self._poll_lock.release()

    def _commit_if_due(self, now: float) -> None:
        if now < self._commit_at or self._closed:
            return
        self._commit_at = now + self._settings.commit_interval.total_seconds()
        try:
            self._commit(wait=False)
        except TransportError as error:
            self._give_up_on(error)
            self.on_commit_failed()

    def _commit(self, *, wait: bool, leaving: Sequence[Place] | None = None) -> None:
        """Under the poll lock: so nothing overtakes it, and no rebalance waits for it."""
        with self._lock:
            positions = self._desk.positions()
            if leaving is not None:
                going = [(p, self._desk.frontiers[p].position) for p in leaving if p in self._desk.frontiers]
                positions = {place: position for place, position in going if position >= 0}
            self._desk.committed(positions.items())
            self._desk.counts["commits"] += bool(positions)
            commits = {
                p: Commit(at, self._caution.parting_word(p, at) if leaving else OPEN) for p, at in positions.items()
            }
        self._subscription.commit(commits, wait=wait)

    # Ending

    def stop(self) -> None:
        """End the iteration after the message in hand; from any thread or a signal handler."""
        self._closing = True
        with self._lock:
            self._hand.put_down()
        self._wake.set()

    def close(self) -> None:
        """Give everything back: what is not settled is delivered again at once, to somebody else."""
        if self._closed:
            return
        self.stop()
        with self._poll_lock:
            with self._lock:
                places = list(self._desk.frontiers)
                sheets = [sheet for frontier in self._desk.frontiers.values() for sheet in frontier.sheets]
                self._desk.close(time.monotonic())
            try:
                self._scribe.flush()
                self._scribe.settle(sheets)
                self._scribe.drain()
                self._commit(wait=True, leaving=places)
            except MarqError as error:
                log.warning("%s closes without a last commit: %s", self.queue, error)
            finally:
                self._closed = True
                self._wake.set()
                self._keeper.join(timeout=30)
                self._subscription.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def counts(self) -> dict[str, int]:
        """What this consumer has done so far."""
        with self._lock:
            self._desk.positions()
            return Counters(**self._desk.counts).snapshot()
