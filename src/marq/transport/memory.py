"""A broker inside this process, for tests and for trying things out: `App("memory://")`.

It plays Kafka's part and the pipeline's, with the same ledger, and in everything that a queue can see it behaves as
they do. What it is not: durable. It keeps every record until the process ends, and then all is gone; and nobody
outside the process can reach it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from marq.errors import ConfigurationError, MarqError, TransportError
from marq.transport.base import (
    DEFAULT_TIMEOUT,
    Assigned,
    Commit,
    Headers,
    Listener,
    Place,
    Publisher,
    Report,
    Run,
    Subscription,
    TopicSpec,
)
from marq.transport.memory_broker import Broker, Clock, Group, ManualClock, MemoryRecord, SystemClock
from marq.transport.memory_pipeline import LedgerHost, PipelineThread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

log = logging.getLogger("marq.memory")

SERVE_EVERY = 0.02


class MemoryTransport:
    """An in-memory broker with its pipeline.

    `MemoryTransport.named(name)` is what `memory://name` stands for. With a `ManualClock` time stands still, and
    `advance` moves it and does what falls due on the way.
    """

    _named: ClassVar[dict[str, MemoryTransport]] = {}
    _naming: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, *, clock: Clock | None = None, seed: int | None = None) -> None:
        self.clock: Clock = clock if clock is not None else SystemClock()
        self._broker = Broker(self.clock, seed)
        self._hosts: dict[str, LedgerHost] = {}
        self._publisher: MemoryPublisher | None = None
        self._pipeline: PipelineThread | None = None
        self._users = 1

    @classmethod
    def named(cls, name: str, *, clock: Clock | None = None) -> MemoryTransport:
        """The broker of this name, the same for everybody in this process. Without a name: a new one."""
        with cls._naming:
            known = cls._named.get(name)
            if known is None:
                known = cls(clock=clock)
                if name:
                    cls._named[name] = known
            elif clock is not None and clock is not known.clock:
                raise ConfigurationError(f"memory://{name} exists already, with another clock. Use another name.")
            else:
                known._users += 1
            return known

    @classmethod
    def forget(cls, name: str) -> None:
        """Make the name free: who asks for it next gets an empty broker."""
        with cls._naming:
            cls._named.pop(name, None)

    def publisher(self) -> Publisher:
        with self._broker.lock:
            if self._publisher is None:
                self._publisher = MemoryPublisher(self._broker)
            return self._publisher

    def subscription(
        self, group: str, topics: Sequence[str], listener: Listener, *, session_timeout: float
    ) -> Subscription:
        """A member of a group. It is never expired for not polling; see `MemorySubscription.expire` and `kill`."""
        del session_timeout
        with self._broker.lock:
            return MemorySubscription(self._broker, self._broker.group(group), topics, listener)

    def ensure_topics(self, specs: Sequence[TopicSpec]) -> None:
        """Create what is missing. A topic that is stamped by the broker and called *.markers gets its pipeline."""
        with self._broker.lock:
            for spec in specs:
                topic = self._broker.create(spec)
                if topic.by_broker_clock and spec.name.endswith(".markers") and spec.name not in self._hosts:
                    self._hosts[spec.name] = LedgerHost(self._broker, topic)
                    self._broker.watch(spec.name)
            if self._hosts and self._pipeline is None and not isinstance(self.clock, ManualClock):
                self._pipeline = PipelineThread(self._broker, self._hosts)

    def partitions(self, topic: str) -> int:
        with self._broker.lock:
            known = self._broker.topics.get(topic)
            return len(known.logs) if known is not None else 0

    def end_offsets(self, topic: str) -> dict[int, int]:
        with self._broker.lock:
            known = self._broker.topics.get(topic)
            return {p: len(each) for p, each in enumerate(known.logs)} if known is not None else {}

    def records(self, topic: str) -> list[MemoryRecord]:
        """Everything on a topic, partition by partition."""
        with self._broker.lock:
            known = self._broker.topics.get(topic)
            return [record for each in known.logs for record in each] if known is not None else []

    def committed(self, group: str) -> dict[Place, Commit]:
        """What a group has committed."""
        with self._broker.lock:
            return dict(self._broker.group(group).committed)

    def advance(self, by: timedelta) -> None:
        """Let time pass on a `ManualClock`; what falls due on the way happens at its moment, in its order."""
        clock = self.clock
        if not isinstance(clock, ManualClock):
            raise ConfigurationError("advance needs a clock that can be moved: MemoryTransport(clock=ManualClock()).")
        if by < timedelta(0):
            raise ConfigurationError(f"advance: time only goes forward, not by {by}.")
        with self._broker.lock:
            start = clock.monotonic()
            left = by
            while True:
                for host in self._hosts.values():
                    host.run()
                left = by - timedelta(seconds=clock.monotonic() - start)
                dues = [due for host in self._hosts.values() if (due := host.next_due()) is not None]
                if not dues or min(dues) > clock.millis() + left // timedelta(milliseconds=1):
                    break
                clock.move_to_millis(min(dues))
            clock.move(max(timedelta(0), left))
            for host in self._hosts.values():
                host.run()
            self._broker.changed.notify_all()

    def close(self) -> None:
        """Serve what is left to report. The last of a name's users ends the threads; the records stay."""
        if self._publisher is not None:
            self._publisher.flush(DEFAULT_TIMEOUT)
        with self._naming:
            self._users -= 1
            if self._users > 0:
                return
            pipeline, self._pipeline = self._pipeline, None
            publisher, self._publisher = self._publisher, None
        if pipeline is not None:
            pipeline.stop()
        if publisher is not None:
            publisher.close(DEFAULT_TIMEOUT)


