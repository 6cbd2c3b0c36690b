"""The entry point: one App for one cluster, with its queues."""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from marq.errors import ConfigurationError
from marq.queue import Queue
from marq.retry import Retry
from marq.settings import AppSettings, ConsumerSettings, TopicSettings, load_settings, queue_name
from marq.transport.base import Publisher, TopicSpec, Transport

if TYPE_CHECKING:
    from marq.codecs import Codec

T = TypeVar("T")

DEFAULT_RETRY = Retry()
MESSAGE_BYTES_DEFAULT = 1_000_000  # librdkafka's message.max.bytes
MARKER_OVERHEAD = 4_096  # what a START adds to the payload that it carries


class App:
    """Queues on one Kafka cluster: `App("kafka://localhost:9092")`, or `App("memory://")` in tests.

    Connects when it is first used, and creates marq's own topics where they are missing. Settings that are not given
    here come from MARQ_* variables and a TOML file, in this order.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        kafka: Mapping[str, str] | None = None,
        consumer: ConsumerSettings | None = None,
        topics: TopicSettings | None = None,
        settings_file: str | Path | None = None,
    ) -> None:
        given = {"url": url, "kafka": kafka, "consumer": consumer, "topics": topics}
        keywords = {name: value for name, value in given.items() if value is not None}
        self.settings: AppSettings
        self.settings, self.sources = load_settings(
            AppSettings, keywords, toml=Path(settings_file) if settings_file is not None else None
        )
        self._queues: dict[str, Queue[Any]] = {}
        self._lock = threading.RLock()
        self._transport: Transport | None = None
        self._publisher: Publisher | None = None
        self._has_topics = False
        self._closed = False
        _open_apps.add(self)

    # Queues

    @overload
    def queue(self, name: str, *, retry: Retry = ...) -> Queue[bytes]: ...
    @overload
    def queue(self, name: str, kind: type[T], *, retry: Retry = ...) -> Queue[T]: ...
    @overload
    def queue(self, name: str, kind: Codec[T], *, retry: Retry = ...) -> Queue[T]: ...

    def queue(self, name: str, kind: Any = bytes, *, retry: Retry = DEFAULT_RETRY) -> Queue[Any]:
        """A queue of this name whose messages are values of this type. Declared twice alike, it is the same queue."""
        queue_name(name)
        if not isinstance(retry, Retry):
            raise ConfigurationError(f"retry must be a Retry, such as Retry(attempts=5), not {retry!r}")
        with self._lock:
            known = self._queues.get(name)
            if known is None:
                known = self._queues[name] = Queue(self, name, kind, retry)
            elif (known.kind, known.retry) != (kind, retry):
                raise ConfigurationError(
                    f"The queue {name} was declared before, as {known.kind!r} with {known.retry}; now it is {kind!r}"
                    f" with {retry}. Declare it in one place."
                )
            return known

    @property
    def queues(self) -> Mapping[str, Queue[Any]]:
        """The queues that were declared, by name."""
        return dict(self._queues)

    # The cluster

    @property
    def transport(self) -> Transport:
        """The cluster behind this app; connects at the first use."""
        with self._lock:
            if self._closed:
                raise ConfigurationError("This app is closed. Make another App to go on.")
            if self._transport is None:
                self._transport = self._connect()
            return self._transport

    def _connect(self) -> Transport:
        if self.settings.transport == "memory":
            from marq.transport.memory import MemoryTransport  # noqa: PLC0415 - only what is used is loaded

            return MemoryTransport.named(self.settings.address)
        from marq.transport.kafka import KafkaTransport  # noqa: PLC0415 - `import marq` loads no Kafka client

        return KafkaTransport(self.settings.address, self.settings.kafka)

    @property
    def publisher(self) -> Publisher:
        publisher = self._publisher
        if publisher is None or self._closed:
            with self._lock:
                self.ensure_topics()
                publisher = self._publisher = self.transport.publisher()
        return publisher

    @property
    def markers_topic(self) -> str:
        return self.settings.topics.markers

    @property
    def dead_letter_topic(self) -> str:
        return self.settings.topics.dead

    @property
    def message_bytes_max(self) -> int:
        """The largest message that can be leased as well as sent."""
        limit = int(self.settings.kafka.get("message.max.bytes", MESSAGE_BYTES_DEFAULT))
        return limit - MARKER_OVERHEAD

    def topic_specs(self) -> list[TopicSpec]:
        """marq's own topics, as they are created."""
        topics = self.settings.topics
        replication = topics.replication if topics.replication is not None else -1
        retention = {"retention.ms": str(int(topics.retention.total_seconds() * 1000)), "cleanup.policy": "delete"}
        kafka = self.settings.kafka
        size = {"max.message.bytes": kafka["message.max.bytes"]} if "message.max.bytes" in kafka else {}
        plain = {**retention, **size}
        by_broker_clock = {**plain, "message.timestamp.type": "LogAppendTime"}
        return [
            *(TopicSpec(topics.messages(i), topics.partitions, replication, plain) for i in range(topics.shards)),
            TopicSpec(topics.markers, topics.markers_partitions, replication, by_broker_clock),
            TopicSpec(topics.dead, topics.partitions, replication, plain),
        ]

    def ensure_topics(self) -> None:
        """Create marq's topics where they are missing. What exists is left as it is."""
        with self._lock:
            if not self._has_topics:
                self.transport.ensure_topics(self.topic_specs())
                self._has_topics = True

    def _start_anew(self) -> None:
        """In a forked child: the client's threads stayed in the parent, so its connections are of no use here."""
        self._lock = threading.RLock()
        for client in (self._transport, self._publisher):  # to let go of one is to wait for threads that are not here
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))
        self._transport = self._publisher = None

    def close(self) -> None:
        """Wait until everything sent is durable, then let go of the cluster."""
        with self._lock:
            transport, self._transport = self._transport, None
            self._closed = True
        _open_apps.discard(self)
        if transport is not None:
            transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<App {self.settings.url} with {len(self._queues)} queues>"


_open_apps: weakref.WeakSet[App] = weakref.WeakSet()


@atexit.register
def _close_open_apps() -> None:
    """A script that ends after `send` must not lose what it sent."""
    for app in list(_open_apps):
        app.close()


def _start_anew_in_child() -> None:
    for app in list(_open_apps):
        app._start_anew()  # noqa: SLF001 - of this module


os.register_at_fork(after_in_child=_start_anew_in_child)
