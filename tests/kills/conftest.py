"""A broker, a pipeline and workers, each a process that may be killed, and what the broker holds in the end."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, TopicPartition

from marq import App, TopicSettings
from marq.core.records import Kind, at, decode, provenance

HERE = Path(__file__).parent


class Worker:
    """A worker process and what it has told."""

    def __init__(self, url, prefix, queue, *, attempts=3, acks_later=True, **seconds):
        said = {"url": url, "prefix": prefix, "queue": queue, "attempts": attempts}
        said |= {"acks_later": acks_later, "seconds": seconds}
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "kill_worker.py"), json.dumps(said)], stdout=subprocess.PIPE, text=True
        )
        self.told = []
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self):
        for line in self.process.stdout:
            self.told.append(json.loads(line))

    @property
    def got(self):
        return [line for line in self.told if line["event"] == "got"]

    def kill(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)
        self._thread.join(10)
        self.process.stdout.close()


class PipelineChild:
    """`marq pipeline`, started as its users start it."""

    def __init__(self, bootstrap, prefix, checkpoint, log):
        self.bootstrap, self.prefix, self.checkpoint, self.log = bootstrap, prefix, checkpoint, log
        self.process = None

    def start(self):
        with self.log.open("ab") as errors:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "marq.cli", "pipeline", "--bootstrap", self.bootstrap, "--json"),
                    *("--checkpoint", str(self.checkpoint), "--spark-log", f"{self.log}.spark"),
                ],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "MARQ_TOPICS_PREFIX": self.prefix},
            )
        for line in self.process.stdout:
            if '"ready"' in line:
                break
        else:
            pytest.fail(self.log.read_text()[-3000:])
        self._drain = threading.Thread(target=self.process.stdout.read, daemon=True)
        self._drain.start()
        return self

    def kill(self):
        """kill -9 of the driver; the JVM and Spark's Python workers must follow it by themselves."""
        family = psutil.Process(self.process.pid).children(recursive=True)
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)
        _, alive = psutil.wait_procs(family, timeout=20)
        for process in alive:
            process.kill()
        self._let_go()
        assert not alive, f"{alive} outlived the pipeline"

    def _let_go(self):
        self._drain.join(10)
        self.process.stdout.close()

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
            else:
                self._let_go()


class Stage:
    """One prefix on the broker: its topics, its pipeline, its workers."""

    def __init__(self, bootstrap, prefix, folder):
        self.bootstrap, self.prefix = bootstrap, prefix
        self.app = App(f"kafka://{bootstrap}", topics=TopicSettings(prefix=prefix))
        self.app.ensure_topics()
        self.pipeline = PipelineChild(bootstrap, prefix, folder / "checkpoint", folder / "pipeline.log")
        self.workers = []

    def worker(self, queue, **options):
        worker = Worker(f"kafka://{self.bootstrap}", self.prefix, queue, **options)
        self.workers.append(worker)
        return worker

    def close(self):
        for worker in self.workers:
            worker.kill()
        self.pipeline.stop()
        self.app.close()

    def read(self, topic):
        """Everything that lies on a topic, by a plain client."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "reader", "enable.auto.commit": False})
        try:
            ends = self.app.transport.end_offsets(topic)
            consumer.assign([TopicPartition(topic, partition, 0) for partition in ends])
            left = {partition: end for partition, end in ends.items() if end}
            found = []
            until = time.monotonic() + 20
            while left and time.monotonic() < until:
                for record in consumer.consume(1000, 0.2):
                    assert record.error() is None
                    found.append(record)
                    if record.offset() + 1 >= left.get(record.partition(), 0):
                        left.pop(record.partition(), None)
            assert not left
            return found
        finally:
            consumer.close()

    def copies(self, queue):
        """How often the pipeline has put each message on its topic again: id -> attempts."""
        copies = defaultdict(list)
        for record in self.read(self.app.settings.topics.messages(0)):
            past = provenance(record.headers())
            if record.key() == queue.encode() and past.attempt > 1:
                copies[past.id].append(past.attempt)
        return copies

    def deadlines(self, queue):
        """By what the markers say: id -> (kind of the last marker, deadline in ms on the broker's clock)."""
        known = {}
        for record in self.read(self.app.markers_topic):
            marker = decode(record.value())
            if marker.queue != queue:
                continue
            for position, offset in enumerate(marker.offsets):
                after = at(marker.redeliver_after_ms, position, 0)
                identity = f"{marker.topic}/{marker.partition}/{offset}"
                if marker.kind in {Kind.START, Kind.KEEPALIVE, Kind.RETRY}:
                    known[identity] = (marker.kind, record.timestamp()[1] + after)
                elif marker.kind == Kind.END:
                    known[identity] = (marker.kind, 0)
        return known

    def leased(self, queue):
        return [identity for identity, (kind, _) in self.deadlines(queue).items() if kind != Kind.END]


@pytest.fixture(scope="module")
def stage(kafka_server, tmp_path_factory):
    """A broker with a warm pipeline."""
    stage = Stage(kafka_server.bootstrap, "kills", tmp_path_factory.mktemp("kills"))
    try:
        stage.pipeline.start()
        yield stage
    finally:
        stage.close()
