"""Finds a Java that is new enough, and the environment in which marq starts it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from marq.errors import JavaNotFoundError

if TYPE_CHECKING:
    from collections.abc import Mapping

MINIMUM_JAVA = 17
HOW_TO_GET_JAVA = (
    f"Install Java {MINIMUM_JAVA} or newer (Debian and Ubuntu: apt-get install openjdk-17-jre-headless; "
    "macOS: brew install openjdk@17), or set JAVA_HOME to it."
)

# Settings of some other Kafka, Spark or Python that would quietly change what a child process does.
MISLEADING_PREFIXES = ("KAFKA_", "SPARK_", "PYSPARK_")
MISLEADING_NAMES = frozenset(
    {
        "CLASSPATH",
        "EXTRA_ARGS",
        "HADOOP_CONF_DIR",
        "HADOOP_HOME",
        "INCLUDE_TEST_JARS",
        "JMX_PORT",
        "LOG_DIR",
        "PYTHONHOME",
        "PYTHONPATH",
        "PYTHONSTARTUP",
        "SCALA_VERSION",
        "UPGRADE_KAFKA_STREAMS_TEST_VERSION",
        "YARN_CONF_DIR",
    }
)
JAVA_OPTION_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
# How to reach the network is the machine's business; heap sizes, agents and debuggers meant for others are not.
NETWORK_OPTIONS = ("-Dhttp.", "-Dhttps.", "-Dftp.", "-DsocksProxy", "-Djava.net.", "-Djavax.net.ssl.")


@dataclass(frozen=True)
class Java:
    """A Java that runs."""

    path: Path
    major: int


def parse_java_version(text: str) -> int | None:
    """The major version that `java -version` reports, or None when the text is not such a report.

    Java 8 still called itself 1.8.
    """
    found = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    if not found:
        return None
    major = int(found[1])
    return int(found[2]) if major == 1 and found[2] else major


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The Java of JAVA_HOME, else the one on PATH. JavaNotFoundError when there is none that is new enough.

    A JAVA_HOME without any Java is refused: whoever set it meant one, and would not know that another was taken.
    """
    environ = os.environ if environ is None else environ
    home = environ.get("JAVA_HOME")
    if home and not (Path(home) / "bin" / "java").is_file():
        raise JavaNotFoundError(f"JAVA_HOME is {home}, and there is no bin/java in it. Correct JAVA_HOME, or unset it.")
    tried = []
    for origin, candidate in _candidates(environ):
        major = _version_of(candidate, environ)
        if major is not None and major >= MINIMUM_JAVA:
            return Java(candidate, major)
        tried.append(f"{origin} {'does not run' if major is None else f'is Java {major}'} ({candidate})")
    seen = f" Looked at: {'; '.join(tried)}." if tried else " There is none on PATH, and JAVA_HOME is not set."
    raise JavaNotFoundError(f"marq needs Java {MINIMUM_JAVA} or newer.{seen} {HOW_TO_GET_JAVA}")


def _candidates(environ: Mapping[str, str]) -> list[tuple[str, Path]]:
    found = []
    home = environ.get("JAVA_HOME")
    if home:
        found.append(("JAVA_HOME", Path(home) / "bin" / "java"))
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    if on_path:
        found.append(("the java on PATH", Path(on_path)))
    return found


def _version_of(java: Path, environ: Mapping[str, str]) -> int | None:
    """A candidate has to answer: the /usr/bin/java of macOS may only say where to get one."""
    try:
        answer = subprocess.run(
            [str(java), "-version"], capture_output=True, timeout=30, check=False, env=clean_environment(environ)
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_java_version((answer.stderr + answer.stdout).decode(errors="replace"))


def clean_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for a child process, without what other installations of Kafka, Spark, Java or Python left there.

    Proxy variables and everything else stay. Of the options meant for any Java, those that say how to reach the
    network stay: a machine may be unable to download anything without them.
    """
    environ = os.environ if environ is None else environ
    cleaned = {
        name: value
        for name, value in environ.items()
        if name not in MISLEADING_NAMES and not name.startswith(MISLEADING_PREFIXES)
    }
    for name in JAVA_OPTION_VARIABLES:
        if name in cleaned:
            kept = _network_options(cleaned.pop(name))
            if kept:
                cleaned[name] = kept
    return cleaned


def _network_options(options: str) -> str:
    try:
        words = shlex.split(options)
    except ValueError:  # an unbalanced quote: Java would refuse to start with it
        return ""
    return " ".join(shlex.quote(word) for word in words if word.startswith(NETWORK_OPTIONS))


def proxy_options(environ: Mapping[str, str] | None = None) -> list[str]:
    """Java's own options for the proxies that the environment names. Java does not read those variables itself.

    Names and passwords are left out, because a command line can be read by everybody on the machine; an Ivy settings
    file may hold them.
    """
    environ = os.environ if environ is None else environ
    options = []
    for scheme in ("http", "https"):
        value = next((environ[name] for name in _proxy_names(scheme) if environ.get(name)), "")
        if not value:
            continue
        try:
            parts = urlsplit(value if "://" in value else f"http://{value}")
            host, port = parts.hostname, parts.port
        except ValueError:  # not an address: what cannot be understood cannot be passed on
            continue
        if host:
            options += [f"-D{scheme}.proxyHost={host}", f"-D{scheme}.proxyPort={port or 80}"]
    if options:
        options.append(f"-Dhttp.nonProxyHosts={_non_proxy_hosts(environ)}")
    return options


def _proxy_names(scheme: str) -> tuple[str, ...]:
    # The lower-case name comes first, as curl and pip have it.
    return (f"{scheme}_proxy", f"{scheme.upper()}_PROXY", "all_proxy", "ALL_PROXY")


def _non_proxy_hosts(environ: Mapping[str, str]) -> str:
    named = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    hosts = ["localhost", "127.*", "[::1]"]
    for entry in (part.strip() for part in named.split(",")):
        if not entry or "/" in entry:  # Java knows no network masks
            continue
        hosts += [f"*{entry}"] if entry.startswith(".") else [entry, f"*.{entry}"] if entry[0].isalpha() else [entry]
    return "|".join(dict.fromkeys(hosts))
