"""Shows how far a download has come: a bar on a terminal, a few plain lines anywhere else. On standard error."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable

PLAIN_LINE_SECONDS = 5.0


class Progress:
    """Says what is fetched and how much it is, then how much of it has arrived."""

    def __init__(self, sentence: str, total: int) -> None:
        self._sentence = sentence
        self._total = total
        self._show: Callable[[int], None] = self._plain_line
        self._close: Callable[[], None] = lambda: None
        self._said_at = 0.0

    def __enter__(self) -> Self:
        print(self._sentence, file=sys.stderr, flush=True)  # noqa: T201 - this is the terminal surface
        self._said_at = time.monotonic()
        if sys.stderr.isatty():
            self._open_bar()
        return self

    def _open_bar(self) -> None:
        # Only on a terminal, and only on a first run: everything else should not wait for this import.
        from rich.console import Console  # noqa: PLC0415
        from rich.progress import BarColumn, DownloadColumn, TransferSpeedColumn  # noqa: PLC0415
        from rich.progress import Progress as Bars  # noqa: PLC0415

        bars = Bars(BarColumn(), DownloadColumn(), TransferSpeedColumn(), console=Console(stderr=True), transient=True)
        task = bars.add_task("fetching", total=self._total)
        bars.start()
        self._show = lambda arrived: bars.update(task, completed=min(arrived, self._total))
        self._close = bars.stop

    def arrived(self, count: int) -> None:
        self._show(count)

    def _plain_line(self, count: int) -> None:
        if time.monotonic() - self._said_at >= PLAIN_LINE_SECONDS:
            self._said_at = time.monotonic()
            print(f"  {count / 1e6:.0f} of {self._total / 1e6:.0f} MB", file=sys.stderr, flush=True)  # noqa: T201 - as above

    def __exit__(self, *_: object) -> None:
        self._close()