class MemoryPublisher:
    """Appends at once; reports wait, as a real client's do, until somebody serves them."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._reports: deque[tuple[Report, MarqError | None, Any]] = deque()
        self._arrived = threading.Condition()
        self._unserved = 0  # reports that wait or are being made
        self._closed = False
        self._thread: threading.Thread | None = None

    def publish(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        *,
        partition: int = -1,
        timestamp: int = 0,
        report: Report | None = None,
    ) -> None:
        record, error = self._append(topic, value, key, headers, partition, timestamp)
        if report is not None:
            self._tell([(report, error, record)])

    def publish_many(self, topic: str, values: Sequence[bytes | None], key: bytes | None, refused: Report) -> None:
        for value in values:
            record, error = self._append(topic, value, key)
            if error is not None:
                self._tell([(refused, error, record)])

    def flush_many(self, timeout: float) -> int:
        return self.flush(timeout)

    def _append(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers | None = None,
        partition: int = -1,
        timestamp: int = 0,
    ) -> tuple[MemoryRecord | None, MarqError | None]:
        """A missing topic is told in the report, as by Kafka; a message that is too large is refused at once."""
        try:
            return self._broker.append(topic, key, value, headers, partition=partition, timestamp=timestamp), None
        except TransportError as error:
            return None, error

    def _tell(self, reports: Sequence[tuple[Report, MarqError | None, Any]]) -> None:
        with self._arrived:
            self._reports.extend(reports)
            self._unserved += len(reports)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._serve_quietly, name="marq-memory-reports", daemon=True)
                self._thread.start()
            self._arrived.notify_all()

    def serve(self, timeout: float) -> int:
        with self._arrived:
            if not self._reports and timeout > 0:
                self._arrived.wait(timeout)
        served = 0
        while self._reports:
            try:
                report, error, record = self._reports.popleft()
            except IndexError:  # another thread was faster
                break
            try:
                report(error, record)
            finally:
                with self._arrived:
                    self._unserved -= 1
                    self._arrived.notify_all()
            served += 1
        return served

    def flush(self, timeout: float) -> int:
        until = time.monotonic() + timeout
        while self._unserved and time.monotonic() < until:
            self.serve(min(0.05, timeout))
        return self._unserved

    def error(self, raw: Any) -> MarqError:
        return raw  # type: ignore[no-any-return]  # it is one already

    def _serve_quietly(self) -> None:
        """For senders that never look: asyncio's, and those that stopped sending."""
        while True:
            with self._arrived:
                while not self._reports and not self._closed:
                    self._arrived.wait()
                if self._closed:
                    return
            time.sleep(SERVE_EVERY)
            try:
                self.serve(0)
            except Exception:
                log.exception("a report raised an error")

    def close(self, timeout: float) -> None:
        self.flush(timeout)
        with self._arrived:
            self._closed = True
            self._arrived.notify_all()
        if self._thread is not None:
            self._thread.join(timeout=5)


