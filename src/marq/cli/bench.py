"""`marq bench consume` and `marq bench produce`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from marq.cli.shell import Json, Verbose, connect, console, note, say, set_up

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from marq.app import App
    from marq.bench.rounds import Subject

YARDSTICK = "confluent-kafka"
MESSAGES_STEP = 50_000

Rounds = Annotated[int, typer.Option("--rounds", metavar="N", min=1, help="How often each subject has its turn.")]
Messages = Annotated[int, typer.Option("--messages", metavar="N", min=1, help="How many messages a turn takes.")]
Size = Annotated[int, typer.Option("--size", metavar="N", min=1, max=900_000, help="Bytes of each message.")]
Broker = Annotated[
    str | None, typer.Option("--bootstrap", metavar="ADDR", help="A broker to use. Without it: an embedded one.")
]


def consume(
    *,
    rounds: Rounds = 5,
    messages: Messages = 500_000,
    size: Size = 100,
    bootstrap: Broker = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Read a backlog: marq beside the bare client and beside Kafka's share groups.

    Every message is handed to a handler and acked on its own. The queue is filled once, before the first turn.
    """
    set_up(verbose=verbose)
    from marq.bench import consume as bench  # noqa: PLC0415 - loads the Kafka client

    _run("consume", bench.subjects, bootstrap, rounds, messages, size, json=json)


def produce(
    *,
    rounds: Rounds = 5,
    messages: Messages = 200_000,
    size: Size = 100,
    bootstrap: Broker = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Send until everything is confirmed: marq's send_many and send beside the bare client, all with acks=all."""
    set_up(verbose=verbose)
    from marq.bench import produce as bench  # noqa: PLC0415 - loads the Kafka client

    _run("produce", bench.subjects, bootstrap, rounds, messages, size, json=json)


def _run(
    name: str,
    subjects_of: Callable[[str, App, int, int], list[Subject]],
    bootstrap: str | None,
    rounds: int,
    messages: int,
    size: int,
    *,
    json: bool,
) -> None:
    from marq.bench.rounds import interleave  # noqa: PLC0415 - other commands do without
    from marq.dev import CONNECTION_SETTINGS, environment_without  # noqa: PLC0415 - other commands do without
    from marq.stack.kafka import KafkaServer  # noqa: PLC0415 - other commands do without

    with ExitStack() as open_things:
        if bootstrap is None:
            open_things.enter_context(environment_without(*CONNECTION_SETTINGS))
            note("starting a broker")
            bootstrap = open_things.enter_context(KafkaServer()).bootstrap
        app = open_things.enter_context(connect(bootstrap, None))
        note(f"{messages:,} messages of {size} bytes a turn; a first turn of each warms up and does not count")
        subjects = subjects_of(app.settings.address, app, messages, size)
        for number, subject, lap in interleave(subjects, rounds):
            cpu = lap.cpu_seconds / lap.messages * 1e6
            rate = lap.messages / lap.seconds
            note(f"round {number + 1} of {rounds}  {subject.name:16} {rate:>12,.0f} messages/s  {cpu:6.2f} µs CPU each")
    if json:
        for subject in subjects:
            say(subject.line(name, size))
    else:
        _table(name, subjects)


def _table(name: str, subjects: Sequence[Subject]) -> None:
    from statistics import median  # noqa: PLC0415 - only here

    from rich import box  # noqa: PLC0415 - JSON needs no tables
    from rich.table import Table  # noqa: PLC0415 - as above

    out = console()
    table = Table(title=f"marq bench {name}: medians", box=box.SIMPLE_HEAD if out.is_terminal else None)
    for heading in ("subject", "messages/s", f"beside {YARDSTICK}", "slowest", "fastest", "µs CPU each"):
        table.add_column(heading, justify="left" if heading == "subject" else "right", no_wrap=True)
    yardstick = next(subject.median for subject in subjects if subject.name == YARDSTICK)
    for subject in subjects:
        rates = subject.rates
        cpu = median(lap.cpu_seconds / lap.messages for lap in subject.laps) * 1e6
        table.add_row(
            subject.name,
            f"{subject.median:,.0f}",
            f"{subject.median / yardstick:.2f}",
            f"{min(rates):,.0f}",
            f"{max(rates):,.0f}",
            f"{cpu:.2f}",
        )
    out.print(table)
