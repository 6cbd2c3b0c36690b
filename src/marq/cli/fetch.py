"""`marq fetch`."""

from __future__ import annotations

from marq.cli.shell import Verbose, say, set_up


def fetch(*, verbose: Verbose = False) -> None:
    """Download the jars of the embedded broker and of the pipeline now, so that everything later works offline.

    They are pinned and checked, and stay in the user's cache folder, or in the one that MARQ_CACHE_DIR names.
    """
    set_up(verbose=verbose)
    from marq.stack.jars import broker_jars, spark_jars  # noqa: PLC0415 - other commands do without

    for name, jars in (("broker", broker_jars()), ("spark", spark_jars())):
        size = sum(jar.stat().st_size for jar in jars) / 1e6
        say(f"{name}: {len(jars)} jars, {size:.0f} MB, in {jars[0].parent}")
