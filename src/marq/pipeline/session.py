"""A SparkSession that starts the same way on every machine.

Locally nothing of the user's Spark matters: marq runs the Spark it was installed with, on loopback, without a web
page, with this very Python in the workers. For a cluster's master, hosts and interpreters are the user's to set.
"""

import os
import re
import signal
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from marq.errors import PipelineError
from marq.pipeline import failures
from marq.pipeline.output import SparkOutput, last_error

LOCAL = "local[2]"
CONNECTOR = "spark-sql-kafka"
BARE_FILE_SYSTEM = "hadoop-bare-naked-local-fs"
LOG4J = Path(__file__).parent / "log4j2.properties"

# C1 alone: a short-lived JVM never gets its money back for what C2 burns, and batches are as fast (docs/design).
EMBEDDED_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+ExitOnOutOfMemoryError"
_MASTER = re.compile(r"local(\[(\d+|\*)(, *\d+)?\])?|local-cluster\[.+\]|yarn|spark://.+|k8s://.+")
MASTERS = "local[2], spark://host:7077, k8s://https://host:443 or yarn"
_FOREIGN = ("SPARK_", "PYSPARK_", "HADOOP_", "YARN_")


@dataclass(frozen=True)
class SparkOptions:
    """What the session is made of."""

    jars: Sequence[Path] = ()
    master: str = LOCAL
    java_home: Path | None = None
    driver_memory: str = "1g"
    shuffle_partitions: int = 1
    log_file: Path | None = None  # where the JVM and the workers write; None: standard error
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_local(self) -> bool:
        return self.master.startswith("local")


def start_session(options: SparkOptions) -> SparkSession:
    """Start the JVM and the session; `PipelineError` says what is missing."""
    if SparkContext._active_spark_context is not None:  # noqa: SLF001 - the only way to ask
        raise PipelineError("A SparkSession already runs in this process. Stop it, or run the pipeline in its own.")
    _check_master(options)
    _check_jars(options)
    conf = SparkConf(loadDefaults=False).setAll(list(_settings(options).items()))
    with _environment(options), _kept_interrupt_handler(), SparkOutput(options.log_file) as output:
        try:
            gateway = launch_gateway(conf, {"stdout": output.stream, "stderr": output.stream})
            SparkContext._ensure_initialized(gateway=gateway, conf=conf)  # noqa: SLF001 - as SparkContext itself does
            session = SparkSession.builder.config(conf=conf).getOrCreate()
        except (PySparkException, Py4JError, OSError) as error:
            raise PipelineError(_explain(error, options, output)) from error
    session.sparkContext.setLogLevel("WARN")
    _hush_accumulators(session.sparkContext)
    return session


def _hush_accumulators(context: SparkContext) -> None:
    """The end of the JVM is no error of this server, which would print a traceback at each."""
    server = context._accumulatorServer  # noqa: SLF001 - pyspark offers no other way to it
    if server is not None:
        server.handle_error = lambda *_: None


def stop_session(session: SparkSession) -> None:
    """Stop Spark and its JVM, also when the JVM is already gone."""
    gateway = SparkContext._gateway  # noqa: SLF001 - pyspark keeps the JVM for a next session; marq ends it
    with suppress(Exception):
        session.stop()
    SparkContext._active_spark_context = None  # noqa: SLF001 - a stop that failed half-way leaves it
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    process = jvm_process(gateway)
    if gateway is not None:
        with suppress(Exception):
            gateway.shutdown()
    if process is not None:
        with suppress(OSError):
            process.stdin.close()  # the JVM ends when this pipe does
        try:
            process.wait(timeout=10)
        except Exception:  # noqa: BLE001 - subprocess.TimeoutExpired, or a signal in between: either way it must end
            process.kill()
            process.wait(timeout=10)


def jvm_process(gateway: Any = None) -> Any:
    """The JVM that belongs to this process, if it started one."""
    gateway = gateway or SparkContext._gateway  # noqa: SLF001 - pyspark has no other handle on its JVM
    return getattr(gateway, "proc", None) if gateway is not None else None


def _check_master(options: SparkOptions) -> None:
    if not _MASTER.fullmatch(options.master):
        raise PipelineError(_wrong_master(options))


