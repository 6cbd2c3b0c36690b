"""`marq` as a process, as a person in a terminal has it."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

# Whoever runs these tests in the background of a script has Ctrl-C switched off, and with it that of all children.
START = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from marq.cli import main; main()"


class MarqProcess:
    def __init__(self, arguments, folder):
        self.temporary = folder / "tmp"
        self.temporary.mkdir(exist_ok=True)
        self.said = []
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"TMPDIR": str(self.temporary)},
        )
        self.family = {}
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self):
        for line in self.process.stdout:
            self.said.append(line.rstrip("\n"))

    def await_line(self, part, timeout):
        until = time.monotonic() + timeout
        while not any(part in line for line in self.said):
            assert self.process.poll() is None, f"it ended with {self.process.poll()}: {self.said}"
            assert time.monotonic() < until, f"no {part!r} in {self.said}"
            self.look_at_family()
            time.sleep(0.1)
        return next(line for line in self.said if part in line)

    def look_at_family(self):
        """Remember every process that it has started."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            self.family.setdefault((child.pid, child.create_time()), child)

    def interrupt(self):
        self.look_at_family()
        self.process.send_signal(signal.SIGINT)

    def end(self, timeout):
        """The exit code, once it has ended by itself."""
        code = self.process.wait(timeout)
        self._thread.join(10)
        return code

    def survivors(self):
        """Processes that it has left behind; the kernel may need a moment to end them."""
        _, alive = psutil.wait_procs(self.family.values(), timeout=5)
        return alive

    def kill(self):
        if self.process.poll() is None:
            self.look_at_family()
            self.process.kill()
        self.process.wait(10)
        self._thread.join(10)
        self.process.stdout.close()
        for process in self.survivors():
            process.kill()


@pytest.fixture(autouse=True)
def same_logging_afterwards():
    """The commands set up logging for their process; here it is pytest's."""
    root = logging.getLogger()
    before = (root.level, list(root.handlers))
    yield
    root.setLevel(before[0])
    root.handlers[:] = before[1]


@pytest.fixture
def memory_is_a_broker(monkeypatch):
    """Lets commands work on a broker in memory, which is gone with a real command's process, but not with a test's."""
    monkeypatch.setattr("marq.cli.shell.require_broker", lambda settings: None)


@pytest.fixture
def marq_process(tmp_path):
    """Starts `marq` with these arguments; whatever it leaves is ended with the test."""
    started = []

    def start(*arguments):
        started.append(MarqProcess(arguments, tmp_path))
        return started[-1]

    yield start
    for each in started:
        each.kill()
