"""Every setting, its bounds and its default, and where its value came from.

Settings are frozen and checked when they are made. `load_settings` fills them from keywords, the environment, a TOML
file and the defaults, in this order of precedence. Nothing is read from the environment before it is called.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

from marq.durations import format_duration, parse_duration
from marq.errors import ConfigurationError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

S = TypeVar("S", bound="DataclassInstance")

ENVIRONMENT_PREFIX = "MARQ_"
DEFAULT_MARK_AFTER = timedelta(seconds=1)
MASK = "***"

_QUEUE_NAME = re.compile(r"[A-Za-z0-9._-]{1,200}")
_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,100}")
_HOST = r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])"
_BROKERS = re.compile(rf"{_HOST}:[0-9]{{1,5}}(?:,{_HOST}:[0-9]{{1,5}})*")
_SAYS_SOMETHING = re.compile(r".*\S.*")
_MEMORY_NAME = re.compile(r"[A-Za-z0-9._-]*")
_HEAP = re.compile(r"([1-9][0-9]{0,6})([mg])")
_HEAP_MIN_MEGABYTES = 256
_SECRETS = ("password", "secret", "key.pem", "ssl_key", "token", "oauthbearer", "sasl.jaas")
_SHOWN_MAX = 60
_PORT_MAX = 65535
_TYPO = 0.9  # how near a variable must be to a setting's to be taken for a slip

# The guarantees rest on these, or they have a setting of their own.
RESERVED_KAFKA_KEYS: Mapping[str, str] = {
    "bootstrap.servers": "the brokers stand in the url",
    "metadata.broker.list": "the brokers stand in the url",
    "group.id": "the group follows from the queue",
    "session.timeout.ms": "use the setting consumer.session_timeout",
    "auto.commit.interval.ms": "use the setting consumer.commit_interval",
    "enable.auto.commit": "offsets are committed when messages are settled",
    "enable.auto.offset.store": "offsets are committed when messages are settled",
    "acks": "a confirmed message is on all replicas",
    "request.required.acks": "a confirmed message is on all replicas",
    "enable.idempotence": "producers are idempotent",
}


@dataclass(frozen=True, kw_only=True)
class ConsumerSettings:
    """How a consumer leases, holds and commits."""

    lease: timedelta = timedelta(seconds=30)
    mark_after: timedelta = DEFAULT_MARK_AFTER
    hold_max: timedelta = timedelta(seconds=60)
    hold_bytes: int = 64 * 1024 * 1024
    max_in_flight: int = 1000
    commit_interval: timedelta = timedelta(seconds=1)
    session_timeout: timedelta = timedelta(seconds=10)
    poll_batch: int = 500

    def __post_init__(self) -> None:
        require_between("lease", self.lease, timedelta(seconds=1), timedelta(hours=12))
        if self.mark_after == DEFAULT_MARK_AFTER and self.mark_after > self.lease / 2:
            object.__setattr__(self, "mark_after", self.lease / 2)  # the default gives way to a short lease
        require_between("mark_after", self.mark_after, timedelta(0), self.lease / 2, "half of the lease")
        require_between("hold_max", self.hold_max, timedelta(0), timedelta(hours=1))
        require_between("hold_bytes", self.hold_bytes, 0, 1 << 40)
        require_between("max_in_flight", self.max_in_flight, 1, 1_000_000)
        require_between("commit_interval", self.commit_interval, timedelta(milliseconds=10), timedelta(seconds=60))
        require_between("session_timeout", self.session_timeout, timedelta(seconds=6), timedelta(minutes=30))
        require_between("poll_batch", self.poll_batch, 1, 10_000)
        object.__setattr__(self, "poll_batch", min(self.poll_batch, self.max_in_flight))


@dataclass(frozen=True, kw_only=True)
class TopicSettings:
    """What marq's own topics are called, and how they are created when they do not exist."""

    prefix: str = "marq"
    shards: int = 1
    partitions: int = 4
    markers_partitions: int = 2
    replication: int | None = None  # None: as the broker is configured
    retention: timedelta = timedelta(days=7)

    def __post_init__(self) -> None:
        if _match(_PREFIX, self.prefix) is None:
            raise ConfigurationError(f"prefix must be 1 to 100 of A-Z a-z 0-9 . _ -, not {_shown(self.prefix)}")
        require_between("shards", self.shards, 1, 1000)
        require_between("partitions", self.partitions, 1, 10_000)
        require_between("markers_partitions", self.markers_partitions, 1, 1000)
        if self.replication is not None:
            require_between("replication", self.replication, 1, 100)
        require_between("retention", self.retention, timedelta(hours=1), timedelta(days=3650))

    def messages(self, shard: int) -> str:
        """The shared topic of this shard."""
        return f"{self.prefix}.messages-{shard}"

    @property
    def markers(self) -> str:
        return f"{self.prefix}.markers"

    @property
    def dead(self) -> str:
        return f"{self.prefix}.dead"


