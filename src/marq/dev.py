"""The whole of marq on this machine: the broker, Redis and the pipeline, as children of this process."""

from __future__ import annotations

import json
import os
import shutil
import sys
import sysconfig
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from marq.app import App
from marq.errors import DataFolderError, StackError
from marq.settings import ENVIRONMENT_PREFIX
from marq.stack.folder import speaking_of_folder
from marq.stack.jars import KAFKA_VERSION, broker_jars, spark_jars
from marq.stack.java import clean_environment, find_java
from marq.stack.kafka import KafkaServer
from marq.stack.process import ManagedProcess, port_is_free
from marq.stack.redis import RedisServer, find_redis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from marq.stack.server import Server

KAFKA_PORT = 9092
REDIS_PORT = 6379
PIPELINE_START_SECONDS = 120.0
PIPELINE_STOP_SECONDS = 12.0
LOOK_EVERY = 0.1
LOG_LINES = 15

# A broker of our own is at an address of its own, and takes no password.
CONNECTION_SETTINGS = ("URL", "KAFKA_")


@contextmanager
def environment_without(*settings: str) -> Iterator[None]:
    """Hide the MARQ_* variables that begin so, for as long as this process works with servers of its own."""
    prefixes = tuple(ENVIRONMENT_PREFIX + name for name in settings)
    hidden = {name: value for name, value in os.environ.items() if name.startswith(prefixes)}
    for name in hidden:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(hidden)


def python_module(module: str) -> list[str]:
    """The command that runs a module of marq in another interpreter like this one.

    No file in the user's folder can get in its way.
    """
    return [sys.executable, "-P", "-m", module]


def child_environment() -> dict[str, str]:
    """A clean environment in which a child finds marq where this process found it."""
    environment = clean_environment()
    home = Path(__file__).parents[1]
    if str(home) not in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        environment["PYTHONPATH"] = str(home)
    environment["PYTHONUNBUFFERED"] = "1"
    return environment


class PipelineProcess:
    """`marq pipeline` in a process of its own, which tells how it is in its log."""

    name = "the pipeline"

    def __init__(self, bootstrap: str, folder: Path, checkpoint: Path) -> None:
        self.log = folder / "pipeline.log"
        self.spark_log = folder / "spark.log"
        self.status: dict[str, Any] = {}
        self._read_to = 0
        self._process = ManagedProcess(
            [
                *python_module("marq.cli"),
                *("pipeline", "--json", "--bootstrap", bootstrap),
                *("--checkpoint", str(checkpoint), "--spark-log", str(self.spark_log)),
            ],
            log=self.log,
            environment=child_environment(),
            orphan_grace=PIPELINE_STOP_SECONDS,
        )

    def start(self) -> Self:
        for log in (self.log, self.spark_log):
            log.unlink(missing_ok=True)
        self._read_to = 0
        self.status = {}
        self._process.start()
        return self

    def refresh(self) -> dict[str, Any]:
        """What it last said of itself; empty before it has said anything."""
        with self.log.open("rb") as log:
            log.seek(self._read_to)
            *lines, _ = log.read().split(b"\n")
        for line in lines:
            self._read_to += len(line) + 1
            if line.startswith(b"{"):
                self.status = json.loads(line)
        return self.status

    @property
    def is_ready(self) -> bool:
        return bool(self.refresh().get("ready"))

    def await_ready(self, timeout: float = PIPELINE_START_SECONDS) -> None:
        give_up = time.monotonic() + timeout
        while not self.is_ready:
            if not self.is_alive:
                raise self.death()
            if time.monotonic() > give_up:
                raise StackError(f"The pipeline was not ready after {timeout:.0f} seconds. {self._last_words()}")
            time.sleep(LOOK_EVERY)

    def death(self) -> StackError:
        return StackError(f"The pipeline ended by itself (exit code {self._process.exit_code}). {self._last_words()}")

    def _last_words(self) -> str:
        lines = [line for line in self._process.log_tail(LOG_LINES).splitlines() if not line.startswith("{")]
        return f"Its logs are {self.log} and {self.spark_log}; the end of the first:\n" + "\n".join(lines)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive

    def stop(self) -> None:
        self._process.stop(PIPELINE_STOP_SECONDS)

    def kill(self) -> None:
        self._process.kill()


