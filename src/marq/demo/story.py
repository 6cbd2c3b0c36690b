"""The demo's course: start everything, send, kill, wait until all is settled, count."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import msgspec

from marq.app import App
from marq.core.records import provenance
from marq.demo import plan
from marq.demo.audit import Check, Evidence, Killed, audit
from marq.demo.log import TopicReader
from marq.demo.plan import Order
from marq.demo.reports import ReportTail
from marq.demo.tally import Tally, WorkerTally
from marq.demo.worker import Job
from marq.dev import PipelineProcess, child_environment, environment_without, python_module
from marq.errors import StackError
from marq.queue import Queue
from marq.stack.jars import KAFKA_VERSION, broker_jars, spark_jars
from marq.stack.java import find_java
from marq.stack.kafka import KafkaServer
from marq.stack.process import ManagedProcess
from marq.transport.base import Record

EVERY = 0.1
SEND_CHUNK = 500
WORK_SECONDS = 14.0  # how long two workers should have for the plain messages
PACE_MAX = 0.005
START_SECONDS = 60.0
SETTLE_SECONDS = 60.0  # on top of the work itself
STOP_SECONDS = 15.0
LEASES_WANTED = ((0.8, 1), (0.6, 3), (0.45, 5))  # from this share of the messages on, so many leases are enough
# The demo's own settings hold, whatever the environment says.
OTHERS_SETTINGS = ("URL", "KAFKA_", "CONSUMER_", "TOPICS_", "PIPELINE_")


class Stage(Protocol):
    """Where the demo is shown."""

    def event(self, seconds: float, text: str) -> None: ...
    def update(self, tally: Tally) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Outcome:
    """What came of it."""

    adds_up: bool
    seconds: float
    messages: int
    seed: int
    rate: float
    killed: Killed
    leased: int
    checks: list[Check]
    events: list[tuple[float, str]]

    def to_json(self) -> str:
        """One object, with the number of each line by its name as well."""
        numbers = {
            check.what: check.held for check in self.checks if check.what in {"sent", "acked", "dead", "retried"}
        }
        return json.dumps({**asdict(self), **numbers})


@dataclass
class Worker:
    """A worker's process, with what it tells."""

    tally: WorkerTally
    process: ManagedProcess
    tail: ReportTail


