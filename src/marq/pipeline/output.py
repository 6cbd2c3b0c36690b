"""What Spark's JVM and its Python workers write: into a file, or on standard error, without what says nothing.

The workers print their progress past all logging, so no logging setting silences them; whoever has the terminal would
read it at each start. A file gets everything.
"""

import os
import re
import sys
import threading
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from marq.errors import PipelineError

LINES_KEPT = 200
LAST_WORDS_WITHIN = 2.0

_NOISE = re.compile(
    rb"(Starting )?Streaming TransformWithStateInPandas Python worker\b|WARNING: Using incubator modules:"
)
_ERROR = re.compile(r"error|exception|could not|cannot|unable|not found|no such", re.IGNORECASE)
_FRAME = re.compile(r"\s+at |\s*\.\.\. \d+ more")


class SparkOutput:
    """Open it while the JVM is started; the JVM keeps what it needs."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._begins = 0
        self._lines: deque[bytes] = deque(maxlen=LINES_KEPT)
        self._reader: threading.Thread | None = None
        self._stream: IO[bytes] | None = None

    @property
    def stream(self) -> IO[bytes]:
        """For the standard output and the standard error of the JVM."""
        assert self._stream is not None  # noqa: S101 - only asked for while it is open
        return self._stream

    def __enter__(self) -> Self:
        if self._file is None:
            reading, writing = os.pipe()
            self._stream = os.fdopen(writing, "wb")
            self._reader = threading.Thread(
                target=self._pass_on, args=(reading,), name="marq-spark-output", daemon=True
            )
            self._reader.start()
            return self
        try:
            self._stream = self._file.open("ab")
        except OSError as error:
            raise PipelineError(
                f"Spark's log {self._file} cannot be written ({error.strerror}). Name a file in a folder that exists."
            ) from error
        self._begins = self._stream.tell()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stream.close()

    def _pass_on(self, reading: int) -> None:
        """Until the last of the processes that write here has ended."""
        was_noise = False
        with os.fdopen(reading, "rb") as lines:
            for line in lines:
                # A worker's print ends with an empty line.
                was_noise = bool(_NOISE.match(line)) or (was_noise and not line.strip())
                if not was_noise:
                    self._lines.append(line)
                    print(line.decode(errors="replace"), end="", file=sys.stderr, flush=True)  # noqa: T201 - see above

    def said(self) -> list[str]:
        """The lines since the start, once the JVM has ended."""
        self.stream.close()
        if self._reader is not None:
            self._reader.join(LAST_WORDS_WITHIN)
            text = b"".join(self._lines)
        else:
            assert self._file is not None  # noqa: S101 - without a reader there is a file
            text = self._file.read_bytes()[self._begins :]
        return text.decode(errors="replace").splitlines()


def last_error(lines: list[str]) -> str:
    """The last line that looks like an error, else the last that is no frame of a stack; empty when there is none."""
    spoken = [
        line.strip() for line in lines if line.strip() and not _FRAME.match(line) and not _NOISE.match(line.encode())
    ]
    errors = [line for line in spoken if _ERROR.search(line)]
    return (errors or spoken or [""])[-1]
