"""A small demo without servers: the same plan, handler and sum, on a broker in memory, with a killed consumer."""

import threading
import time
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest

from marq import App
from marq.demo import plan, worker
from marq.demo.audit import Evidence, Killed
from marq.demo.log import LeaseBook, TopicReader
from marq.demo.plan import Order
from marq.demo.reports import HERE, ReportFile, ReportTail
from marq.demo.tally import Tally, WorkerTally
from marq.testing import kill

MESSAGES = 400
LEASE = timedelta(seconds=2)
PATIENCE = 60.0


class SmallDemo:
    def __init__(self, folder):
        self.app = App("memory://small-demo", consumer=replace(plan.CONSUMER, lease=LEASE))
        self.queue = self.app.queue(plan.QUEUE, Order, retry=plan.RETRY)
        self.orders = [replace(order, seconds=0.05 if order.seconds else 0.0) for order in plan.plan(MESSAGES, seed=7)]
        self.tally = Tally(MESSAGES)
        self.folder = folder

    def run(self):
        sent = [self.queue.send(order, key=plan.key_of(order), headers=plan.headers_of(order)) for order in self.orders]
        self.sent = [receipt.result().id for receipt in sent]
        reader = TopicReader(self.app.transport, [self.app.markers_topic])
        self.killed = self._first_half(reader)
        self._second_half(reader)
        reader.close()
        self.evidence = Evidence(self.app, self.queue)
        self.app.close()

    def _first_half(self, reader):
        """A consumer that acks half of the messages, keeps every tenth, and dies."""
        report, tail = self._worker("A")
        book = LeaseBook()
        consumer = self.queue.consume()
        report.write(HERE, consumer.id)
        for number, message in enumerate(consumer):
            if number % 10:
                worker.handle(message, report, 0.0)
            if number == MESSAGES // 2:
                break
        wait(lambda: note(book, reader) and book.in_hands_of(consumer.id) > 2)
        kill(consumer)
        self.tally.take(self.tally.workers[0], tail.read())
        self.tally.workers[0].state = "killed"
        note(book, reader)
        return Killed("A", 1, consumer.id, book.in_hands_of(consumer.id))

    def _second_half(self, reader):
        report, tail = self._worker("B")
        book = LeaseBook()
        every_marker = TopicReader(self.app.transport, [self.app.markers_topic])
        dead = TopicReader(self.app.transport, [self.app.dead_letter_topic])
        letters = []

        def is_over():
            note(book, every_marker)
            letters.extend(dead.read())
            self.tally.take(self.tally.workers[1], tail.read())
            return len(self.tally.acked) + len(letters) >= MESSAGES and not book.live

        with self.queue.consume() as messages:
            report.write(HERE, messages.id)
            thread = threading.Thread(
                target=lambda: [worker.handle(message, report, 0.0) for message in messages], daemon=True
            )
            thread.start()
            wait(is_over)
            messages.stop()
            thread.join(10)
        every_marker.close()
        dead.close()
        self.tally.take(self.tally.workers[1], tail.read())

    def _worker(self, name):
        self.tally.workers.append(WorkerTally(name, len(self.tally.workers) + 1))
        path = self.folder / name
        return ReportFile(path), ReportTail(path)


def note(book, reader):
    for record in reader.read():
        book.read(record.value())
    return True


def wait(condition):
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture(scope="session")
def small_demo(tmp_path_factory):
    demo = SmallDemo(tmp_path_factory.mktemp("small-demo"))
    demo.run()
    return SimpleNamespace(**vars(demo))