class MemorySubscription:
    """A member of a group."""

    def __init__(self, broker: Broker, group: Group, topics: Sequence[str], listener: Listener) -> None:
        self._broker = broker
        self._group = group
        self._topics = list(topics)
        self._listener = listener
        self._positions: dict[Place, int] = {}
        self._paused: set[Place] = set()
        self._lost: list[Place] | None = None
        self._refused = False
        self._gone = False
        group.join(self, topics)
        broker.regroup(group)

    def poll(self, max_records: int, timeout: float) -> list[Run]:
        until = time.monotonic() + timeout
        while True:
            self._rebalance()
            with self._broker.lock:
                if not self._gone and self._has_news():
                    continue
                runs = self._take(max_records)
                left = until - time.monotonic()
                if runs or left <= 0:
                    return runs
                self._broker.changed.wait(left)

    def _take(self, room: int) -> list[Run]:
        """From the partitions in a random order, so that none can starve another."""
        ready = [place for place in self._positions if place not in self._paused]
        self._broker.random.shuffle(ready)
        runs: list[Run] = []
        for place in ready:
            if room <= 0:
                break
            rows = self._broker.read(place, self._positions[place], room)
            if rows:
                self._positions[place] += len(rows)
                room -= len(rows)
                runs.append(Run(*place, rows, [row.key() for row in rows], [row.value() for row in rows]))
        return runs

    # Assignments

    def _has_news(self) -> bool:
        group = self._group
        return bool(self._refused or self._lost is not None or group.surplus(self) or group.due(self))

    def _rebalance(self) -> None:
        """Do what the group has planned. The listener is called without the lock: it commits."""
        with self._broker.lock:
            if self._gone:
                return
            lost, self._lost = self._lost, None
            refused, self._refused = self._refused, False
            if lost is not None:
                self._forget(lost)
                self._group.join(self, self._topics)
                self._broker.regroup(self._group)
            surplus = self._group.surplus(self)
        if refused:
            self._listener.on_commit_failed()
        if lost:
            self._listener.on_lost(lost)
        if surplus:
            self._listener.on_revoked(surplus)
        with self._broker.lock:
            self._release(surplus)
            assigned = [self._acquire(place) for place in self._group.due(self)]
        if assigned:
            self._listener.on_assigned(assigned)

    def _acquire(self, place: Place) -> Assigned:
        self._group.owners[place] = self
        commit = self._group.committed.get(place)
        start = commit.offset if commit is not None else 0
        self._positions[place] = start
        return Assigned(*place, start, commit.metadata if commit is not None else None)

    def _forget(self, places: Sequence[Place]) -> None:
        for place in places:
            self._positions.pop(place, None)
            self._paused.discard(place)

    def _release(self, places: Sequence[Place]) -> None:
        self._forget(places)
        for place in places:
            if self._group.owners.get(place) is self:
                del self._group.owners[place]
        if places:
            self._broker.changed.notify_all()

    # Committing

    def commit(self, positions: Mapping[Place, Commit], *, wait: bool) -> None:
        with self._broker.lock:
            refused = [place for place in positions if self._group.owners.get(place) is not self]
            for place, commit in positions.items():
                if place not in refused:
                    self._group.committed[place] = commit
            if not refused:
                return
            self._refused = not wait
        if wait:
            raise TransportError(f"Committing: {refused[0]} belongs to somebody else by now. Nothing is to be done.")

    def end(self, place: Place) -> int:
        with self._broker.lock:
            return len(self._broker.topics[place[0]].logs[place[1]])

    def pause(self, places: Sequence[Place]) -> None:
        with self._broker.lock:
            self._paused.update(place for place in places if place in self._positions)

    def resume(self, places: Sequence[Place]) -> None:
        with self._broker.lock:
            self._paused.difference_update(places)

    # Leaving

    def close(self) -> None:
        with self._broker.lock:
            if self._gone:
                return
            owned = self._group.owned(self)
        if owned:
            self._listener.on_revoked(owned)
        self.kill()

    def kill(self) -> None:
        """Leave without a word, as a process that was killed does once its session has run out."""
        with self._broker.lock:
            if not self._gone:
                self._gone = True
                self._forget(list(self._positions))
                self._group.leave(self)
                self._broker.regroup(self._group)

    def expire(self) -> None:
        """Be thrown out of the group, as a member is that was silent for too long. It learns of it when it polls."""
        with self._broker.lock:
            if not self._gone:
                self._lost = [*(self._lost or ()), *self._group.owned(self)]
                self._group.leave(self)
                self._broker.regroup(self._group)
