"""A query's death, judged."""

import pytest
from py4j.protocol import Py4JNetworkError

from marq.pipeline.failures import Verdict, advice, causes_of, causes_of_call, judge, last_line


@pytest.mark.parametrize(
    ("cause", "verdict"),
    [
        ("org.apache.kafka.common.errors.TimeoutException: Timed out waiting for a node assignment", Verdict.RETRY),
        ("java.net.ConnectException: Connection refused", Verdict.RETRY),
        ("Traceback\nmarq.errors.TransportError: The broker does not answer", Verdict.RETRY),
        ("org.apache.kafka.common.errors.TopicAuthorizationException: not you", Verdict.UNKNOWN),
        ("org.apache.kafka.common.errors.RecordTooLargeException: 2 MB", Verdict.UNKNOWN),
        ("java.lang.IllegalStateException: [KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] gone", Verdict.DATA_LOSS),
        ("org.apache.spark.sql.kafka010.KafkaIllegalStateException: Some data may have been lost", Verdict.DATA_LOSS),
        ("org.apache.kafka.clients.consumer.OffsetOutOfRangeException: offset=19", Verdict.DATA_LOSS),
        ("org.apache.hadoop.fs.ChecksumException: Checksum error: offsets/4", Verdict.CHECKPOINT),
        ("X: [STDS_FAILED_TO_READ_OPERATOR_METADATA] Failed to read the operator metadata", Verdict.CHECKPOINT),
        ("X: [STREAMING_STATEFUL_OPERATOR_MISSING_STATE_DIRECTORY] gone", Verdict.CHECKPOINT),
        ("Traceback\nmarq.errors.LedgerStateError: format 9", Verdict.CHECKPOINT),
        ("org.apache.spark.SparkException: [CANNOT_LOAD_STATE_STORE.X] no", Verdict.CHECKPOINT),
        ("java.lang.IllegalStateException: Incomplete log file in the offset commit log", Verdict.CHECKPOINT),
        ("X: [CONCURRENT_STREAM_LOG_UPDATE] Multiple streaming jobs detected for 42.", Verdict.CONCURRENT),
        ("Traceback\nValueError: boom", Verdict.UNKNOWN),
    ],
)
def test_what_to_do_follows_from_the_causes(cause, verdict):
    assert judge(["org.apache.spark.SparkException: Job aborted", cause]) is verdict


def test_what_happened_is_said_last():
    assert last_line(["outer: a", "inner: Traceback\n  File x\nValueError: boom\n\n"]) == "ValueError: boom"
    assert last_line(["outer: a", "java.io.IOException: gone\nTry this:\nor that"]) == "java.io.IOException: gone"
    assert last_line(["outer: a", "\n"]) == "outer: a"
    assert last_line(["outer: a", "inner: jobs detected for 42."]) == "inner: jobs detected for 42"
    assert last_line([]) == "no reason given"


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ("CONCURRENT_STREAM_LOG_UPDATE", "Another pipeline uses this checkpoint: stop one of them"),
        ("LedgerStateError: x", "new, empty checkpoint folder"),
        ("RecordTooLargeException: x", "max.message.bytes"),
        ("ModuleNotFoundError: No module named 'marq'", "every executor"),
        ("ValueError: x", "goes on from its checkpoint"),
    ],
)
def test_each_failure_says_what_to_do(cause, words):
    assert words in advice([cause])


class Java:
    """As much of a Java exception as is looked at."""

    def __init__(self, message, cause=None):
        self._message, self._cause = message, cause

    def getClass(self):  # noqa: N802 - Java's name
        return self

    def getName(self):  # noqa: N802 - Java's name
        return "java.lang.Exception"

    def getMessage(self):  # noqa: N802 - Java's name
        return self._message

    def getCause(self):  # noqa: N802 - Java's name
        return self._cause


def test_the_chain_of_causes_is_followed():
    assert causes_of(Java("outer", Java("inner"))) == ["java.lang.Exception: outer", "java.lang.Exception: inner"]


def test_a_call_that_raised_is_asked_for_its_java_exception():
    error = RuntimeError("no Java in it")
    assert causes_of_call(error) == ["RuntimeError: no Java in it"]
    error.java_exception = Java("start failed")
    assert causes_of_call(error) == ["java.lang.Exception: start failed"]


class Mute(Exception):  # noqa: N818 - it stands for an error of Spark's
    def __str__(self):
        raise Py4JNetworkError("the JVM is gone")


def test_an_error_whose_jvm_is_gone_can_still_be_reported():
    assert causes_of_call(Mute()) == ["Mute: "]
    error = Mute()
    error.java_exception = Java("never told")
    error.java_exception.getClass = lambda: str(error)
    assert causes_of_call(error) == ["Mute: "]


def test_a_chain_that_bites_its_tail_has_an_end():
    loop = Java("again")
    loop._cause = loop
    assert len(causes_of(loop)) == 20
