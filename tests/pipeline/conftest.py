"""The pipeline as its users run it: a process of its own, that can be stopped, and killed."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, Queue

import psutil
import pytest

from marq.stack.jars import spark_jars

READY_WITHIN = 60
GONE_WITHIN = 15

# It ends with the test's process too, however that one ends: then its standard input closes.
SCRIPT = """
import json, sys, threading
from datetime import timedelta
from pathlib import Path
from marq.errors import MarqError
from marq.pipeline import run
from marq.settings import PipelineSettings, TopicSettings

said = json.loads(sys.argv[1])
run.STATUS_EVERY = 0.5
def tell(kind, status):
    print(json.dumps([kind, json.loads(status.to_json())]), flush=True)
def end_with_parent():
    sys.stdin.read()
    import os, signal
    os.kill(os.getpid(), signal.SIGTERM)
threading.Thread(target=end_with_parent, daemon=True).start()
try:
    run.run_pipeline(
        said["bootstrap"],
        TopicSettings(prefix=said["prefix"]),
        PipelineSettings(checkpoint=said["checkpoint"], heartbeat=timedelta(seconds=said["heartbeat"])),
        jars=[Path(jar) for jar in said["jars"]],
        log_file=Path(said["log"]),
        on_ready=lambda status: tell("ready", status),
        on_status=lambda status: tell("status", status),
    )
except MarqError as error:
    print(json.dumps(["error", str(error)]), flush=True)
    sys.exit(1)
"""


class PipelineProcess:
    """A pipeline, and everything that belongs to it."""

    def __init__(self, bootstrap: str, prefix: str, checkpoint: Path, log: Path, heartbeat: int) -> None:
        self._log = log
        said = {
            "bootstrap": bootstrap,
            "prefix": prefix,
            "checkpoint": str(checkpoint),
            "log": str(log),
            "heartbeat": heartbeat,
            "jars": [str(jar) for jar in spark_jars()],
        }
        # What a user's shell may hold must not lead it astray.
        misleading = {"SPARK_HOME": "/nowhere", "SPARK_CONF_DIR": "/nowhere", "PYSPARK_PYTHON": "/nowhere/python"}
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", SCRIPT, json.dumps(said)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env={**os.environ, **misleading},
                text=True,
            )
        self._family: dict[int, psutil.Process] = {}
        self._said: Queue[tuple[str, object]] = Queue()
        self._latest: dict[str, object] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self._process.stdout:
            kind, what = json.loads(line)
            if kind == "status":
                self._latest = what
            else:
                self._said.put((kind, what))
        self._said.put(("end", None))

    def _next(self, kind: str, timeout: float):
        try:
            found, what = self._said.get(timeout=timeout)
        except Empty:
            found, what = "nothing", None
        assert found == kind, f"{found}: {what}\n{self._log.read_text()[-3000:]}"
        return what

    @property
    def status(self):
        return self._latest

    def await_ready(self):
        status = self._next("ready", READY_WITHIN)
        self.family()
        return status

    def await_error(self, timeout: float = READY_WITHIN) -> str:
        error = self._next("error", timeout)
        assert self._process.wait(GONE_WITHIN) == 1
        self._all_gone()
        return error

    def family(self) -> dict[int, psutil.Process]:
        """The driver's children and theirs: the JVM and the Python workers."""
        if self._process.poll() is None:
            self._family |= {each.pid: each for each in psutil.Process(self._process.pid).children(recursive=True)}
        return self._family

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.family()
        self._process.send_signal(number)
        code = self._process.wait(READY_WITHIN)
        self._all_gone()
        return code

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def kill_jvm(self) -> None:
        java = [each for each in self.family().values() if each.name() == "java"]
        assert len(java) == 1
        java[0].kill()

    def _all_gone(self) -> None:
        _, alive = psutil.wait_procs(list(self._family.values()), timeout=GONE_WITHIN)
        assert alive == []

    def close(self) -> None:
        """Whatever happened: leave nothing behind."""
        self.family()
        self._process.kill()
        self._process.wait()
        for each in self._family.values():
            if each.is_running():
                each.kill()
        self._process.stdin.close()
        self._process.stdout.close()


@pytest.fixture
def start_pipeline(request, tmp_path) -> Iterator:
    running = []

    def start(prefix: str, checkpoint: Path, *, heartbeat: int = 15, bootstrap: str | None = None) -> PipelineProcess:
        log = tmp_path / f"pipeline-{len(running)}.log"
        bootstrap = bootstrap or request.getfixturevalue("kafka_server").bootstrap
        running.append(PipelineProcess(bootstrap, prefix, checkpoint, log, heartbeat))
        return running[-1]

    yield start
    for process in running:
        process.close()
