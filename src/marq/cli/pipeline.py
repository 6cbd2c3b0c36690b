"""`marq pipeline`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from marq.cli.shell import Bootstrap, Json, SettingsFile, Verbose, connect, say, set_up
from marq.errors import ConfigurationError

if TYPE_CHECKING:
    from marq.pipeline.status import PipelineStatus

# What changes all the time says nothing by itself.
_RESTLESS = ("ticks", "batches", "batch_ms_p50", "batch_ms_max", "late_ms_p50", "late_ms_max")


def pipeline(
    *,
    bootstrap: Bootstrap = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",
            metavar="DIR",
            help="Where its state is kept between runs: a folder, or a URL "
            "that Spark can write to. Without one the state is rebuilt from the log at each start.",
        ),
    ] = None,
    master: Annotated[
        str | None,
        typer.Option("--master", metavar="URL", help="Where Spark runs, such as local[2] or spark://host:7077."),
    ] = None,
    spark_log: Annotated[
        str | None, typer.Option("--spark-log", metavar="FILE", help="Where Spark logs to; else standard error.")
    ] = None,
    settings_file: SettingsFile = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run the Spark pipeline that gives expired leases, delays and retries back to their queues.

    It runs until it is told to end (Ctrl-C, SIGTERM). marq's topics are created where they are missing.
    """
    set_up(verbose=verbose)
    from marq.pipeline.run import run_pipeline  # noqa: PLC0415 - loads pyspark
    from marq.settings import PipelineSettings, load_settings  # noqa: PLC0415 - other commands do without
    from marq.stack.jars import spark_jars  # noqa: PLC0415 - other commands do without
    from marq.stack.java import find_java  # noqa: PLC0415 - other commands do without

    file = Path(settings_file) if settings_file else None
    given = {name: text for name, text in (("checkpoint", checkpoint), ("master", master)) if text is not None}
    settings, _ = load_settings(PipelineSettings, given, toml=file)
    log_file = _log_file(spark_log)
    java = find_java()
    jars = spark_jars()
    with connect(bootstrap, settings_file) as app:
        app.ensure_topics()
        announcer = Announcer(json=json)
        run_pipeline(
            app.settings.address,
            app.settings.topics,
            settings,
            kafka=app.settings.kafka,
            jars=jars,
            java_home=java.path.resolve().parent.parent,
            log_file=log_file,
            on_ready=announcer.tell,
            on_status=announcer.tell,
        )


def _log_file(name: str | None) -> Path | None:
    """A folder that is not there is more likely a slip than a wish, so none is made."""
    if not name:
        return None
    try:
        Path(name).open("ab").close()
    except OSError as error:
        raise ConfigurationError(
            f"--spark-log {name} cannot be written ({error.strerror}). Name a file in a folder that exists."
        ) from error
    return Path(name)


class Announcer:
    """Says what is new."""

    def __init__(self, *, json: bool) -> None:
        self._json = json
        self._said: dict[str, Any] = {}

    def tell(self, status: PipelineStatus) -> None:
        news = {name: value for name, value in asdict(status).items() if name not in _RESTLESS}
        if news == self._said:
            return
        self._said = news
        say(status.to_json() if self._json else sentence(status))


def sentence(status: PipelineStatus) -> str:
    """The numbers that a person looks for."""
    error = f", last error: {status.last_error}" if status.last_error else ""
    return (
        f"{'ready' if status.ready else 'catching up'}: leased {status.hot}, delayed {status.cold}, "
        f"redelivered {status.redelivered}, dead {status.dead}, behind {status.lag}, restarts {status.restarts}{error}"
    )