class DevStack:
    """What `marq dev` runs. Everything it keeps is in one folder: a temporary one unless the user names another."""

    def __init__(
        self,
        *,
        data_dir: Path | None,
        kafka_port: int | None,
        redis: bool | None,
        redis_port: int | None,
        say: Callable[[str], object],
    ) -> None:
        """`redis` None: where there is one. A port None: the usual one if it is free, else any; 0: any."""
        self._is_temporary = data_dir is None
        self.folder = Path(tempfile.mkdtemp(prefix="marq-dev-")) if data_dir is None else data_dir.expanduser()
        self._redis_wanted = redis
        self._say = say
        self.kafka = KafkaServer(self.folder / "kafka", _port(kafka_port, KAFKA_PORT))
        self.redis: RedisServer | None = None
        self._redis_port = redis_port
        self.pipeline: PipelineProcess | None = None

    def start(self) -> None:
        """Everything, in the order in which one needs the other; returns when messages are redelivered."""
        self._check_folder()
        find_java()
        broker_jars()
        spark_jars()
        place = f"{self.folder}, removed at the end (keep it with --data-dir)" if self._is_temporary else self.folder
        self._say(f"data      {place}")
        self.kafka.start()
        self._say(f"Kafka     {self.kafka.bootstrap}   version {KAFKA_VERSION}, log {self.kafka.log}")
        self._start_redis()
        with App(f"kafka://{self.kafka.bootstrap}") as app:
            app.ensure_topics()
            names = ", ".join(spec.name for spec in app.topic_specs())
        self._say(f"topics    {names}")
        self._say("pipeline  starting on Spark, about 10 seconds")
        self.pipeline = PipelineProcess(self.kafka.bootstrap, self.folder, self.folder / "checkpoint").start()
        self.pipeline.await_ready()
        self._say(f"pipeline  up: process {self.pipeline.pid}, log {self.pipeline.log}")

    def _check_folder(self) -> None:
        """Whatever is wrong with it is told of the folder that was given, not of one inside it."""
        if self.folder.exists() and not self.folder.is_dir():
            raise DataFolderError(f"{self.folder} is a file. Choose an empty or a new folder.")
        with speaking_of_folder(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self.folder).close()

    def _start_redis(self) -> None:
        if self._redis_wanted is False:
            return
        if self._redis_wanted is None:
            try:
                find_redis()
            except StackError:
                self._say("Redis     none on this machine, and none needed (--redis says how to get one)")
                return
        self.redis = RedisServer(self.folder / "redis", _port(self._redis_port, REDIS_PORT)).start()
        self._say(f"Redis     {self.redis.url}   log {self.redis.log}; nothing in this version uses it")

    def watch(self) -> None:
        """Until something ends that should not: then a StackError says what, and the end of its log."""
        restarts = 0
        while True:
            for server in self._servers():
                if not server.is_alive:
                    raise server.start_error(f"{server.name} ended by itself")
            if self.pipeline is not None:
                if not self.pipeline.is_alive:
                    raise self.pipeline.death()
                status = self.pipeline.refresh()
                if status.get("restarts", 0) > restarts:
                    restarts = status["restarts"]
                    self._say(f"the pipeline was restarted after: {status.get('last_error')}")
            time.sleep(LOOK_EVERY)

    def _servers(self) -> list[Server]:
        return [self.kafka] if self.redis is None else [self.kafka, self.redis]

    def stop(self) -> None:
        """The pipeline first, because it needs the broker to end in order."""
        if self.pipeline is not None:
            self.pipeline.stop()
        for server in reversed(self._servers()):
            server.stop()
        self._remove()

    def kill(self) -> None:
        """At once. What was confirmed is on the disk nevertheless."""
        if self.pipeline is not None:
            self.pipeline.kill()
        for server in self._servers():
            server.kill()
        self._remove()

    def _remove(self) -> None:
        if self._is_temporary:
            shutil.rmtree(self.folder, ignore_errors=True)


def _port(wanted: int | None, usual: int) -> int | None:
    if wanted is None:
        return usual if port_is_free(usual) else None
    return wanted or None
