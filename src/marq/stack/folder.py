"""A server's data folder: whose it is, of which version, and that only one server works in it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import tempfile
import time
import weakref
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from marq.errors import DataFolderError

if TYPE_CHECKING:
    from collections.abc import Iterator

STAMP = "marq-data.json"
LOCK = "marq-data.lock"
# A server whose owner was killed takes a moment to end; its guard holds the lock until then.
LOCK_PATIENCE_SECONDS = 10.0
FULL_DISK_ADVICE = "Free some space, or choose a data folder on another disk."


class DataFolder:
    """The folder of one server. Without a path it is a temporary one, removed when this object goes.

    `product` says who made the data and which version of it; another product's folder is refused. `facts` is what the
    server wants to remember about its data.
    """

    def __init__(self, path: Path | None, name: str, product: str) -> None:
        self.is_temporary = path is None
        if path is None:
            self.path = Path(tempfile.mkdtemp(prefix=f"marq-{name}-"))
            weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)
        else:
            self.path = path.expanduser().absolute()
        self._product = product
        self.facts: dict[str, str] = {}
        self._lock: int | None = None

    def claim(self) -> int:
        """Makes the folder this server's own and locks it. Returns the locked descriptor, to be held by the server.

        DataFolderError when the folder cannot be written, is in use, or belongs to something else.
        """
        with speaking_of_folder(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._refuse_strangers()
            self._lock = self._take_lock()
            try:
                self._check_owner()
            except BaseException:
                self.release()
                raise
        return self._lock

    def release(self) -> None:
        """Gives up this process's hold on the lock; a server that still runs keeps its own."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def remember(self, **facts: str) -> None:
        """Writes the stamp, with these facts in it, so that it is there whole or not at all."""
        self.facts |= facts
        new = self.path / f"{STAMP}.new"
        new.write_text(json.dumps({"product": self._product, "facts": self.facts}) + "\n")
        new.replace(self.path / STAMP)

    def _refuse_strangers(self) -> None:
        if (self.path / LOCK).exists():
            return
        strangers = sorted(file.name for file in self.path.iterdir())
        if strangers:
            raise DataFolderError(
                f"{self.path} is not a data folder of marq: it holds {strangers[0]}"
                f"{' and more' if len(strangers) > 1 else ''}. Choose an empty or a new folder."
            )

    def _take_lock(self) -> int:
        lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        give_up = time.monotonic() + LOCK_PATIENCE_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > give_up:
                    os.close(lock)
                    raise DataFolderError(
                        f"Another server works in {self.path}. Stop it, or choose another folder."
                    ) from None
                time.sleep(0.05)
            else:
                return lock

    def _check_owner(self) -> None:
        stamp = self.path / STAMP
        if not stamp.exists():
            self.remember()
            return
        try:
            found = json.loads(stamp.read_text())
            product, facts = found["product"], dict(found["facts"])
        except (ValueError, KeyError, TypeError):
            raise DataFolderError(
                f"{stamp} cannot be read, so nobody knows what the folder holds. Choose another folder."
            ) from None
        if product != self._product:
            raise DataFolderError(
                f"{self.path} holds data of {product}, and this marq runs {self._product}. "
                "Use the marq that made it, choose another folder, or delete this one if its data may go."
            )
        self.facts = facts


@contextmanager
def speaking_of_folder(path: Path) -> Iterator[None]:
    """Turns the errors of a file system into sentences that say what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise DataFolderError(f"The disk that holds {path} is full. {FULL_DISK_ADVICE}") from error
        raise DataFolderError(
            f"{path} cannot be used as a data folder ({error.strerror}). Choose one that you can write to."
        ) from error
