"""How the pipeline is kept alive, with a Spark that does what the test says."""

import signal
import subprocess
import threading
from contextlib import contextmanager, nullcontext

import pytest

from marq.errors import PipelineError, TransportError
from marq.pipeline import run
from marq.pipeline.checkpoint import Identity
from marq.pipeline.cluster import MarkersTopic
from marq.pipeline.run import Pipeline, run_pipeline
from marq.pipeline.status import StatusBoard
from marq.settings import PipelineSettings, TopicSettings

TOPIC = MarkersTopic(Identity("cluster", "marq.markers", "id"), 1, "LogAppendTime")
RETRYABLE = "org.apache.kafka.common.errors.TimeoutException"
BROKEN = "LedgerStateError"
LOST = "KAFKA_DATA_LOSS"


class Java:
    """An exception, or an option of one."""

    def __init__(self, text):
        self._text = text

    def isDefined(self):  # noqa: N802 - Java's name
        return self._text is not None

    def get(self):
        return self

    def getCause(self):  # noqa: N802 - Java's name
        return None if self._text.startswith("X") else Java(f"X {self._text}")

    def getClass(self):  # noqa: N802 - Java's name
        return self

    def getName(self):  # noqa: N802 - Java's name
        return "java.lang.Exception"

    def getMessage(self):  # noqa: N802 - Java's name
        return self._text


class Query:
    """A query that dies as the test wants, or runs until it is stopped."""

    def __init__(self, death=None):
        self._death = death
        self.isActive = death is None
        self.status = {"isTriggerActive": False}
        self.stopped = False
        self._jsq = self

    def exception(self):
        return Java(self._death)

    def stop(self):
        self.stopped, self.isActive = True, False


class Spark:
    """What the pipeline would get from Spark, Kafka and the JVM."""

    def __init__(self):
        self.deaths = []  # of the queries to come; when there are none left, a query runs
        self.answers = []  # of the cluster to come; None is the topic
        self.trackers = []
        self.queries = []
        self.sessions_stopped = 0
        self.exit_code = None
        self.started = threading.Event()
        self.streams = self
        self.partitions_of_markers = 1

    def addListener(self, listener):  # noqa: N802 - Spark's name
        self.listener = listener

    def look_up(self, *_):
        answer = self.answers.pop(0) if self.answers else None
        if answer is not None:
            raise answer
        return TOPIC

    def start(self, tracker):
        self.trackers.append(tracker)
        self.queries.append(Query(self.deaths.pop(0) if self.deaths else None))
        if self.queries[-1].isActive:
            self.started.set()
        return self.queries[-1]

    def poll(self):
        return self.exit_code

    def wait(self, timeout):
        if self.exit_code is None:
            raise subprocess.TimeoutExpired("java", timeout)
        return self.exit_code

    def stop_session(self, _):
        self.sessions_stopped += 1


class FakePulse:
    def __init__(self, *_):
        self.is_alive = True
        self.ticks = 3
        self.last_error = None
        self.starts = 0
        FakePulse.latest = self

    def start_over(self, partitions):
        self.starts += 1

    def stop(self):
        self.is_alive = False


@pytest.fixture
def spark(monkeypatch):
    spark = Spark()

    class Transport:
        def __init__(self, *_, **__):
            pass

        def partitions(self, topic):
            return spark.partitions_of_markers

        def end_offsets(self, topic):
            return {0: 17}

        def publisher(self):
            return None

        def close(self):
            pass

    monkeypatch.setattr(run, "KafkaTransport", Transport)
    monkeypatch.setattr(run, "Pulse", FakePulse)
    monkeypatch.setattr(run, "start_session", lambda options: spark)
    monkeypatch.setattr(run, "stop_session", spark.stop_session)
    monkeypatch.setattr(run, "jvm_process", lambda: spark)
    monkeypatch.setattr(run.cluster, "look_up", spark.look_up)
    monkeypatch.setattr(run.checkpoint, "claim", lambda *_: None)
    monkeypatch.setattr(run.Tracker, "start", lambda tracker, session: spark.start(tracker))
    monkeypatch.setattr(run, "BACK_OFF", (0.0,))
    monkeypatch.setattr(run, "LOOK_EVERY", 0.01)
    monkeypatch.setattr(run, "STATUS_EVERY", 0.0)
    return spark


