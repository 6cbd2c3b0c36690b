"""A checkpoint folder belongs to one markers topic of one cluster; with another it would give out nonsense.

Spark itself would not notice: it only remembers the topic's name. So marq leaves a note in the folder. It is written
through Hadoop's file systems, like everything else there, so it lies beside the checkpoint also on shared storage.
"""

import fcntl
import json
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from marq.core.shelf import FORMAT
from marq.errors import PipelineError

log = logging.getLogger("marq.pipeline")

NOTE = "marq.json"
LOCK = "marq.lock"
QUERY_FOLDER = "tracker"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


@dataclass(frozen=True)
class Identity:
    """What a checkpoint's contents depend on."""

    cluster: str
    topic: str
    topic_id: str
    format: int = FORMAT


def location(folder: str | Path) -> str:
    """The folder as a URL; a local one may be given as a path."""
    return str(folder) if _URL.match(str(folder)) else Path(folder).absolute().as_uri()


def local_path(url: str) -> Path | None:
    """Where a folder on this machine lies; None when it is elsewhere."""
    parts = urlsplit(url)
    return Path(unquote(parts.path)) if parts.scheme == "file" and parts.netloc in {"", "localhost"} else None


@contextmanager
def held(url: str) -> Iterator[None]:
    """Keep other pipelines out of the folder, as long as this process lives. Only possible on this machine."""
    folder = local_path(url)
    if folder is None:
        yield
        return
    if folder.exists() and not folder.is_dir():
        raise PipelineError(f"The checkpoint folder {folder} is a file. Choose another.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise PipelineError(
            f"The checkpoint folder {folder} cannot be used: {error.strerror}. Choose another."
        ) from error
    try:
        _lock(lock, folder)
        yield
    finally:
        os.close(lock)


def _lock(lock: int, folder: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise PipelineError(f"Another pipeline uses the checkpoint {folder}: stop one of them.") from None
    except OSError as error:  # some network file systems have no locks
        log.warning("%s cannot be locked (%s): see to it yourself that one pipeline uses it", folder, error.strerror)


def query_folder(url: str) -> str:
    return f"{url.rstrip('/')}/{QUERY_FOLDER}"


def claim(session: Any, url: str, identity: Identity) -> None:
    """Take the folder for this topic, or say why it must be another one."""
    note = f"{url.rstrip('/')}/{NOTE}"
    try:
        text = _read(session, note)
        if text is None:
            _refuse_strangers(session, url)
            _write(session, note, json.dumps(asdict(identity)))
            return
    except (Py4JError, PySparkException) as error:
        raise PipelineError(f"The checkpoint folder {url} cannot be used: {_cause(error)}. Choose another.") from error
    _compare(url, text, identity)


def _compare(url: str, text: str, identity: Identity) -> None:
    try:
        found = Identity(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise PipelineError(f"{NOTE} in the checkpoint folder {url} cannot be read. {ADVICE}") from error
    if found.format != identity.format:
        raise PipelineError(
            f"The checkpoint in {url} has format {found.format}, this marq writes format {identity.format}. {ADVICE}"
        )
    if found != identity:
        raise PipelineError(
            f"The checkpoint in {url} belongs to topic {found.topic} ({found.topic_id}) of cluster {found.cluster}, "
            f"not to {identity.topic} ({identity.topic_id}) of {identity.cluster}. {ADVICE}"
        )


ADVICE = "Start with a new, empty checkpoint folder: the state is rebuilt from the markers topic, and nothing is lost."


def _refuse_strangers(session: Any, url: str) -> None:
    files, path = _file_system(session, url)
    if files.exists(path) and any(file.getPath().getName() != LOCK for file in files.listStatus(path)):
        raise PipelineError(f"The checkpoint folder {url} holds files that are not marq's. Choose an empty one.")


def _file_system(session: Any, url: str) -> tuple[Any, Any]:
    jvm, context = session._jvm, session.sparkContext  # noqa: SLF001 - the way to Hadoop's file systems
    path = jvm.org.apache.hadoop.fs.Path(url)
    return path.getFileSystem(context._jsc.hadoopConfiguration()), path  # noqa: SLF001


def _read(session: Any, url: str) -> str | None:
    files, path = _file_system(session, url)
    if not files.exists(path):
        return None
    stream = files.open(path)
    try:
        text = session._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")  # noqa: SLF001
    finally:
        stream.close()
    return str(text)


def _write(session: Any, url: str, text: str) -> None:
    files, path = _file_system(session, url)
    stream = files.create(path, True)
    try:
        stream.write(bytearray(text.encode()))
    finally:
        stream.close()


def _cause(error: Exception) -> str:
    java = getattr(error, "java_exception", None)
    words = str(java.getMessage() if java is not None else error)
    return words.partition("\n")[0].rstrip(".")
