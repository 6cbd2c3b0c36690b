"""`marq send`."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from marq.cli.shell import Bootstrap, SettingsFile, Verbose, connect, note, say, set_up

if TYPE_CHECKING:
    from marq.message import Receipt

OUTSTANDING_MAX = 10_000


def _pair(text: str) -> str:
    name, separator, _ = text.partition("=")
    if not separator or not name:
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE")
    return text


def send(
    queue: Annotated[str, typer.Argument(help="The queue's name.")],
    value: Annotated[str | None, typer.Argument(help="The message. Without it, each line of standard input.")] = None,
    *,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="The key of the message, or of all of them.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            "--header",
            metavar="NAME=VALUE",
            callback=lambda texts: [_pair(t) for t in texts or ()],
            help="A header; may be given again.",
        ),
    ] = None,
    bootstrap: Bootstrap = None,
    settings_file: SettingsFile = None,
    verbose: Verbose = False,
) -> None:
    """Send messages to a queue and print the id of each, once it is durable.

    A message is sent as the bytes that it is. From standard input each line is one message.
    """
    set_up(verbose=verbose)
    headers = [(name, os.fsencode(data)) for name, _, data in (each.partition("=") for each in header or ())]
    with connect(bootstrap, settings_file) as app:
        target = app.queue(queue)
        outstanding: deque[Receipt] = deque()
        for data in _lines() if value is None else [os.fsencode(value)]:
            outstanding.append(target.send(data, key=None if key is None else os.fsencode(key), headers=headers))
            if len(outstanding) >= OUTSTANDING_MAX:
                say(outstanding.popleft().result().id)
        for receipt in outstanding:
            say(receipt.result().id)


def _lines() -> Iterable[bytes]:
    if sys.stdin.isatty():
        note("Each line is a message; Ctrl-D ends.")
    return (line.removesuffix(b"\n") for line in sys.stdin.buffer)
