"""The pipeline's part inside the in-memory broker: the same ledger, fed by the same markers, without Spark."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from marq.core.ledger import Ledger
from marq.core.records import Kind, Letter, Marker, encode
from marq.core.shelf import DictShelf
from marq.transport.base import TopicSpec

if TYPE_CHECKING:
    from marq.transport.memory_broker import Broker, Topic

log = logging.getLogger("marq.memory")

TICK = encode(Marker(Kind.TICK))


class LedgerHost:
    """One markers topic: a ledger per partition. Every method wants the broker's lock held."""

    def __init__(self, broker: Broker, topic: Topic) -> None:
        self._broker = broker
        self._topic = topic
        self._ledgers = [Ledger(DictShelf()) for _ in topic.logs]
        self._read = [0] * len(topic.logs)
        self._due: list[int | None] = [None] * len(topic.logs)

    def run(self) -> None:
        """Read what is new and deliver what is due."""
        for partition in range(len(self._ledgers)):
            if self._read[partition] < len(self._topic.logs[partition]):
                self._settle(partition)
            due = self._due[partition]
            if due is not None and self._broker.clock.millis() >= due:
                self._broker.append(self._topic.name, None, TICK, partition=partition)
                self._settle(partition)

    def next_due(self) -> int | None:
        """When to look again, in milliseconds of the broker's clock."""
        return min((due for due in self._due if due is not None), default=None)

    def _settle(self, partition: int) -> None:
        """Until the ledger has nothing more to say: what it is given back, such as confirmations, is news to it too."""
        ledger = self._ledgers[partition]
        while True:
            fresh = self._topic.logs[partition][self._read[partition] :]
            for record in fresh:
                ledger.apply(record.offset(), record.timestamp()[1], record.value())
            self._read[partition] += len(fresh)
            harvest = ledger.collect()
            ledger.save()
            for letter in harvest.letters:
                self._deliver(letter)
            for marker in harvest.markers:
                self._broker.append(self._topic.name, None, marker, partition=partition)
            if not (fresh or harvest.letters or harvest.markers):
                self._due[partition] = harvest.next_due
                return

    def _deliver(self, letter: Letter) -> None:
        """A letter whose topic is missing gets one: nothing may be lost."""
        topic = self._broker.create(TopicSpec(letter.topic, 1))
        partition = -1 if letter.partition is None or letter.partition >= len(topic.logs) else letter.partition
        self._broker.append(letter.topic, letter.key, letter.value, letter.headers, partition=partition)


class PipelineThread:
    """Runs the ledgers in real time: awake when a marker comes or something is due, else asleep."""

    def __init__(self, broker: Broker, hosts: dict[str, LedgerHost]) -> None:
        self._broker = broker
        self._hosts = hosts
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="marq-memory-pipeline", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        with self._broker.lock:
            self._stopping = True
            self._broker.marked.notify_all()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        with self._broker.lock:
            while not self._stopping:
                try:
                    for host in self._hosts.values():
                        host.run()
                except Exception:
                    log.exception("the pipeline of memory:// stops: nothing is redelivered any more; please report it")
                    return
                dues = [due for host in self._hosts.values() if (due := host.next_due()) is not None]
                wait = (min(dues) - self._broker.clock.millis()) / 1000 if dues else None
                self._broker.marked.wait(None if wait is None else max(0.0005, wait))
