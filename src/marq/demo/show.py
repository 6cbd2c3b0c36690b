"""How the demo looks: a live picture on a terminal, plain lines anywhere else, and a table at the end."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from marq.demo.story import Outcome
    from marq.demo.tally import Tally, WorkerTally

PLAIN_SECONDS = 5.0
FRAMES_PER_SECOND = 8
BAR_WIDTH = 60
STYLES = {"acked": "bold green", "dead": "bold red", "leased": "bold yellow", "redelivered": "bold cyan"}
WORKER_STYLES = {"starting": "yellow", "at work": "green", "killed": "bold red", "stopped": "dim"}


def line_of(seconds: float, text: str) -> str:
    """An event, with its time since the start."""
    return f"{seconds:5.1f} s  {text}"


class PlainStage:
    """A line per event, and one with the numbers every few seconds."""

    def __init__(self, *, stderr: bool) -> None:
        self._file = sys.stderr if stderr else sys.stdout
        self._said_at = time.monotonic()
        self._said = ""

    def event(self, seconds: float, text: str) -> None:
        print(line_of(seconds, text), file=self._file, flush=True)

    def update(self, tally: Tally) -> None:
        if tally.sent >= tally.planned and time.monotonic() - self._said_at >= PLAIN_SECONDS:
            self._said_at = time.monotonic()
            numbers = ", ".join(f"{name} {value}" for name, value in numbers_of(tally))
            if numbers != self._said:
                self._said = numbers
                self.event(tally.elapsed, numbers)

    def close(self) -> None:
        """Every line is out already."""


class LiveStage:
    """Everything at once, redrawn in place. The events stay on the screen when it is over."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._drawn_at = 0.0
        self._live.start()

    def event(self, seconds: float, text: str) -> None:
        self._live.console.print(Text(line_of(seconds, text), style="bold red" if "kill -9" in text else ""))

    def update(self, tally: Tally) -> None:
        now = time.monotonic()
        if now - self._drawn_at >= 1 / FRAMES_PER_SECOND:
            self._drawn_at = now
            self._live.update(picture(tally), refresh=True)

    def close(self) -> None:
        self._live.stop()


def numbers_of(tally: Tally) -> list[tuple[str, str]]:
    """What is counted, by the names that it has everywhere."""
    numbers = {
        "sent": tally.sent,
        "acked": len(tally.acked),
        "dead": len(tally.dead),
        "waiting": tally.waiting,
        "in flight": tally.in_flight,
        "leased": tally.leased,
        "retried": tally.retried,
        "redelivered": tally.redelivered,
    }
    return [*((name, f"{value:,}") for name, value in numbers.items()), ("rate", f"{tally.rate:,.0f}/s")]


def picture(tally: Tally) -> RenderableType:
    """One frame."""
    clock = Text(f"{tally.elapsed:5.1f} s  {tally.doing} ...", style="cyan")
    bar = Table.grid(padding=(0, 2))
    bar.add_row(ProgressBar(tally.planned, tally.settled, width=BAR_WIDTH), f"{tally.settled:,} of {tally.planned:,}")
    numbers = numbers_of(tally)
    columns = -(-len(numbers) // 2)
    cells = Table.grid(padding=(0, 3))
    for _ in range(columns):
        cells.add_column(justify="right", min_width=11)
    for row in (numbers[:columns], numbers[columns:]):
        cells.add_row(*(Text(name, style="dim") for name, _ in row))
        cells.add_row(*(Text(value, style=STYLES.get(name, "bold")) for name, value in row))
    workers = Table.grid(padding=(0, 2))
    for _ in range(3):
        workers.add_column()
    for _ in range(3):
        workers.add_column(justify="right")
    for worker in tally.workers:
        workers.add_row(*_worker(worker, tally))
    return Group(clock, Text(""), bar, Text(""), cells, Text(""), workers)


def _worker(worker: WorkerTally, tally: Tally) -> list[RenderableType]:
    leases = tally.book.in_hands_of(worker.consumer) if worker.consumer else 0
    return [
        Text(f"worker {worker.name}", style="bold"),
        Text(f"process {worker.pid}", style="dim"),
        Text(worker.state, style=WORKER_STYLES[worker.state]),
        f"{len(worker.acks):,} acked",
        f"{len(worker.failures):,} failed",
        f"{leases} leases",
    ]


def table(outcome: Outcome, console: Console) -> RenderableType:
    """The sum, line by line, and the verdict."""
    rows = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False)
    rows.add_column("")
    rows.add_column("claimed", justify="right")
    rows.add_column("on the broker", justify="right")
    rows.add_column("")
    rows.add_column("what that is", overflow="fold", style="dim" if console.is_terminal else "")
    for check in outcome.checks:
        verdict = Text("ok", style="green") if check.ok else Text("WRONG", style="bold red")
        rows.add_row(check.what, f"{check.claimed:,}", f"{check.held:,}", verdict, check.how)
    wrong = [check.what for check in outcome.checks if not check.ok]
    if wrong:
        end = Text(f"It does not add up: {', '.join(wrong)}.", style="bold red")
    else:
        acked, dead = (next(check.held for check in outcome.checks if check.what == what) for what in ("acked", "dead"))
        end = Text(
            f"It adds up: {outcome.messages:,} messages sent, {acked:,} acked, {dead:,} dead, none lost, one worker "
            f"killed, in {outcome.seconds:.0f} s.",
            style="bold green",
        )
    return Group(Text(""), rows, Text(""), end)
