"""The `marq` command: parses, calls the library, prints. What a command needs is loaded when it runs."""

from __future__ import annotations

from typing import NoReturn

import typer

from marq.cli import bench, demo, dev, fetch, pipeline, send, version
from marq.cli.shell import HELP_STYLE, Commands, end_on_signals

app = typer.Typer(
    name="marq",
    cls=Commands,
    help="Message-queue semantics on Apache Kafka: lease, ack, retry and dead-letter every message on its own.\n\n"
    "Exit codes: 0 fine, 1 failed or does not add up, 2 wrong usage, 130 cut off with Ctrl-C, which is how `dev` and "
    "`pipeline` are ended: they end with 0.",
    epilog="Example: marq demo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=HELP_STYLE,
)
app.callback()(version.root)
app.command("demo", epilog="Example: marq demo")(demo.demo)
app.command("dev", epilog="Example: marq dev --data-dir ./data --kafka-port 9092")(dev.dev)
app.command("pipeline", epilog="Example: marq pipeline --bootstrap 127.0.0.1:9092 --checkpoint ./checkpoint")(
    pipeline.pipeline
)
app.command("send", epilog='Example: marq send emails \'{"to": "a@x.org"}\' --bootstrap 127.0.0.1:9092 --key user-7')(
    send.send
)
app.command("fetch", epilog="Example: MARQ_CACHE_DIR=/opt/marq marq fetch")(fetch.fetch)
app.command("version", epilog="Example: marq version")(version.version)

_benches = typer.Typer(
    help="Measure marq beside the bare client, turn by turn in one run.",
    epilog="Example: marq bench consume --json",
    no_args_is_help=True,
    rich_markup_mode=HELP_STYLE,
)
_benches.command("consume", epilog="Example: marq bench consume --rounds 5 --messages 500000")(bench.consume)
_benches.command("produce", epilog="Example: marq bench produce --bootstrap 127.0.0.1:9092 --json")(bench.produce)
app.add_typer(_benches, name="bench", epilog="Example: marq bench consume --json")


def main() -> NoReturn:
    """The console script."""
    end_on_signals()
    app(prog_name="marq")
    raise SystemExit(0)


__all__ = ["app", "main"]
