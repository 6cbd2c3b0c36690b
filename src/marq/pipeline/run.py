"""Runs the pipeline until it is told to stop: starts it, keeps it alive, and says how it is."""

import logging
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from subprocess import TimeoutExpired
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.captured import CapturedException

from marq.core.aim import Aim
from marq.errors import PipelineError, TransportError
from marq.pipeline import checkpoint, cluster, failures
from marq.pipeline.destinations import Destinations
from marq.pipeline.failures import Verdict
from marq.pipeline.kafka_options import java_options
from marq.pipeline.listener import TrackerListener
from marq.pipeline.pulse import Pulse
from marq.pipeline.session import SparkOptions, jvm_process, start_session, stop_session
from marq.pipeline.status import PipelineStatus, StatusBoard
from marq.pipeline.tracker import Tracker
from marq.settings import PipelineSettings, TopicSettings
from marq.telemetry import Event
from marq.transport.kafka import KafkaTransport

log = logging.getLogger("marq.pipeline")

LOOK_EVERY = 1.0
STATUS_EVERY = 10.0
BACK_OFF = (1.0, 2.0, 5.0, 10.0, 20.0)
UNKNOWN_FAILURES_MAX = 3
BATCH_MAY_END_WITHIN = 5.0
JVM_MAY_END_WITHIN = 2.0
STALLED_AFTER = 300.0

Jvm = (Py4JError, PySparkException, OSError)  # what a call raises when the JVM is gone, or says no


def _ignore(_: Any) -> None:
    pass


