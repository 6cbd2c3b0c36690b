"""`marq dev`."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Annotated

import typer

from marq.cli.shell import INTERRUPTED, Verbose, say, set_up

PORT_MAX = 65535


def dev(
    *,
    data_dir: Annotated[
        str | None,
        typer.Option(
            "--data-dir",
            metavar="DIR",
            help="Where everything is kept between runs. Without it: in a temporary folder that is removed at the end.",
        ),
    ] = None,
    kafka_port: Annotated[
        int | None,
        typer.Option(
            "--kafka-port",
            metavar="PORT",
            min=0,
            max=PORT_MAX,
            help="Kafka's port. Without it: 9092 if free, else any; 0: any.",
        ),
    ] = None,
    redis: Annotated[
        bool | None,
        typer.Option("--redis/--no-redis", help="Start Redis too, or not. Without it: if there is one here."),
    ] = None,
    redis_port: Annotated[
        int | None,
        typer.Option(
            "--redis-port",
            metavar="PORT",
            min=0,
            max=PORT_MAX,
            help="Redis's port. Without it: 6379 if free, else any; 0: any.",
        ),
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Run Kafka, Redis and the pipeline on this machine, with marq's topics, until Ctrl-C.

    One Ctrl-C stops everything in order; a second one kills it. Nothing needs Docker, and everything is on loopback.
    """
    set_up(verbose=verbose)
    from marq.dev import CONNECTION_SETTINGS, DevStack, environment_without  # noqa: PLC0415 - other commands do without

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.default_int_handler)
    began = time.monotonic()
    with environment_without(*CONNECTION_SETTINGS):
        stack = DevStack(
            data_dir=Path(data_dir) if data_dir else None,
            kafka_port=kafka_port,
            redis=redis,
            redis_port=redis_port,
            say=say,
        )
        try:
            try:
                stack.start()
                say(f'ready after {time.monotonic() - began:.1f} s: App("kafka://{stack.kafka.bootstrap}"), or')
                say(f"  export MARQ_URL=kafka://{stack.kafka.bootstrap}")
                say("Ctrl-C stops everything.")
                stack.watch()
            except KeyboardInterrupt:
                say("stopping; Ctrl-C again kills")
            finally:
                stack.stop()
        except KeyboardInterrupt:
            stack.kill()
            say("killed")
            raise typer.Exit(INTERRUPTED) from None
    say("stopped")
