"""`marq version`, and the options that come before any command."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from typing import Annotated

import typer

from marq import __version__
from marq.cli.shell import Verbose, say, set_up

PARTS = ("confluent-kafka", "pyspark", "redis")


def _show(wanted: bool) -> None:
    if wanted:
        say(__version__)
        raise typer.Exit


def root(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """The options of `marq` itself."""


def version(*, verbose: Verbose = False) -> None:
    """Print the versions of marq and of what it stands on."""
    set_up(verbose=verbose)
    say(f"marq {__version__}")
    say(f"Python {platform.python_version()}")
    for part in PARTS:
        say(f"{part} {_version_of(part)}")


def _version_of(part: str) -> str:
    try:
        return installed(part)
    except PackageNotFoundError:
        return "is not installed"
