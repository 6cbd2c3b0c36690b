"""Fetches jars with the Ivy that ships inside PySpark, so that neither Maven nor Ivy has to be installed.

The user's own Ivy settings (MARQ_IVY_SETTINGS, else ~/.ivy2/ivysettings.xml) decide where from. Without any, it is
Maven Central, and only the jars are asked for: what they depend on is in the lock file already.
"""

from __future__ import annotations

import importlib.util
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import quoteattr

from marq.errors import ConfigurationError, DownloadError, StackError
from marq.stack.java import clean_environment, find_java, proxy_options
from marq.stack.process import ManagedProcess, tail

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

STALL_SECONDS = 120.0
RETRIEVED = "[artifact]-[revision].[ext]"
CENTRAL_WITHOUT_POMS = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="false" checksums=""/></resolvers>
</ivysettings>
"""


@dataclass(frozen=True, order=True)
class Coordinate:
    """Where a jar stands in a Maven repository."""

    organisation: str
    module: str
    revision: str

    @classmethod
    def parse(cls, text: str) -> Coordinate:
        organisation, module, revision = text.split(":")
        return cls(organisation, module, revision)

    @property
    def file_name(self) -> str:
        return f"{self.module}-{self.revision}.jar"

    def __str__(self) -> str:
        return f"{self.organisation}:{self.module}:{self.revision}"


def ivy_jar() -> Path:
    """Ivy's jar, found without importing PySpark."""
    spec = importlib.util.find_spec("pyspark")
    folders = (spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        for jar in sorted(Path(folder, "jars").glob("ivy-*.jar")):
            return jar
    raise StackError(
        "PySpark, whose Ivy fetches the jars of the broker and of the pipeline, is not installed. "
        'Install marq with it: pip install "marq[spark]"'
    )


def user_settings() -> Path | None:
    """The user's own Ivy settings, if any."""
    named = os.environ.get("MARQ_IVY_SETTINGS")
    if named:
        settings = Path(named).expanduser()
        if not settings.is_file():
            raise ConfigurationError(
                f"MARQ_IVY_SETTINGS names {settings}, which is not a file. Correct it or unset it."
            )
        return settings
    usual = Path.home() / ".ivy2" / "ivysettings.xml"
    return usual if usual.is_file() else None


def fetch(
    coordinates: Sequence[Coordinate],
    folder: Path,
    progress: Callable[[int], None] = lambda _bytes: None,
    *,
    transitive: bool = False,
) -> None:
    """Puts the jars into `folder`/lib. What an earlier, broken-off call left in `folder` is used again.

    `progress` is called with the number of bytes that have arrived.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings = user_settings()
    if settings is None:
        settings = folder / "ivysettings.xml"
        plain = (
            CENTRAL_WITHOUT_POMS.replace('usepoms="false"', 'usepoms="true"') if transitive else CENTRAL_WITHOUT_POMS
        )
        settings.write_text(plain)
    wanted = folder / "ivy.xml"
    wanted.write_text(module_file(coordinates, transitive=transitive))
    log = folder / "ivy.log"
    log.unlink(missing_ok=True)
    command: list[str | Path] = [find_java().path, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *proxy_options()]
    command += ["-jar", ivy_jar(), "-settings", settings, "-cache", folder / "cache", "-ivy", wanted]
    command += ["-confs", "default", "-retrieve", f"{folder / 'lib'}/{RETRIEVED}"]
    ivy = ManagedProcess(command, log=log, environment=clean_environment(), folder=folder)
    try:
        ivy.start()
        _wait(ivy, folder / "cache", progress)
    finally:
        ivy.kill()
    if ivy.exit_code != 0:
        raise DownloadError(failure_sentence(log))


def module_file(coordinates: Sequence[Coordinate], *, transitive: bool) -> str:
    """The Ivy file that asks for exactly these jars, all in one resolution."""
    lines = [
        f"    <dependency org={quoteattr(wanted.organisation)} name={quoteattr(wanted.module)} "
        f'rev={quoteattr(wanted.revision)} transitive="{str(transitive).lower()}" conf="default->default"/>'
        for wanted in coordinates
    ]
    return "\n".join(
        [
            '<ivy-module version="2.0">',
            '  <info organisation="marq" module="jars"/>',
            '  <configurations><conf name="default"/></configurations>',
            "  <dependencies>",
            *lines,
            "  </dependencies>",
            "</ivy-module>",
            "",
        ]
    )


def _wait(ivy: ManagedProcess, cache: Path, progress: Callable[[int], None]) -> None:
    """Ivy itself waits without end for a registry that accepts a connection and then says nothing."""
    arrived, moved_at = -1, time.monotonic()
    while ivy.wait(timeout=0.2) is None:
        signs_of_life = _size(cache) + (ivy.log.stat().st_size if ivy.log.exists() else 0)
        if signs_of_life != arrived:
            arrived, moved_at = signs_of_life, time.monotonic()
            progress(_size(cache, ".jar"))
        elif time.monotonic() - moved_at > STALL_SECONDS:
            ivy.kill()
            raise DownloadError(
                f"The registry has sent nothing for {STALL_SECONDS:.0f} seconds. "
                "Check the network and the proxy settings, and run this again: what has arrived is kept."
            )
    progress(_size(cache, ".jar"))


def _size(folder: Path, ending: str = "") -> int:
    """Bytes below a folder in which another process works: files may vanish while they are counted.

    Ivy calls a jar that is still on its way x.jar.part.
    """
    total = 0
    for file in folder.rglob(f"*{ending}*"):
        try:
            total += file.stat().st_size
        except OSError:
            continue
    return total


def failure_sentence(log: Path) -> str:
    """What to tell the user when Ivy failed, from its log."""
    text = tail(log, 400)
    if "No space left on device" in text:
        return "The disk is full: the jars could not be stored. Free some space, or set MARQ_CACHE_DIR to another disk."
    missing = sorted(set(re.findall(r":: (\S+#\S+;[^\s:]+): not found", text)))
    named = f" Not found: {', '.join(missing[:3])}{' and more' if len(missing) > 3 else ''}." if missing else ""
    if "[SUCCESSFUL ]" in text:
        return (
            f"The registry did not give every jar.{named} Run this again: what has arrived is kept. If it stays so, "
            "name another registry in ~/.ivy2/ivysettings.xml (or the file that MARQ_IVY_SETTINGS names)."
        )
    return (
        "The jars of the embedded servers are not in the cache, and no package registry could be reached to fetch them."
        f"{named} Connect to the network, set http_proxy and https_proxy if this machine needs a proxy, or name your "
        "own registry in ~/.ivy2/ivysettings.xml (or the file that MARQ_IVY_SETTINGS names), and run this again."
    )


def resolve_closure(root: Coordinate, folder: Path) -> list[Coordinate]:
    """A module and everything it needs at run time, as its poms say. For renewing the lock file."""
    fetch([root], folder, transitive=True)
    pattern = re.compile(r"\[SUCCESSFUL \] (\S+)#(\S+);(\S+)!")
    found = pattern.findall((folder / "ivy.log").read_text(errors="replace"))
    return sorted({Coordinate(*names) for names in found})