def pipeline_of(**said):
    return Pipeline("broker:9092", TopicSettings(), PipelineSettings(), **said)


@contextmanager
def running(pipeline):
    """In a thread, as an application might; what it raises is kept."""
    raised = []

    def work():
        try:
            pipeline.run()
        except PipelineError as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield raised
    finally:
        pipeline.stop()
        thread.join(10)
        assert not thread.is_alive()


def report(**said):
    usual = {"mp": 0, "open": True, "hot": 0, "cold": 0, "redelivered": 0, "dead": 0, "late_max": None, "counts": {}}
    return usual | said


def test_it_runs_until_it_is_stopped(spark):
    with running(pipeline_of()) as raised:
        assert spark.started.wait(10)
    assert raised == []
    assert spark.queries[0].stopped
    assert spark.sessions_stopped == 1
    assert not FakePulse.latest.is_alive
    assert spark.trackers[0].gates == {0: 17}


def test_ready_is_said_once_when_the_gate_is_open(spark, eventually):
    ready, statuses = [], []
    pipeline = pipeline_of(on_ready=ready.append, on_status=statuses.append)
    assert not pipeline.status.ready
    with running(pipeline):
        assert spark.started.wait(10)
        pipeline._board.batch(5, 0, [report(open=False)], 0)
        eventually(lambda: statuses)
        assert ready == []
        pipeline._board.batch(5, 0, [report()], 0)
        eventually(lambda: ready)
        seen = len(statuses)
        eventually(lambda: len(statuses) > seen + 2)
        assert len(ready) == 1
        assert (ready[0].ready, ready[0].ticks) == (True, 3)


def test_a_broker_that_is_away_is_waited_for_as_long_as_it_takes(spark):
    spark.deaths = [RETRYABLE] * 8
    with running(pipeline_of()) as raised:
        assert spark.started.wait(10)
    assert raised == []
    assert len(spark.queries) == 9
    assert FakePulse.latest.starts == 9
    assert [tracker.destinations.generation for tracker in spark.trackers] == list(range(1, 10))


def test_between_two_lives_the_cluster_may_not_answer(spark):
    spark.deaths = [RETRYABLE]
    spark.answers = [None, TransportError("no answer"), TransportError("no answer")]
    pipeline = pipeline_of()
    with running(pipeline) as raised:
        assert spark.started.wait(10)
    assert raised == []
    assert pipeline.status.restarts == 3
    assert pipeline.status.last_error == "marq.errors.TransportError: no answer"


def test_a_cluster_that_does_not_answer_at_the_start_is_said(spark):
    spark.answers = [TransportError("no answer")]
    with pytest.raises(TransportError, match="no answer"):
        pipeline_of().run()
    assert spark.sessions_stopped == 1


def test_a_failure_that_nobody_knows_is_tried_three_times(spark):
    spark.deaths = ["boom"] * 5
    with pytest.raises(PipelineError, match=r"failed 3 times in a row: .*boom.* goes on from its checkpoint"):
        pipeline_of().run()
    assert len(spark.queries) == 3


def test_a_batch_in_between_starts_the_count_anew(spark, monkeypatch):
    spark.deaths = ["boom"] * 4
    pipeline = pipeline_of()
    start = spark.start

    def start_with_a_batch(tracker):
        pipeline._board.batch(5, 0, [], 0)
        return start(tracker)

    monkeypatch.setattr(spark, "start", start_with_a_batch)
    with running(pipeline) as raised:
        assert spark.started.wait(10)
    assert raised == []


def test_a_checkpoint_that_cannot_be_read_is_not_tried_again(spark):
    spark.deaths = [BROKEN]
    with pytest.raises(PipelineError, match=r"checkpoint cannot be used: .*Start with a new, empty checkpoint folder"):
        pipeline_of().run()
    assert len(spark.queries) == 1


def test_lost_markers_are_said_aloud_and_forgiven_once(spark, caplog):
    spark.deaths = [LOST, RETRYABLE]
    with running(pipeline_of()) as raised:
        assert spark.started.wait(10)
    assert raised == []
    assert [tracker.stop_at_data_loss for tracker in spark.trackers] == [True, False, True]
    assert "longer retention" in caplog.text


def test_a_jvm_that_died_ends_the_pipeline(spark):
    spark.exit_code = 137
    with pytest.raises(PipelineError, match=r"JVM ended by itself \(exit code 137\)"):
        pipeline_of().run()
    assert spark.sessions_stopped == 1


