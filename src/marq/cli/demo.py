"""`marq demo`."""

from __future__ import annotations

from typing import Annotated

import typer

from marq.cli.shell import FAILED, Json, Verbose, console, say, set_up

MESSAGES_MIN = 200
MESSAGES_MAX = 200_000


def demo(
    *,
    messages: Annotated[
        int,
        typer.Option(
            "--messages",
            metavar="N",
            min=MESSAGES_MIN,
            max=MESSAGES_MAX,
            help="How many messages to send, 200 to 200,000.",
        ),
    ] = 10_000,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="Which messages are slow, fail or are beyond help.")
    ] = 1,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Watch marq survive a kill -9: a real broker, two workers, and every message accounted for.

    Starts Kafka and the Spark pipeline on this machine, sends the messages, kills one worker while it holds leases,
    and checks every number against what the broker holds. Takes about a minute and leaves nothing behind.
    """
    set_up(verbose=verbose)
    from marq.demo.show import LiveStage, PlainStage, table  # noqa: PLC0415 - other commands do without
    from marq.demo.story import run_demo  # noqa: PLC0415 - loads the Kafka client

    out = console()
    stage = LiveStage(out) if out.is_terminal and not json else PlainStage(stderr=json)
    outcome = run_demo(messages, seed, stage)
    if json:
        say(outcome.to_json())
    else:
        out.print(table(outcome, out))
    if not outcome.adds_up:
        raise typer.Exit(FAILED)
