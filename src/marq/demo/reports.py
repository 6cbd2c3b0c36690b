"""What workers tell, in a file of lines: each is written whole and at once, so it outlives a kill -9 of its writer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

HERE = "here"  # the worker is at work; the id is its consumer's
BEGUN = "begun"
FAILED = "failed"
ACKED = "acked"


class Report(NamedTuple):
    """One line."""

    what: str
    number: int
    attempt: int
    id: str


class ReportFile:
    """The worker's end."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, what: str, identity: str, number: int = 0, attempt: int = 0) -> None:
        os.write(self._file, f"{what} {number} {attempt} {identity}\n".encode())


class ReportTail:
    """The reader's end: what is new, each time it looks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_to = 0

    def read(self) -> list[Report]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._read_to)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read_to += len(whole)
        return [_parse(line) for line in whole.decode().splitlines()]


def _parse(line: str) -> Report:
    what, number, attempt, identity = line.split(" ", 3)
    return Report(what, int(number), int(attempt), identity)
