"""The jars of the embedded broker and of Spark's Kafka connector: pinned, checksummed, fetched once, then offline.

`jars.lock.json` beside this module names every jar with its size and SHA-256. The cache holds one folder per set of
jars, named after what the lock says about it; such a folder appears complete or not at all, and is never changed.

`python -m marq.stack.jars` fetches all of them; with `--relock` it resolves the roots below anew and renews the lock.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from marq.errors import ChecksumError, ConfigurationError, DownloadError, MarqError
from marq.stack import ivy
from marq.stack.ivy import Coordinate
from marq.stack.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

KAFKA_VERSION = "4.3.1"
SPARK_VERSION = "4.2.0"
# Not every connector version has a token provider of the same version in the registries; this one works with it.
TOKEN_PROVIDER_VERSION = "4.0.0"  # noqa: S105 - a version, not a secret
LOCK_FILE = Path(__file__).with_name("jars.lock.json")
STAMP = "complete.json"


@dataclass(frozen=True)
class Jar:
    """One line of the lock."""

    coordinate: Coordinate
    size: int
    sha256: str

    @property
    def file_name(self) -> str:
        return self.coordinate.file_name


class Fetcher(Protocol):
    """Puts jars into `folder`/lib, telling how many bytes have arrived."""

    def __call__(self, coordinates: Sequence[Coordinate], folder: Path, progress: Callable[[int], None]) -> None: ...


def broker_jars() -> list[Path]:
    """The class path of the embedded Kafka broker. Fetched when they are not in the cache."""
    return jar_set("broker")


def spark_jars() -> list[Path]:
    """What Spark needs to speak to Kafka, and to write checkpoints fast. Fetched when they are not in the cache."""
    return jar_set("spark")


def cache_folder() -> Path:
    """MARQ_CACHE_DIR, else the place where this platform's users keep what can be fetched again."""
    named = os.environ.get("MARQ_CACHE_DIR")
    if named:
        return Path(named).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "marq"
    base = os.environ.get("XDG_CACHE_HOME", "")
    # A relative path is to be ignored, says the specification of these folders.
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "marq"  # noqa: PTH117 - "" is no Path


@cache
def locked_jars() -> dict[str, list[Jar]]:
    """The lock file: the jars of each set."""
    return parse_lock(LOCK_FILE.read_text())


def parse_lock(text: str) -> dict[str, list[Jar]]:
    sets = json.loads(text)["sets"]
    return {
        name: [Jar(Coordinate.parse(jar["coordinate"]), jar["size"], jar["sha256"]) for jar in jars]
        for name, jars in sets.items()
    }


def jar_set(name: str, *, fetcher: Fetcher = ivy.fetch) -> list[Path]:
    """The jars of one set, from the cache if they are there, which takes neither Java nor Ivy nor the network."""
    jars = locked_jars()[name]
    home = cache_folder() / "jars" / f"{name}-{_identity(jars)}"
    if not _is_complete(home, jars):
        with _speaking_of_the_disk(home), _exclusive(home.with_suffix(".lock")):
            # Another process may have fetched them while this one waited for the lock.
            if not _is_complete(home, jars):
                _fill(home, name, jars, fetcher)
    return [home / jar.file_name for jar in jars]


def _identity(jars: Sequence[Jar]) -> str:
    return hashlib.sha256("".join(jar.file_name + jar.sha256 for jar in jars).encode()).hexdigest()[:12]


def _is_complete(home: Path, jars: Sequence[Jar]) -> bool:
    """Every jar there, of its size and untouched since its checksum was right. One `stat` per jar."""
    try:
        stamp = json.loads((home / STAMP).read_text())
        for jar in jars:
            state = (home / jar.file_name).stat()
            if state.st_size != jar.size or stamp.get(jar.file_name) != state.st_mtime_ns:
                return False
    except (OSError, ValueError, AttributeError):
        return False
    return True


