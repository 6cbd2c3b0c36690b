"""What the commands share: how they speak, what their errors look like, and how they end."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer
from typer.core import TyperGroup

from marq.errors import ConfigurationError, MarqError, TransportError
from marq.settings import AppSettings, variable_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

    from marq.app import App

FAILED = 1
INTERRUPTED = 130
PLAIN_WIDTH = 120
BROKER_SECONDS = 3.0

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
    causes = [text for text in map(_said, _causes(error)) if text and text not in str(error)]
    if causes:
        note(f"caused by: {'; '.join(causes)}")
    if _verbose[0]:
        note("".join(traceback.format_exception(error)).rstrip())


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause = error.__cause__
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _said(error: BaseException) -> str:
    """The first line of what it says. An error of Spark's asks its JVM for the words, and that may be gone."""
    try:
        return str(error).strip().partition("\n")[0]
    except Exception:  # noqa: BLE001 - whatever the words fail with, the report itself must come out
        return ""


def say(text: str) -> None:
    """A line of the command's result. The command ends when nobody reads it any more."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # What is still in the buffer would fail once more when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        note("marq: The output was closed, so this ends early.")
        raise SystemExit(FAILED) from None


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
    """The app that a command works on, once it is known that a broker answers."""
    from marq.app import App  # noqa: PLC0415 - help and usage errors do without

    if bootstrap is None and settings_file is None and not os.environ.get(variable_of("url")):
        raise ConfigurationError(
            f"There is no broker to connect to. Use --bootstrap host:port, or set {variable_of('url')}=kafka://host:port."
        )
    _check_bootstrap(bootstrap)
    app = App(address(bootstrap), settings_file=Path(settings_file) if settings_file else None)
    require_broker(app.settings)
    return app


def _check_bootstrap(bootstrap: str | None) -> None:
    """What is wrong with the option must not be told as a url that nobody has typed."""
    url = address(bootstrap)
    if url is None:
        return
    try:
        AppSettings(url=url)
    except ConfigurationError:
        if "@" in url:
            raise ConfigurationError(
                "--bootstrap must not hold a user or a password: set "
                f"{variable_of('kafka', 'sasl_username')} and {variable_of('kafka', 'sasl_password')} instead."
            ) from None
        raise ConfigurationError(f"--bootstrap must be host:port, or host:port,host:port, not {bootstrap!r}.") from None


def require_broker(settings: AppSettings) -> None:
    """Say at once when there is none; the Kafka client would go on trying for half a minute."""
    if settings.transport == "memory":
        raise ConfigurationError(
            f"{settings.url} lives inside one process, so what a command does there is gone when it ends. "
            f"Use a broker: --bootstrap host:port, or {variable_of('url')}=kafka://host:port."
        )
    failure: OSError | None = None
    for broker in settings.address.split(","):
        host, _, port = broker.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=BROKER_SECONDS).close()
        except OSError as error:
            failure = error
        else:
            return
    raise TransportError(
        f"No broker answers at {settings.address}. Check that it runs and that the address is right; "
        "`marq dev` starts one."
    ) from failure


def end_on_signals() -> None:
    """A polite request to end unwinds like an error does, so that child processes and temporary folders go."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)


def _end(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)