class Demo:
    """One run."""

    def __init__(self, messages: int, seed: int, stage: Stage, folder: Path, open_things: ExitStack) -> None:
        self._seed = seed
        self._orders = plan.plan(messages, seed)
        self._pace = min(PACE_MAX, 2 * WORK_SECONDS / messages)
        self._stage = stage
        self._folder = folder
        self._open = open_things
        self._workers: list[Worker] = []
        self._kafka: KafkaServer | None = None
        self._pipeline: PipelineProcess | None = None
        self._markers = ""
        self._reader: TopicReader | None = None
        self._tally = Tally(messages)

    def run(self) -> Outcome:
        try:
            return self._tell()
        except KeyboardInterrupt:
            self._say("stopping")  # which takes some seconds
            raise

    def _tell(self) -> Outcome:
        app = self._start()
        queue = app.queue(plan.QUEUE, Order, retry=plan.RETRY)
        sent = self._send(queue)
        began = time.monotonic()
        killed = self._kill_one()
        self._start_worker("C", app.settings.address)
        self._say("worker C takes its place")
        self._tally.doing = "at work, until everything is settled"
        self._await_end(killed)
        rate = self._tally.settled / (time.monotonic() - began)
        self._stop_workers()
        self._do("reading all topics, to check the sum")
        evidence = Evidence(app, queue)
        self._look()
        checks = audit(evidence, self._tally, self._orders, sent, killed)
        return Outcome(
            adds_up=all(check.ok for check in checks),
            seconds=round(self._tally.elapsed, 1),
            messages=len(self._orders),
            seed=self._seed,
            rate=round(rate),
            killed=killed,
            leased=evidence.book.leased,
            checks=checks,
            events=[(round(seconds, 1), text) for seconds, text in self._tally.events],
        )

    # The parts of the story

    def _start(self) -> App:
        self._do("starting Kafka")
        kafka = self._kafka = self._open.enter_context(KafkaServer(self._folder / "kafka"))
        self._say(f"Kafka {KAFKA_VERSION} is up: {kafka.bootstrap}, process {kafka.pid}")
        app = self._open.enter_context(App(f"kafka://{kafka.bootstrap}", consumer=plan.CONSUMER))
        app.ensure_topics()
        self._markers = app.markers_topic
        pipeline = PipelineProcess(kafka.bootstrap, self._folder, self._folder / "checkpoint")
        self._open.callback(pipeline.stop)
        self._pipeline = pipeline.start()
        self._do(f"starting two workers and the pipeline on Spark, process {pipeline.pid}")
        for name in ("A", "B"):
            self._start_worker(name, kafka.bootstrap)
        self._reader = TopicReader(app.transport, [app.markers_topic, app.dead_letter_topic])
        self._open.callback(self._reader.close)
        self._until(lambda: all(worker.tally.consumer for worker in self._workers), START_SECONDS, "the workers")
        self._until(lambda: pipeline.is_ready, START_SECONDS, "the pipeline")
        self._say("the pipeline is ready")
        return app

    def _start_worker(self, name: str, bootstrap: str) -> None:
        report = self._folder / f"worker-{name}.reports"
        job = msgspec.json.encode(Job(bootstrap, str(report), self._pace)).decode()
        process = ManagedProcess(
            [*python_module("marq.demo.worker"), job],
            log=self._folder / f"worker-{name}.log",
            environment=child_environment(),
        ).start()
        self._open.callback(process.kill)
        worker = Worker(WorkerTally(name, process.pid), process, ReportTail(report))
        self._workers.append(worker)
        self._tally.workers.append(worker.tally)

    def _send(self, queue: Queue[Order]) -> list[str]:
        """Every order, with a key and a header of its own. Returns the ids once all are confirmed."""
        self._tally.doing = "sending"
        began = time.monotonic()
        receipts = []
        for order in self._orders:
            receipts.append(queue.send(order, key=plan.key_of(order), headers=plan.headers_of(order)))
            if len(receipts) % SEND_CHUNK == 0:
                self._tally.sent = len(receipts)
                self._look()
        ids = [receipt.result().id for receipt in receipts]
        self._tally.sent = len(ids)
        self._say(f"sent {len(ids):,} messages, all confirmed after {time.monotonic() - began:.1f} s")
        return ids

    def _kill_one(self) -> Killed:
        """Half-way, the worker that holds the most leases."""

        def is_time() -> bool:
            share = self._tally.settled / self._tally.planned
            wanted = next((leases for from_share, leases in LEASES_WANTED if share >= from_share), None)
            return wanted is not None and self._leases(self._most_leased()) >= wanted

        self._tally.doing = "at work, until one worker is killed half-way"
        self._until(is_time, self._patience(), "a worker with leases, half-way,")
        victim = self._most_leased()
        victim.process.kill()
        victim.tally.state = "killed"
        # Nobody else can end its leases yet, so the log says exactly what it died with.
        self._note(self._reader.read_all() if self._reader is not None else [])
        owner, book = victim.tally.consumer, self._tally.book
        leases = book.in_hands_of(owner)
        waiting = sum(held.owner == owner and held.waiting for held in book.live.values())
        self._say(f"kill -9: worker {victim.tally.name} dies with {leases} leases and {waiting} waiting retries")
        return Killed(victim.tally.name, victim.tally.pid, owner, leases)

    def _await_end(self, killed: Killed) -> None:
        """In the end everything is settled."""
        steps = self._milestones(killed, self._tally.elapsed)

        def is_over() -> bool:
            for milestone in list(steps):
                text = milestone()
                if text:
                    steps.remove(milestone)
                    self._say(text)
            return self._tally.settled >= self._tally.planned and not self._tally.book.live

        if not self._until(is_over, self._patience()):
            self._say("not everything was settled in time")
            return
        self._do("everything is settled")

    def _milestones(self, killed: Killed, killed_at: float) -> list[Callable[[], str]]:
        """Things worth saying once, when they have happened."""
        book, dead = self._tally.book, self._tally.dead
        lease = plan.CONSUMER.lease.total_seconds()

        def first_back() -> str:
            if not any(each.held.owner == killed.consumer and not each.held.waiting for each in book.returned):
                return ""
            passed = self._tally.elapsed - killed_at
            return f"{passed:.1f} s after the kill Spark gives its leases of {lease:.0f} s back: attempt 2"

        def all_back() -> str:
            if any(held.owner == killed.consumer for held in book.live.values()):
                return ""
            return f"no lease of worker {killed.name} is left open"

        def first_dead() -> str:
            return f"the first dead letter, after {plan.ATTEMPTS} attempts" if dead else ""

        return [first_dead, first_back, all_back]

    def _stop_workers(self) -> None:
        """In order, so that what they have settled is committed, and nothing is left behind."""
        for worker in self._workers:
            if worker.process.is_alive:
                worker.process.stop(STOP_SECONDS)
                worker.tally.state = "stopped"
        self._look()

    # What goes on all the time

    def _do(self, text: str) -> None:
        """What goes on from now."""
        self._tally.doing = text
        self._say(text)

    def _say(self, text: str) -> None:
        self._tally.events.append((self._tally.elapsed, text))
        self._stage.event(*self._tally.events[-1])

    def _until(self, condition: Callable[[], bool], seconds: float, what: str = "") -> bool:
        """Look on until it is so. Without a name for it, being late is no error."""
        give_up = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > give_up:
                if not what:
                    return False
                raise StackError(f"{what} did not come in {seconds:.0f} seconds. Is this machine very busy?")
            self._require_alive()
            time.sleep(EVERY)
            self._look()
        return True

    def _look(self) -> None:
        """Read what is new, and show it."""
        for worker in self._workers:
            self._tally.take(worker.tally, worker.tail.read())
        self._note(self._reader.read() if self._reader is not None else [])
        self._tally.mark(time.monotonic())
        self._stage.update(self._tally)

    def _note(self, records: Sequence[Record]) -> None:
        for record in records:
            if record.topic() == self._markers:
                self._tally.book.read(record.value())
            else:
                self._tally.dead.add(provenance(record.headers()).id or "")

    def _require_alive(self) -> None:
        for worker in self._workers:
            if worker.tally.state in {"starting", "at work"} and not worker.process.is_alive:
                raise StackError(
                    f"Worker {worker.tally.name} ended by itself (exit code {worker.process.exit_code}). The end of "
                    f"its log:\n{worker.process.log_tail()}"
                )
        if self._kafka is not None and not self._kafka.is_alive:
            raise self._kafka.start_error("Kafka ended by itself")
        if self._pipeline is not None and not self._pipeline.is_alive:
            raise self._pipeline.death()

    def _most_leased(self) -> Worker:
        return max(self._workers, key=self._leases)

    def _leases(self, worker: Worker) -> int:
        return self._tally.book.in_hands_of(worker.tally.consumer)

    def _patience(self) -> float:
        return SETTLE_SECONDS + len(self._orders) * self._pace


def run_demo(messages: int, seed: int, stage: Stage) -> Outcome:
    """Tell the story on this stage. Whatever happens, no process and no folder is left."""
    find_java()
    broker_jars()
    spark_jars()
    with ExitStack() as open_things:
        open_things.enter_context(environment_without(*OTHERS_SETTINGS))
        folder = open_things.enter_context(TemporaryDirectory(prefix="marq-demo-", ignore_cleanup_errors=True))
        open_things.enter_context(closing(stage))
        return Demo(messages, seed, stage, Path(folder), open_things).run()