def _fill(home: Path, name: str, jars: Sequence[Jar], fetcher: Fetcher) -> None:
    if home.is_dir() and _all_right(home, jars):
        _write_stamp(home, jars)  # copied or touched, but the very same jars
        return
    shutil.rmtree(home, ignore_errors=True)
    partial = home.with_suffix(".partial")
    total = sum(jar.size for jar in jars)
    with Progress(f"Fetching {len(jars)} {name} jars, {total / 1e6:.0f} MB, once, into {home}", total) as progress:
        fetcher([jar.coordinate for jar in jars], partial, progress.arrived)
    for jar in jars:
        try:
            _check(partial / "lib" / jar.file_name, jar)
        except ChecksumError:
            shutil.rmtree(partial, ignore_errors=True)  # so that the next run fetches it again
            raise
    _write_stamp(partial / "lib", jars)
    (partial / "lib").rename(home)
    shutil.rmtree(partial, ignore_errors=True)


def _all_right(home: Path, jars: Sequence[Jar]) -> bool:
    try:
        for jar in jars:
            _check(home / jar.file_name, jar)
    except (ChecksumError, DownloadError):
        return False
    return True


def _check(file: Path, jar: Jar) -> None:
    if not file.is_file():
        raise DownloadError(f"The registry did not give {jar.coordinate}. Run this again, or use another registry.")
    found = sha256_of(file)
    if found != jar.sha256:
        raise ChecksumError(
            f"{jar.file_name} is not the file that marq was built with: its SHA-256 is {found}, and {jar.sha256} was "
            "expected. It has been thrown away. Run this again; if it stays wrong, the registry or a proxy on the way "
            "hands out another file: use a registry you trust (~/.ivy2/ivysettings.xml or MARQ_IVY_SETTINGS)."
        )


def sha256_of(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _write_stamp(home: Path, jars: Sequence[Jar]) -> None:
    stamp = {jar.file_name: (home / jar.file_name).stat().st_mtime_ns for jar in jars}
    new = home / f"{STAMP}.new"
    new.write_text(json.dumps(stamp))
    new.replace(home / STAMP)


@contextmanager
def _exclusive(lock: Path) -> Iterator[None]:
    """One process at a time. The lock goes with its holder, however that one ends."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another process is fetching the same jars; waiting for it.", file=sys.stderr, flush=True)  # noqa: T201 - the wait may be long, and the user should know why
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


@contextmanager
def _speaking_of_the_disk(home: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise DownloadError(
                f"The disk that holds {home.parent} is full. Free some space, or set MARQ_CACHE_DIR to another disk."
            ) from error
        if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR}:
            raise ConfigurationError(
                f"The cache folder {home.parent} cannot be written ({error.strerror}). Set MARQ_CACHE_DIR to another."
            ) from error
        raise


def relock() -> str:
    """Resolves the roots anew and returns the text of a new lock file."""
    with tempfile.TemporaryDirectory(prefix="marq-relock-") as folder:
        kafka = Coordinate("org.apache.kafka", "kafka_2.13", KAFKA_VERSION)
        broker = ivy.resolve_closure(kafka, Path(folder) / "closure")
        api = next(found for found in broker if found.module == "log4j-api")
        # The broker logs through SLF4J, and its own distribution adds the binding only when it is packed.
        broker.append(Coordinate("org.apache.logging.log4j", "log4j-slf4j-impl", api.revision))
        sets = {"broker": sorted(broker), "spark": sorted(map(Coordinate.parse, SPARK_ROOTS))}
        locked = {name: _measure(wanted, Path(folder) / name) for name, wanted in sets.items()}
    return json.dumps({"version": 1, "sets": locked}, indent=1) + "\n"


# Exactly these: PySpark has everything else that they depend on.
SPARK_ROOTS = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK_VERSION}",
    f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{TOKEN_PROVIDER_VERSION}",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
    "com.globalmentor:hadoop-bare-naked-local-fs:0.1.0",
)


def _measure(coordinates: Sequence[Coordinate], folder: Path) -> list[dict[str, str | int]]:
    ivy.fetch(coordinates, folder)
    files = [(wanted, folder / "lib" / wanted.file_name) for wanted in coordinates]
    return [
        {"coordinate": str(wanted), "size": file.stat().st_size, "sha256": sha256_of(file)} for wanted, file in files
    ]


def main(arguments: Sequence[str]) -> None:
    if list(arguments) == ["--relock"]:
        LOCK_FILE.write_text(relock())
        locked_jars.cache_clear()
    for name in locked_jars():
        print(f"{len(jar_set(name))} {name} jars in {cache_folder() / 'jars'}")  # noqa: T201 - run as a command


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except MarqError as error:
        sys.exit(str(error))
