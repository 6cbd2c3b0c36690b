"""What the embedded servers have in common: a data folder, a port, a child process, and a way to tell that it is up."""

from __future__ import annotations

import shutil
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Self

from marq.errors import DataFolderError, PortInUseError, ServerStartError, StackError
from marq.stack.folder import FULL_DISK_ADVICE, DataFolder
from marq.stack.process import LOOPBACK, ManagedProcess, free_port, port_is_free, tail

if TYPE_CHECKING:
    from pathlib import Path

PORT_ATTEMPTS = 5
# The port of a server that was killed may stay taken for a moment.
PORT_PATIENCE_SECONDS = 5.0
POLL_SECONDS = 0.05
FULL_BELOW_BYTES = 1_000_000


class Server(ABC):
    """A server on loopback that ends with this process.

    Without `data_dir` its data is in a temporary folder that goes when this object goes; `stop()` and `start()` in
    between keep it. Without `port` the first start picks a free one, and later starts use the same.
    """

    name: ClassVar[str]
    start_seconds: ClassVar[float] = 60.0
    stop_seconds: ClassVar[float] = 20.0

    def __init__(self, product: str, data_dir: Path | None, port: int | None) -> None:
        self._folder = DataFolder(data_dir, self.name.lower(), product)
        self._port = port
        self._process: ManagedProcess | None = None

    @abstractmethod
    def _launch(self, port: int, held: int) -> ManagedProcess:
        """Starts the child. `held` is the locked descriptor that it has to hold as long as it runs."""

    @abstractmethod
    def _is_ready(self, port: int) -> bool:
        """Whether the server that answers on the port is ours and takes requests."""

    @property
    @abstractmethod
    def log(self) -> Path:
        """The server's own log."""

    @property
    def port(self) -> int:
        if self._port is None:
            raise ServerStartError(f"{self.name} has no port before its first start. Call start().")
        return self._port

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.is_alive

    @property
    def data_dir(self) -> Path:
        return self._folder.path

    def start(self, timeout: float | None = None) -> Self:
        """Starts the server, or starts it again, and returns when it takes requests."""
        if self.is_alive:
            return self
        wanted = self._port
        for attempt in range(1, PORT_ATTEMPTS + 1):
            port = free_port() if wanted is None else self._claim_port(wanted)
            try:
                self._start_on(port, timeout or self.start_seconds)
            except BaseException as error:
                self.kill()
                # A port that was free a moment ago may be gone; one that the caller chose is the caller's to change.
                if isinstance(error, PortInUseError) and wanted is None and attempt < PORT_ATTEMPTS:
                    continue
                raise
            self._port = port
            break
        return self

    def stop(self) -> None:
        """Stops the server cleanly. Its data stays for another start."""
        if self._process is not None:
            self._process.stop(self.stop_seconds)
        self._folder.release()

    def kill(self) -> None:
        """Ends the server as a power cut would (SIGKILL). Its data stays for another start."""
        if self._process is not None:
            self._process.kill()
        self._folder.release()

    def restart(self) -> Self:
        self.stop()
        return self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _claim_port(self, port: int) -> int:
        give_up = time.monotonic() + PORT_PATIENCE_SECONDS
        while not port_is_free(port):
            if time.monotonic() > give_up:
                raise PortInUseError(
                    f"Port {port} on {LOOPBACK} is taken by another program. Stop that program, choose another port, "
                    "or name none to get a free one."
                )
            time.sleep(POLL_SECONDS)
        return port

    def _start_on(self, port: int, timeout: float) -> None:
        process = self._process = self._launch(port, self._folder.claim())
        give_up = time.monotonic() + timeout
        while not self._is_ready(port):
            if not process.is_alive:
                raise self.start_error(f"{self.name} ended while starting (exit code {process.exit_code})")
            if time.monotonic() > give_up:
                raise self.start_error(f"{self.name} was not ready after {timeout:.0f} seconds")
            time.sleep(POLL_SECONDS)

    def start_error(self, what: str) -> StackError:
        """The error that fits what the logs say."""
        logs = [self.log] if self._process is None else [self._process.log, self.log]
        text = "\n".join(filter(None, map(tail, dict.fromkeys(logs))))
        # On a full disk the log itself may have stayed empty.
        if "No space left on device" in text or shutil.disk_usage(self.data_dir).free < FULL_BELOW_BYTES:
            return DataFolderError(f"{what}: the disk that holds {self.data_dir} is full. {FULL_DISK_ADVICE}")
        if "Address already in use" in text:
            return PortInUseError(f"{what}: another program took its port. Choose another port, or name none.")
        return ServerStartError(f"{what}. The end of its log:\n{text}")