@dataclass(frozen=True, kw_only=True)
class PipelineSettings:
    """How the Spark pipeline runs."""

    master: str = "local[2]"
    checkpoint: str | Path | None = None  # a folder, or a URL that Spark can write to
    trigger: timedelta = timedelta(milliseconds=100)
    heartbeat: timedelta = timedelta(seconds=15)
    tick_margin: timedelta = timedelta(milliseconds=20)
    heap: str = "1g"
    shuffle_partitions: int = 1  # a checkpoint keeps the number that it was made with

    def __post_init__(self) -> None:
        if _match(_SAYS_SOMETHING, self.master) is None:
            raise ConfigurationError(
                f"master must name a Spark master such as local[2] or spark://host:7077, not {_shown(self.master)}"
            )
        checkpoint = str(self.checkpoint) if isinstance(self.checkpoint, Path) else self.checkpoint
        if checkpoint is not None and _match(_SAYS_SOMETHING, checkpoint) is None:
            raise ConfigurationError(f"checkpoint must be a folder or a URL, not {_shown(self.checkpoint)}")
        require_between("trigger", self.trigger, timedelta(milliseconds=10), timedelta(seconds=60))
        require_between("heartbeat", self.heartbeat, timedelta(seconds=1), timedelta(minutes=10))
        require_between("tick_margin", self.tick_margin, timedelta(0), timedelta(seconds=10))
        heap = _match(_HEAP, self.heap)
        if heap is None or int(heap[1]) * (1024 if heap[2] == "g" else 1) < _HEAP_MIN_MEGABYTES:
            raise ConfigurationError(f"heap must be like 512m or 2g, and at least 256m, not {_shown(self.heap)}")
        require_between("shuffle_partitions", self.shuffle_partitions, 1, 1000)


@dataclass(frozen=True, kw_only=True, repr=False)
class AppSettings:
    """What an app needs to know. `kafka` goes to librdkafka as it is; its secrets are masked wherever it is shown."""

    url: str
    kafka: Mapping[str, str] = field(default_factory=dict, hash=False)
    consumer: ConsumerSettings = field(default_factory=ConsumerSettings)
    topics: TopicSettings = field(default_factory=TopicSettings)

    def __post_init__(self) -> None:
        _check_url(self.url)
        _check_kafka(self.kafka)
        object.__setattr__(self, "kafka", dict(self.kafka))
        for name, kind in (("consumer", ConsumerSettings), ("topics", TopicSettings)):
            if not isinstance(getattr(self, name), kind):
                raise ConfigurationError(f"{name} must be {kind.__name__}(...), not {_shown(getattr(self, name))}")

    @property
    def transport(self) -> Literal["kafka", "memory"]:
        return "kafka" if self.url.startswith("kafka:") else "memory"

    @property
    def address(self) -> str:
        """What follows the scheme: the brokers, or the name of the in-memory broker, which may be empty."""
        return self.url.partition("://")[2]

    def __repr__(self) -> str:
        return (
            f"AppSettings(url={self.url!r}, kafka={masked(self.kafka)!r}, "
            f"consumer={self.consumer!r}, topics={self.topics!r})"
        )


# Where settings stand in a TOML file and in the names of environment variables.
SECTIONS: Mapping[str, type] = {
    "": AppSettings,
    "consumer": ConsumerSettings,
    "topics": TopicSettings,
    "pipeline": PipelineSettings,
}


def queue_name(name: object) -> str:
    """The name, if a queue may have it."""
    if _match(_QUEUE_NAME, name):
        return str(name)
    raise ConfigurationError(f"a queue's name is 1 to 200 of A-Z a-z 0-9 . _ -, not {_shown(name)}")


def masked(kafka: Mapping[str, str]) -> dict[str, str]:
    """The librdkafka settings as they may be shown."""
    return {key: MASK if any(word in key.lower() for word in _SECRETS) else value for key, value in kafka.items()}