def test_a_jvm_that_no_longer_answers_ends_it_too(spark, monkeypatch):
    def fail(_):
        raise ConnectionResetError

    monkeypatch.setattr(spark, "start", fail)
    with pytest.raises(PipelineError, match=r"Spark stopped answering \(it still runs\)"):
        pipeline_of().run()


@pytest.mark.parametrize("raised", [ConnectionResetError, PipelineError])
def test_a_jvm_that_was_asked_to_end_too_may_be_the_first(spark, monkeypatch, raised):
    """SIGTERM to the whole process group."""
    pipeline = pipeline_of()

    def end(_):
        pipeline.stop()
        spark.exit_code = 143
        raise raised

    monkeypatch.setattr(spark, "start", end)
    pipeline.run()
    assert spark.sessions_stopped == 1


def test_what_is_wrong_is_said_also_when_it_is_to_stop(spark, monkeypatch):
    pipeline = pipeline_of()

    def fail(_):
        pipeline.stop()
        raise PipelineError("The checkpoint is full of sand.")

    monkeypatch.setattr(spark, "start", fail)
    with pytest.raises(PipelineError, match="sand"):
        pipeline.run()


@pytest.mark.parametrize("asked", [True, False])
def test_a_jvm_that_does_not_start_is_an_error_unless_it_is_to_stop(spark, monkeypatch, asked):
    pipeline = pipeline_of()

    def fail(_):
        if asked:
            pipeline.stop()
        raise PipelineError("Spark's JVM did not start.")

    monkeypatch.setattr(run, "start_session", fail)
    with nullcontext() if asked else pytest.raises(PipelineError, match="did not start"):
        pipeline.run()


def test_two_on_one_checkpoint_are_told_so_at_once(spark):
    spark.deaths = ["[CONCURRENT_STREAM_LOG_UPDATE] Multiple streaming jobs detected for 42."]
    with pytest.raises(PipelineError, match=r"stop one of them\. Spark says: .* detected for 42\.$"):
        pipeline_of().run()
    assert len(spark.queries) == 1


def test_a_pulse_that_died_is_no_pipeline(spark, monkeypatch):
    monkeypatch.setattr(FakePulse, "start_over", lambda pulse, _: setattr(pulse, "is_alive", False))
    with pytest.raises(PipelineError, match="time stands still"):
        pipeline_of().run()


def test_without_a_markers_topic_nothing_is_started(spark):
    spark.partitions_of_markers = 0
    with pytest.raises(PipelineError, match=r"There is no topic marq\.markers\. Create"):
        pipeline_of().run()
    assert spark.sessions_stopped == 0


def test_a_markers_topic_with_the_producers_time_is_refused(spark, monkeypatch):
    other = MarkersTopic(TOPIC.identity, 1, "CreateTime")
    monkeypatch.setattr(run.cluster, "look_up", lambda *_: other)
    with pytest.raises(PipelineError, match=r"--add-config message\.timestamp\.type=LogAppendTime"):
        pipeline_of().run()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_and_the_handlers_come_back(spark, number, tmp_path):
    before = signal.getsignal(number)
    asked = threading.Timer(0, lambda: spark.started.wait(10) and signal.raise_signal(number))
    asked.start()
    run_pipeline("broker:9092", TopicSettings(), PipelineSettings(checkpoint=str(tmp_path / "somewhere")))
    asked.join()
    assert spark.queries[0].stopped
    assert signal.getsignal(number) is before


def test_a_pipeline_in_which_no_batch_ends_says_so(caplog):
    board = StatusBoard()
    stall = run._Stall(board, 300)
    stall.look(1000)
    stall.look(1299)
    assert board.snapshot().last_error is None
    board.batch(5, 0, [], 0)
    stall.look(1299)
    stall.look(1598)
    assert caplog.text == ""
    stall.look(1599)
    stall.look(1600)
    assert "no batch has ended for 300 s" in board.snapshot().last_error
    assert board.snapshot().restarts == 0
    assert len(caplog.records) == 1


def test_a_heap_that_is_full_is_said(spark):
    spark.exit_code = 3
    with pytest.raises(PipelineError, match=r"exit code 3\)\. Give it more memory with the setting pipeline\.heap"):
        pipeline_of().run()