def _wrong_master(options: SparkOptions) -> str:
    return f"Spark knows no master {options.master!r}. The master must be like {MASTERS}."


def _check_jars(options: SparkOptions) -> None:
    missing = [str(jar) for jar in options.jars if not jar.is_file()]
    if missing:
        raise PipelineError(f"These jars are gone: {', '.join(missing)}. Run `marq fetch` to get them again.")
    if options.is_local and not any(jar.name.startswith(CONNECTOR) for jar in options.jars):
        raise PipelineError(
            f"Spark cannot read Kafka without its connector: pass the jars of {CONNECTOR} "
            "(marq.stack.jars.spark_jars() fetches them)."
        )


def _settings(options: SparkOptions) -> dict[str, str]:
    settings = {
        "spark.app.name": "marq",
        "spark.master": options.master,
        "spark.sql.shuffle.partitions": str(options.shuffle_partitions),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(4 << 20),
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        # Payloads lie in the changelogs, so a hundred batches of them would be much to keep.
        "spark.sql.streaming.minBatchesToRetain": "10",
        "spark.sql.streaming.numRecentProgressUpdates": "2",
        "spark.ui.showConsoleProgress": "false",
    }
    classpath = os.pathsep.join(str(jar.absolute()) for jar in options.jars)
    if options.jars:
        settings["spark.driver.extraClassPath"] = classpath
    if options.is_local:
        settings |= _local_settings(options)
    elif options.jars:
        settings["spark.jars"] = ",".join(str(jar.absolute()) for jar in options.jars)
    return settings | dict(options.extra)


def _local_settings(options: SparkOptions) -> dict[str, str]:
    bare = any(jar.name.startswith(BARE_FILE_SYSTEM) for jar in options.jars)
    return {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": options.driver_memory,
        "spark.driver.extraJavaOptions": f"{EMBEDDED_JVM} -Dlog4j2.configurationFile={LOG4J.as_uri()}",
        "spark.ui.enabled": "false",
        "spark.sql.streaming.ui.enabled": "false",
        "spark.ui.retainedJobs": "10",
        "spark.ui.retainedStages": "10",
        "spark.ui.retainedTasks": "50",
        "spark.sql.ui.retainedExecutions": "2",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "marq-spark-warehouse"),
        # Hadoop's local file system forks a chmod for each file it writes: 75 ms a batch.
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
        "spark.hadoop.fs.file.impl": (
            "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem"
            if bare
            else "org.apache.hadoop.fs.RawLocalFileSystem"
        ),
    }


@contextmanager
def _environment(options: SparkOptions) -> Iterator[None]:
    """The environment that Spark's scripts and workers inherit, for as long as it takes to start them."""
    before = dict(os.environ)
    try:
        if options.is_local:
            for name in [name for name in os.environ if name.startswith(_FOREIGN)]:
                del os.environ[name]
            os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
            os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
            os.environ.pop("PYTHONPATH", None)
            os.environ.update(_python_path())
        for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
            os.environ.setdefault(name, sys.executable)
        if options.java_home is not None:
            os.environ["JAVA_HOME"] = str(options.java_home)
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _kept_interrupt_handler() -> Iterator[None]:
    """SparkContext takes over Ctrl-C; who stops the pipeline, and how, is decided elsewhere."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _python_path() -> dict[str, str]:
    """Workers find marq where this process found it, and nothing else from an inherited PYTHONPATH."""
    home = Path(__file__).parents[2]
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    return {} if str(home) in installed else {"PYTHONPATH": str(home)}


def _explain(error: Exception, options: SparkOptions, output: SparkOutput) -> str:
    gateway_exited = "JAVA_GATEWAY_EXITED" in failures.words_of(error)
    words = last_error(output.said()) if gateway_exited else failures.last_line(failures.causes_of_call(error))
    if "Could not parse Master URL" in words:
        return _wrong_master(options)
    if not gateway_exited:
        return f"Spark did not start: {words}. Its log may say more."
    said = f" It said: {words.rstrip('.')}." if words else ""
    return f"Spark's JVM did not start.{said} Spark needs Java 17 or newer: install one, or set JAVA_HOME to it."