class Pipeline:
    """One run. `run` returns when `stop` was called, and raises `PipelineError` when it cannot go on."""

    def __init__(
        self,
        bootstrap: str,
        topics: TopicSettings,
        settings: PipelineSettings,
        *,
        kafka: Mapping[str, str] | None = None,
        jars: Sequence[Path] = (),
        java_home: Path | None = None,
        log_file: Path | None = None,
        on_ready: Callable[[PipelineStatus], object] = _ignore,
        on_status: Callable[[PipelineStatus], object] = _ignore,
    ) -> None:
        self._bootstrap = bootstrap
        self._topics = topics
        self._settings = settings
        self._kafka = dict(kafka or {})
        self._spark = SparkOptions(
            jars=jars,
            master=settings.master,
            java_home=java_home,
            driver_memory=settings.heap,
            shuffle_partitions=settings.shuffle_partitions,
            log_file=log_file,
        )
        self._on_ready = on_ready
        self._on_status = on_status
        self._board = StatusBoard()
        self._pulse: Pulse | None = None
        self._stop_asked = False
        self._wakes: SimpleQueue[None] = SimpleQueue()  # its put is safe in a signal handler, an Event's set is not
        self._ready = False
        self._generation = 0
        self._forgive_data_loss = False

    @property
    def status(self) -> PipelineStatus:
        pulse = self._pulse
        if pulse is None:
            return self._board.snapshot()
        return self._board.snapshot(ticks=pulse.ticks, tick_error=pulse.last_error)

    def stop(self) -> None:
        """Ask it to end. From any thread, or from a signal handler."""
        self._stop_asked = True
        self._wakes.put(None)

    def _is_stopping(self) -> bool:
        return self._stop_asked

    def run(self) -> None:
        with self._checkpoint() as url, self._transport() as transport:
            try:
                session = start_session(self._spark)
            except PipelineError:
                if self._is_stopping():
                    return
                raise
            try:
                self._supervise(session, transport, url)
            except (*Jvm, PipelineError) as error:
                self._explain(error)
            finally:
                if self._pulse is not None:
                    self._pulse.stop()
                stop_session(session)

    def _explain(self, error: Exception) -> None:
        """Raise what a person must see. Who asks a whole process group to end asks the JVM too: then it may be gone."""
        if self._is_stopping() and (isinstance(error, Jvm) or _has_ended()):
            log.info("Spark ended before it was stopped: %s", failures.words_of(error))
            return
        if isinstance(error, PipelineError):
            raise error
        causes = failures.causes_of_call(error)
        _has_ended()  # what no longer answers may be about to
        said = f"Spark stopped answering ({_ending()}): {failures.last_line(causes)}."
        raise PipelineError(f"{said} {failures.advice([*causes, _ending()])}") from error

    # Parts

    @contextmanager
    def _checkpoint(self) -> Iterator[str]:
        """Without a folder of the user's the state lives as long as the process, and is rebuilt by the next one."""
        if self._settings.checkpoint is not None:
            url = checkpoint.location(self._settings.checkpoint)
            with checkpoint.held(url):
                yield url
            return
        folder = tempfile.mkdtemp(prefix="marq-checkpoint-")
        try:
            yield checkpoint.location(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def _transport(self) -> Iterator[KafkaTransport]:
        transport = KafkaTransport(self._bootstrap, self._kafka, client_id="marq-pipeline")
        try:
            if not transport.partitions(self._topics.markers):
                raise PipelineError(
                    f"There is no topic {self._topics.markers}. Create marq's topics with `App(...).ensure_topics()`, "
                    "or start a producer or a worker first."
                )
            yield transport
        finally:
            transport.close()

    def _supervise(self, session: Any, transport: KafkaTransport, url: str) -> None:
        failed_in_a_row = 0
        while not self._is_stopping():
            batches = self._board.batches
            causes = self._run_once(session, transport, url)
            if self._is_stopping():
                return
            failed_in_a_row = 1 if self._board.batches > batches else failed_in_a_row + 1
            self._consider(causes, failed_in_a_row)
            self._pause(BACK_OFF[min(failed_in_a_row, len(BACK_OFF)) - 1])

    def _run_once(self, session: Any, transport: KafkaTransport, url: str) -> list[str]:
        """One life of the query. Returns the causes of its death."""
        self._generation += 1
        options = java_options(self._kafka)
        try:
            topic = cluster.look_up(session, self._bootstrap, self._topics.markers, options)
            gates = self._gates()
        except TransportError as error:
            if self._generation == 1:
                raise
            return [f"marq.errors.TransportError: {error}"]
        cluster.require_broker_time(topic)
        checkpoint.claim(session, url, topic.identity)
        tracker = Tracker(
            bootstrap=self._bootstrap,
            markers_topic=self._topics.markers,
            checkpoint=checkpoint.query_folder(url),
            destinations=Destinations(self._bootstrap, self._topics.dead, self._kafka, self._generation),
            gates=gates,
            trigger_ms=_ms(self._settings.trigger.total_seconds()),
            stop_at_data_loss=not self._forgive_data_loss,
            kafka=options,
        )
        pulse = self._pulse_for(session, transport, gates)
        try:
            query: Any = tracker.start(session)
        except (Py4JJavaError, CapturedException) as error:
            return failures.causes_of_call(error)
        log.info("the tracker runs", extra={"event": Event.PIPELINE_STARTED})
        # Only now, so that the first tick to each partition lies behind its gate, and opens it.
        pulse.start_over(gates)
        self._watch(query, pulse, len(gates))
        if query.isActive:
            _stop_between_batches(query)
            return []
        failure = query._jsq.exception()  # noqa: SLF001 - pyspark's own wrapper drops the chain of causes
        return failures.causes_of(failure.get().getCause()) if failure.isDefined() else ["the query was stopped"]

    def _gates(self) -> dict[int, int]:
        """Where each markers partition ends now. Asked anew, because a topic may grow."""
        transport = KafkaTransport(self._bootstrap, self._kafka, client_id="marq-pipeline")
        try:
            return transport.end_offsets(self._topics.markers)
        finally:
            transport.close()

    def _pulse_for(self, session: Any, transport: KafkaTransport, partitions: Iterable[int]) -> Pulse:
        """The pulse of this run, and the listener that tells it of deadlines. Both outlive a query's restart."""
        if self._pulse is None:
            aim = Aim(
                partitions,
                heartbeat_ms=_ms(self._settings.heartbeat.total_seconds()),
                margin_ms=_ms(self._settings.tick_margin.total_seconds()),
            )
            self._pulse = Pulse(transport.publisher(), self._topics.markers, aim)
            session.streams.addListener(TrackerListener(self._board, self._pulse, lambda: self._wakes.put(None)))
        return self._pulse

    def _watch(self, query: Any, pulse: Pulse, partitions: int) -> None:
        """Until the query ends or is to end."""
        next_status = time.monotonic() + STATUS_EVERY
        stall = _Stall(self._board, max(STALLED_AFTER, 3 * self._settings.heartbeat.total_seconds()))
        while not self._is_stopping():
            with suppress(Empty):
                self._wakes.get(timeout=LOOK_EVERY)
            process = jvm_process()
            if process is not None and process.poll() is not None:
                raise PipelineError(f"Spark's JVM ended by itself ({_ending()}). {failures.advice([_ending()])}")
            if not pulse.is_alive:
                raise PipelineError("The pulse has stopped, so time stands still. This is a defect: report it.")
            if not query.isActive:
                return
            stall.look(time.monotonic())
            if not self._ready and self._board.opened(partitions):
                self._ready = True
                self._board.ready()
                log.info("the log is read, redelivery begins", extra={"event": Event.PIPELINE_CAUGHT_UP})
                self._on_ready(self.status)
            if time.monotonic() >= next_status:
                next_status = time.monotonic() + STATUS_EVERY
                self._on_status(self.status)

    def _consider(self, causes: list[str], failed_in_a_row: int) -> None:
        """Go on, or raise what a person must see."""
        verdict, said = failures.judge(causes), failures.last_line(causes)
        self._board.failed(said)
        self._on_status(self.status)
        self._forgive_data_loss = verdict is Verdict.DATA_LOSS
        if verdict is Verdict.CONCURRENT:
            raise PipelineError(f"{failures.advice(causes)} Spark says: {said}.")
        if verdict is Verdict.CHECKPOINT:
            raise PipelineError(f"The checkpoint cannot be used: {said}. {failures.advice(causes)}")
        if verdict is Verdict.UNKNOWN and failed_in_a_row >= UNKNOWN_FAILURES_MAX:
            raise PipelineError(f"The query failed {failed_in_a_row} times in a row: {said}. {failures.advice(causes)}")
        if verdict is Verdict.DATA_LOSS:
            log.error(
                "markers were deleted before they were read: what they said is lost. Leases whose end was among them "
                "will be redelivered. Give the markers topic a longer retention. Spark says: %s",
                said,
                extra={"event": Event.PIPELINE_STOPPED},
            )
        else:
            log.warning(
                "the query stopped and is started again from its checkpoint: %s",
                said,
                extra={"event": Event.PIPELINE_STOPPED},
            )

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._is_stopping() and (left := until - time.monotonic()) > 0:
            with suppress(Empty):
                self._wakes.get(timeout=left)


class _Stall:
    """Says it aloud when no batch ends for long: ticks come all the time, so one should."""

    def __init__(self, board: StatusBoard, after: float) -> None:
        self._board = board
        self._after = after
        self._batches = -1
        self._since = 0.0

    def look(self, now: float) -> None:
        if self._board.batches != self._batches:
            self._batches, self._since = self._board.batches, now
        elif now - self._since >= self._after:
            self._since = now
            said = f"no batch has ended for {self._after:.0f} s: nothing is redelivered. Spark's log may say why."
            self._board.warn(said)
            log.error(said, extra={"event": Event.PIPELINE_STOPPED})


def run_pipeline(
    bootstrap: str,
    topics: TopicSettings,
    settings: PipelineSettings,
    *,
    kafka: Mapping[str, str] | None = None,
    jars: Sequence[Path] = (),
    java_home: Path | None = None,
    log_file: Path | None = None,
    on_ready: Callable[[PipelineStatus], object] = _ignore,
    on_status: Callable[[PipelineStatus], object] = _ignore,
) -> None:
    """Run until SIGTERM or SIGINT; `PipelineError` when it cannot go on."""
    pipeline = Pipeline(
        bootstrap,
        topics,
        settings,
        kafka=kafka,
        jars=jars,
        java_home=java_home,
        log_file=log_file,
        on_ready=on_ready,
        on_status=on_status,
    )
    with _stopped_by_signals(pipeline):
        pipeline.run()


@contextmanager
def _stopped_by_signals(pipeline: Pipeline) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        signal.signal(number, lambda *_: pipeline.stop())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop_between_batches(query: Any) -> None:
    """A batch cut off is run again at the next start, and its letters are written twice; so let it end."""
    deadline = time.monotonic() + BATCH_MAY_END_WITHIN
    while time.monotonic() < deadline and query.status["isTriggerActive"]:
        time.sleep(0.05)
    query.stop()


def _has_ended() -> bool:
    """Whether the JVM has; one that no longer answers is given a moment for it."""
    process = jvm_process()
    if process is None:
        return False
    try:
        process.wait(timeout=JVM_MAY_END_WITHIN)
    except TimeoutExpired:
        return False
    return True


def _ending() -> str:
    process = jvm_process()
    code = process.poll() if process is not None else None
    return "it still runs" if code is None else f"exit code {code}"


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
