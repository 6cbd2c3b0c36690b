"""A child process that never outlives its parent, with its output in a file."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Self

from marq.errors import PortInUseError, StackError
from marq.stack import guard

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

LOOPBACK = "127.0.0.1"
# Below the ports that Linux and macOS give to outgoing connections. A client that keeps trying to reconnect to a server
# that is down may otherwise be given the server's own port, and then holds it.
PORTS = range(20000, 32768)
# Not the shared generator: a program that seeds it would meet the same ports again and again.
ANY_PORT = random.SystemRandom()


class ManagedProcess:
    """One command under a guard process, which ends it when this process ends, even by SIGKILL.

    It runs in a session of its own: Ctrl-C in the terminal reaches only this process, which then stops its children
    in the order it likes.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        orphan_grace: float = 3.0,
        hold: Sequence[int] = (),
        temporary: Path | None = None,
    ) -> None:
        """`hold` are file descriptors kept open for as long as the command runs, such as a locked file.

        `orphan_grace` is how many seconds the command has to stop by itself after this process has died;
        `temporary` is a folder that nobody needs from then on.
        """
        self.command = [str(part) for part in command]
        self.log = log
        self._environment = dict(os.environ if environment is None else environment)
        self._folder = folder
        self._orphan_grace = orphan_grace
        self._hold = tuple(hold)
        self._temporary = temporary
        self._guard: subprocess.Popen[bytes] | None = None
        self._lifeline: int | None = None
        self._pid = 0

    def start(self) -> Self:
        """Starts the command and returns once it runs. StackError when it cannot be executed."""
        if self.is_alive:
            raise StackError(f"{self.command[0]} is running already (process {self._pid}).")
        self._release()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        lifeline, self._lifeline = os.pipe()
        try:
            settings = [str(lifeline), str(self._orphan_grace), str(self._temporary or "")]
            with self.log.open("ab") as output:
                self._guard = subprocess.Popen(
                    [sys.executable, "-I", "-S", guard.__file__, *settings, *self.command],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=output,
                    env=self._environment,
                    cwd=self._folder,
                    pass_fds=(lifeline, *self._hold),
                    start_new_session=True,
                )
        except BaseException:
            self._release()
            raise
        finally:
            os.close(lifeline)
        stdout = self._guard.stdout
        assert stdout is not None  # noqa: S101 - a pipe was asked for above
        with stdout:
            first_line = stdout.readline().decode(errors="replace").strip()
        if not first_line.isdigit():
            self._guard.wait()
            self._release()
            raise StackError(f"{self.command[0]} could not be started: {first_line or self.log_tail()}")
        self._pid = int(first_line)
        return self

    @property
    def pid(self) -> int:
        """The process id of the command itself, not of its guard. 0 before the first start."""
        return self._pid

    @property
    def is_alive(self) -> bool:
        return self._guard is not None and self._guard.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The code the command ended with, 128 and the signal's number if a signal ended it; None while it runs."""
        return None if self._guard is None else self._guard.poll()

    def wait(self, timeout: float | None = None) -> int | None:
        """Waits until the command has ended. None when it still runs after the timeout."""
        if self._guard is None:
            return None
        try:
            return self._guard.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def stop(self, timeout: float = 15.0) -> None:
        """Asks the command to end (SIGTERM), and kills it and its children when it has not after the timeout."""
        self._signal(signal.SIGTERM)
        if self._guard is not None and self.wait(timeout) is None:
            self.kill()
        self._release()

    def kill(self) -> None:
        """Ends the command and its process group at once (SIGKILL), without a chance to clean up."""
        self._signal(signal.SIGUSR1)
        if self._guard is not None:
            self._guard.wait()
        self._release()

    def log_tail(self, lines: int = 20) -> str:
        return tail(self.log, lines)

    def _signal(self, number: int) -> None:
        if self._guard is not None and self._guard.poll() is None:
            self._guard.send_signal(number)

    def _release(self) -> None:
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def tail(file: Path, lines: int = 20) -> str:
    """The last lines of a log file; an empty text when there is no such file."""
    try:
        with file.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - 64 * 1024))
            text = stream.read().decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def port_is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the servers do it: a port in TIME_WAIT from the last run counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def free_port(avoid: Sequence[int] = ()) -> int:
    """A port on loopback that nobody listens on now."""
    for _ in range(1000):
        port = ANY_PORT.choice(PORTS)
        if port not in avoid and port_is_free(port):
            return port
    raise PortInUseError(f"No free port on {LOOPBACK} between {PORTS.start} and {PORTS.stop - 1}. Name one yourself.")