def suggestion(name: str, known: Iterable[str]) -> str:
    """A sentence to end an error about an unknown name with: empty when nothing is near."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def require_between(name: str, value: object, low: int | timedelta, high: int | timedelta, why_high: str = "") -> None:
    """Refuse a whole number or a duration that is out of bounds, or is none."""
    bounds = f"from {_shown(low)} to {_shown(high)}" + (f" ({why_high})" if why_high else "")
    if isinstance(low, timedelta) and isinstance(high, timedelta):
        if not isinstance(value, timedelta):
            raise ConfigurationError(f"{name} must be a timedelta {bounds}, not {_shown(value)}")
        fits = low <= value <= high
    else:
        if not isinstance(value, int) or isinstance(value, bool):
            raise ConfigurationError(f"{name} must be a whole number {bounds}, not {_shown(value)}")
        fits = low <= value <= high  # type: ignore[operator]  # both bounds are of one type
    if not fits:
        raise ConfigurationError(f"{name} must be {bounds}, not {_shown(value)}")


def _shown(value: object) -> str:
    if isinstance(value, timedelta):
        return format_duration(value)
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."


def _match(pattern: re.Pattern[str], value: object) -> re.Match[str] | None:
    return pattern.fullmatch(value) if isinstance(value, str) else None


def _check_kafka(kafka: object) -> None:
    if not isinstance(kafka, Mapping):
        raise ConfigurationError('kafka must be a mapping such as {"security.protocol": "SSL"}')
    for key, value in kafka.items():
        if not (isinstance(key, str) and isinstance(value, str)):
            raise ConfigurationError(f"kafka maps text to text, but key {key!r} or its value is something else")
        if key in RESERVED_KAFKA_KEYS:
            raise ConfigurationError(f"kafka must not hold {key!r}: {RESERVED_KAFKA_KEYS[key]}")


def _check_url(url: object) -> None:
    text = url if isinstance(url, str) else ""
    scheme, _, address = text.partition("://")
    if scheme == "memory" and "://" in text and _MEMORY_NAME.fullmatch(address):
        return
    if scheme == "kafka" and _BROKERS.fullmatch(address):
        ports = (int(broker.rpartition(":")[2]) for broker in address.split(","))
        if all(1 <= port <= _PORT_MAX for port in ports):
            return
    if "@" in address:
        raise ConfigurationError(
            "url must not hold a user or a password: give them as"
            ' kafka={"sasl.username": ..., "sasl.password": ...}, and the url as kafka://host:port'
        )
    raise ConfigurationError(
        f"url must be kafka://host:port, kafka://host:port,host:port or memory://name, not {_shown(url)}"
    )


# How settings are loaded


def load_settings(
    kind: type[S],
    keywords: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
    toml: Mapping[str, object] | Path | None = None,
) -> tuple[S, dict[str, str]]:
    """The settings, and for each of them where its value came from.

    Keywords win over the environment (`MARQ_CONSUMER_LEASE=45s`; an empty variable counts as not set), that wins over
    the TOML file (`[consumer]`, `lease = "45s"`), that wins over the default. `environment` is `os.environ` unless
    given. A nested settings object among the keywords is taken whole; a mapping is merged with the other sources.
    """
    environment = os.environ if environment is None else environment
    variables = {name: text for name, text in environment.items() if name.startswith(ENVIRONMENT_PREFIX) and text}
    section = next((name for name, each in SECTIONS.items() if each is kind), "")
    file = str(toml) if isinstance(toml, Path) else "the TOML file"
    tables = _read_toml(toml) if isinstance(toml, Path) else toml or {}
    loader = _Loader(variables, file)
    path = (section,) if section else ()
    table = _mapping(tables.get(section, {}), section, file) if section else tables
    settings = loader.build(kind, path, keywords or {}, table)
    loader.refuse_unknown_variables()
    return settings, loader.sources


def variable_of(*path: str) -> str:
    """The environment variable of a setting: `variable_of("consumer", "lease")`."""
    return ENVIRONMENT_PREFIX + "_".join(path).upper()


class _Loader:
    """Walks a settings class and fills it, noting where each value came from."""

    def __init__(self, variables: Mapping[str, str], file: str) -> None:
        self.sources: dict[str, str] = {}
        self._variables = variables
        self._file = file
        self._known: list[str] = []
        self._open: list[str] = []  # prefixes of settings whose keys are not ours
        self._owned: list[str] = []  # prefixes under which every variable is a setting

    def build(
        self, kind: type[S], path: tuple[str, ...], given: Mapping[str, object], table: Mapping[str, object]
    ) -> S:
        """One settings object, with those nested in it."""
        names = [each.name for each in fields(kind)]
        elsewhere = [] if path else [section for section in SECTIONS if section]
        _refuse_unknown(given, names, "there is no setting", path)
        _refuse_unknown(table, [*names, *elsewhere], f"{self._file}: there is no setting", path)
        if path:
            self._owned.append(variable_of(*path, ""))
        values = {}
        for each in fields(kind):
            value = self._value(each, (*path, each.name), given, table)
            if value is not MISSING:
                values[each.name] = value
        try:
            return kind(**values)
        except ConfigurationError as error:
            raise ConfigurationError(f"{error}{self._blame(str(error), names, path)}") from error

    def _value(
        self, each: "Field[Any]", path: tuple[str, ...], given: Mapping[str, object], table: Mapping[str, object]
    ) -> Any:
        """A value from the first source that has one; MISSING leaves the default to the class."""
        label, kind = ".".join(path), each.type
        keyword, entry = given.get(each.name, MISSING), table.get(each.name, MISSING)
        if is_dataclass(kind) and isinstance(kind, type):
            if isinstance(keyword, kind):
                self.sources.update((f"{label}.{nested.name}", "keyword") for nested in fields(kind))
                return keyword
            parts = (_mapping(keyword, label, "keywords"), _mapping(entry, label, self._file))
            return self.build(kind, path, *parts)
        if get_origin(kind) is Mapping:
            return self._merged(path, keyword, entry)
        variable = variable_of(*path)
        self._known.append(variable)
        candidates = (
            ("keyword", keyword),
            (f"environment {variable}", self._variables.get(variable, MISSING)),
            (self._file, entry),
        )
        for source, value in candidates:
            if value is not MISSING:
                self.sources[label] = source
                return _converted(value, kind, f"{label} ({source})")
        if each.default is MISSING and each.default_factory is MISSING:
            raise ConfigurationError(
                f"{label} is not given: pass it, or set {variable}, or write it into the TOML file"
            )
        self.sources[label] = "default"
        return MISSING

    def _merged(self, path: tuple[str, ...], keyword: Any, entry: Any) -> dict[str, Any]:
        """A mapping with keys of its own, merged key by key. In a variable's name `_` stands for the dot of a key."""
        label, prefix = ".".join(path), variable_of(*path, "")
        self._open.append(prefix)
        layers = (
            (self._file, _flattened(_mapping(entry, label, self._file))),
            *(
                (f"environment {name}", {name.removeprefix(prefix).lower().replace("_", "."): text})
                for name, text in self._variables.items()
                if name.startswith(prefix)
            ),
            ("keyword", _mapping(keyword, label, "keywords")),
        )
        merged: dict[str, Any] = {}
        for source, layer in layers:
            merged.update(layer)
            self.sources.update((f"{label}.{key}", source) for key in layer)
        if not merged:
            self.sources[label] = "default"
        return merged

    def _blame(self, message: str, names: Iterable[str], path: tuple[str, ...]) -> str:
        """Which of the settings that the message speaks of came from somewhere else than the code."""
        labels = {".".join((*path, name)) for name in names if re.search(rf"\b{name}\b", message)}
        blamed = [f"{label}: {self.sources[label]}" for label in sorted(labels) if label in self.sources]
        elsewhere = [each for each in blamed if not each.endswith((": default", ": keyword"))]
        return f" ({', '.join(elsewhere)})" if elsewhere else ""

    def refuse_unknown_variables(self) -> None:
        """A variable that no setting has is an error where all of them are settings, and where it is nearly one."""
        sections = tuple(variable_of(section, "") for section in SECTIONS if section)
        for name in self._variables:
            if name in self._known or name.startswith(tuple(self._open)):
                continue
            is_owned = name.startswith(tuple(self._owned))
            is_near = bool(difflib.get_close_matches(name, self._known, n=1, cutoff=_TYPO))
            if is_owned or (is_near and not name.startswith(sections)):
                raise ConfigurationError(f"no setting has the variable {name}.{suggestion(name, self._known)}")


def _refuse_unknown(given: Mapping[str, object], known: list[str], what: str, path: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            raise ConfigurationError(f"{what} {'.'.join((*path, str(name)))!r}.{suggestion(str(name), known)}")


def _mapping(value: Any, label: str, source: str) -> Mapping[str, Any]:
    if value is MISSING:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{label} ({source}) must be a table of settings, not {_shown(value)}")
    return value


def _flattened(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """TOML reads `sasl.username = "x"` as a table in a table; librdkafka wants dotted keys and text."""
    flat: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat.update(_flattened(value, f"{prefix}{key}."))
        else:
            text = str(value) if isinstance(value, int | float) else value
            flat[prefix + key] = text.lower() if isinstance(value, bool) else text
    return flat


def _converted(value: Any, kind: Any, label: str) -> Any:
    """Text, and numbers without a unit, as the setting's type; what is of no use is left for the class to refuse."""
    kinds = get_args(kind) or (kind,)
    if timedelta in kinds and isinstance(value, str | int | float):
        return parse_duration(value, name=label)
    if int in kinds and isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            raise ConfigurationError(f"{label} must be a whole number, not {_shown(value)}") from None
    return value


def _read_toml(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError(f"{path} is not a TOML file: {error}") from error
