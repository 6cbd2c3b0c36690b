"""What the commands share: how they speak, what their errors look like, and how they end."""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer
from typer.core import TyperGroup

from marq.errors import ConfigurationError, MarqError
from marq.settings import variable_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from marq.app import App

FAILED = 1
INTERRUPTED = 130
PLAIN_WIDTH = 120

# Boxes and colours are for people; in a pipe help is plain text.
HELP_STYLE: Literal["rich"] | None = "rich" if sys.stdout.isatty() else None

Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Log more, and show the traceback of an error.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Bootstrap = Annotated[
    str | None,
    typer.Option("--bootstrap", metavar="ADDR", help="The brokers, host:port,...; else MARQ_URL says where they are."),
]
SettingsFile = Annotated[
    str | None, typer.Option("--settings-file", metavar="FILE", help="A TOML file with more settings.")
]

_verbose = [False]


class Commands(TyperGroup):
    """Turns errors that marq raises on purpose into sentences."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except MarqError as error:
            report(error)
            raise typer.Exit(FAILED) from error


def set_up(*, verbose: bool) -> None:
    """Called first by every command: warnings go to standard error, and more of it when the user wants to know."""
    _verbose[0] = verbose
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(levelname)s %(name)s: %(message)s",
        force=True,
    )


def report(error: MarqError) -> None:
    """The error and what caused it, each in a line, unless the first has said the second already."""
    note(f"marq: {error}")
    causes = [text for text in map(str, _causes(error)) if text and text not in str(error)]
    if causes:
        note(f"caused by: {'; '.join(causes)}")
    if _verbose[0]:
        note("".join(traceback.format_exception(error)).rstrip())


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause = error.__cause__
    while cause is not None:
        yield cause
        cause = cause.__cause__


def say(text: str) -> None:
    """A line of the command's result."""
    print(text, flush=True)


def note(text: str) -> None:
    """A line about the work itself, which is no part of the result."""
    print(text, file=sys.stderr, flush=True)


def console(*, stderr: bool = False) -> Console:
    """For what has columns. Without a terminal there is no colour, and no terminal's width to keep to."""
    from rich.console import Console  # noqa: PLC0415 - most commands print plain lines

    made = Console(stderr=stderr, highlight=False)
    return made if made.is_terminal else Console(stderr=stderr, highlight=False, width=PLAIN_WIDTH, no_color=True)


def address(bootstrap: str | None) -> str | None:
    """The brokers as marq's url; also when they were given as one."""
    if bootstrap is None:
        return None
    return bootstrap if "://" in bootstrap else f"kafka://{bootstrap}"


def connect(bootstrap: str | None, settings_file: str | None) -> App:
    """The app that a command works on."""
    from marq.app import App  # noqa: PLC0415 - help and usage errors do without

    if bootstrap is None and settings_file is None and not os.environ.get(variable_of("url")):
        raise ConfigurationError(
            f"There is no broker to connect to. Use --bootstrap host:port, or set {variable_of('url')}=kafka://host:port."
        )
    return App(address(bootstrap), settings_file=Path(settings_file) if settings_file else None)


def end_on_signals() -> None:
    """A polite request to end unwinds like an error does, so that child processes and temporary folders go."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)


def _end(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)
