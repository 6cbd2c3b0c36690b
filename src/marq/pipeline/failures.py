"""Why a query died, and whether it may simply be started again."""

import re
from enum import Enum
from typing import Any

from py4j.protocol import Py4JError

from marq.pipeline.checkpoint import ADVICE


class Verdict(Enum):
    """What to do about it."""

    RETRY = "the broker or the network: start again from the checkpoint, as often as it takes"
    UNKNOWN = "start again, but not for ever"
    DATA_LOSS = "markers are gone that were never read: say so, and go on with what there is"
    CONCURRENT = "another pipeline uses the checkpoint: only one may"
    CHECKPOINT = "the checkpoint cannot be used: only a new one helps"


_CONCURRENT = re.compile(r"CONCURRENT_STREAM_LOG_UPDATE")
_DATA_LOSS = re.compile(r"KAFKA_DATA_LOSS|Some data may have been lost|OffsetOutOfRange")
_CHECKPOINT = re.compile(
    r"""LedgerStateError | CANNOT_LOAD_STATE_STORE | STATE_STORE_ | STATE_SCHEMA | STREAMING_STATEFUL_OPERATOR
      | LOG_VERSION | BATCH_METADATA_NOT_FOUND | Incomplete\ log\ file | MISSING_BATCH | CHECKPOINT_
      | StateStoreInvalid | RocksDBException | Detected\ data\ loss\ in\ the\ checkpoint | STREAMING_CHECKPOINT
      | operator\ metadata | OffsetSeq | CommitLog | ChecksumException | JsonParseException
      | MismatchedInputException | EmptyTextLines""",
    re.VERBOSE,
)
_FOR_EVER = re.compile(
    r"Authori[sz]ationException|AuthenticationException|UnsupportedVersion|RecordTooLarge|RecordBatchTooLarge"
)
_BROKER = re.compile(r"org\.apache\.kafka\.|java\.net\.|marq\.errors\.(TransportError|QueueFullError)|TimeoutException")

_HINTS = (
    (r"RecordTooLarge|RecordBatchTooLarge", "Raise max.message.bytes of the topic that the letter goes to."),
    (r"Authori[sz]ationException", "Grant the pipeline's user: read and write markers, write to all queues' topics."),
    (r"AuthenticationException", "Correct the user, password or certificate in the kafka settings."),
    (r"ModuleNotFoundError|ImportError", "Install marq with its Spark extra in the Python of every executor."),
    (r"OutOfMemoryError|MemoryError|exit code 3\b", "Give it more memory with the setting pipeline.heap."),
    (r"No space left on device", "Make room on the disk of the checkpoint and of spark.local.dir."),
)


def judge(causes: list[str]) -> Verdict:
    """The causes of a failure, outermost first, as a verdict."""
    text = "\n".join(causes)
    if _CONCURRENT.search(text):
        return Verdict.CONCURRENT
    if _DATA_LOSS.search(text):
        return Verdict.DATA_LOSS
    if _CHECKPOINT.search(text):
        return Verdict.CHECKPOINT
    if _FOR_EVER.search(text):
        return Verdict.UNKNOWN
    return Verdict.RETRY if _BROKER.search(text) else Verdict.UNKNOWN


def causes_of(failure: Any) -> list[str]:
    """A Java exception and what caused it: class and message of each."""
    causes: list[str] = []
    while failure is not None and len(causes) < 20:
        causes.append(f"{failure.getClass().getName()}: {failure.getMessage()}")
        failure = failure.getCause()
    return causes


def causes_of_call(error: Any) -> list[str]:
    """The same for a call into the JVM that raised: pyspark wraps some of Java's exceptions, and some not."""
    java = getattr(error, "java_exception", None)
    try:
        return causes_of(java) if java is not None else [f"{type(error).__name__}: {words_of(error)}"]
    except (Py4JError, OSError):  # the JVM that would have to tell is gone
        return [f"{type(error).__name__}: {words_of(error)}"]


def words_of(error: BaseException) -> str:
    """What an exception says. Java's exceptions ask their JVM for it, which may be gone: then nothing."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - whatever the words fail with, the failure itself must be reported
        return ""


def last_line(causes: list[str]) -> str:
    """What actually happened: the innermost cause, without a full stop, because it is quoted in sentences.

    Java says it on its first line, a Python traceback on its last.
    """
    for cause in reversed(causes):
        lines = [line.strip() for line in cause.splitlines() if line.strip()]
        if lines:
            return (lines[-1] if "Traceback" in cause else lines[0]).rstrip(".")
    return "no reason given"


def advice(causes: list[str]) -> str:
    """What a person can do about it."""
    text = "\n".join(causes)
    verdict = judge(causes)
    if verdict is Verdict.CHECKPOINT:
        return ADVICE
    if verdict is Verdict.CONCURRENT:
        return "Another pipeline uses this checkpoint: stop one of them."
    for pattern, hint in _HINTS:
        if re.search(pattern, text):
            return hint
    return "Start it again; it goes on from its checkpoint. If that fails too, the log of Spark says more."
