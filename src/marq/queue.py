"""A queue of typed messages: declared once, then sent to and consumed from."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack
from zlib import crc32

from marq.codecs import codec_for
from marq.consumer import Consumer
from marq.core import records
from marq.durations import format_duration
from marq.errors import ConfigurationError, MessageTooLargeError, SendError
from marq.message import CONFIRMED_WITHIN, Receipt
from marq.retry import Retry
from marq.settings import ConsumerSettings, suggestion

if TYPE_CHECKING:
    from marq.app import App
    from marq.codecs import Codec

log = logging.getLogger("marq.queue")

T = TypeVar("T")

HeaderInput = Mapping[str, str | bytes | None] | Sequence[tuple[str, str | bytes | None]]
SEND_CHUNK = 2_000
SERVE_EVERY = 256
HEADER_COST = 16


class ConsumeOptions(TypedDict, total=False):
    """What `consume` takes: the fields of ConsumerSettings."""

    lease: timedelta
    mark_after: timedelta
    hold_max: timedelta
    hold_bytes: int
    max_in_flight: int
    commit_interval: timedelta
    session_timeout: timedelta
    poll_batch: int


class Queue(Generic[T]):
    """One queue. `app.queue(name, type)` makes it; the same name gives the same queue."""

    def __init__(self, app: App, name: str, kind: type[T] | Codec[T], retry: Retry) -> None:
        topics = app.settings.topics
        self.name = name
        self.retry = retry
        self._app = app
        self.kind = kind
        self._codec: Codec[T] = codec_for(kind)
        self._encode = self._codec.encode
        self._key = name.encode()
        self._topic = topics.messages(crc32(self._key) % topics.shards)
        self._bytes_max = app.message_bytes_max
        self._unserved = 0

    @property
    def topic(self) -> str:
        """The Kafka topic that this queue's messages lie on, together with other queues'."""
        return self._topic

    # Sending

    def send(self, value: T, *, key: str | bytes | None = None, headers: HeaderInput | None = None) -> Receipt:
        """Send a message. It is durable when the receipt says so: `send(...).result()`."""
        data = self._encode(value)
        publisher = self._app.publisher
        receipt = Receipt(publisher, self.name, self._topic)
        wire = self._headers(key, headers) if key is not None or headers else None
        if wire is not None or len(data) > self._bytes_max:
            self._check_size(data, wire)
        publisher.publish(self._topic, data, self._key, wire, report=receipt)
        self._unserved += 1
        if self._unserved >= SERVE_EVERY:
            self._unserved = 0
            publisher.serve(0)
        return receipt

    async def send_async(
        self, value: T, *, key: str | bytes | None = None, headers: HeaderInput | None = None
    ) -> Receipt:
        """Send a message and wait, without blocking the event loop, until it is durable."""
        return await self.send(value, key=key, headers=headers).wait()

    def send_many(
        self, values: Iterable[T], *, key: str | bytes | None = None, headers: HeaderInput | None = None
    ) -> int:
        """Send messages, wait until all are durable, and say how many they were. `send` gives receipts, at a price."""
        publisher = self._app.publisher
        wire = self._headers(key, headers) if key is not None or headers else None
        refusals: list[Any] = []

        def refused(error: Any, _: Any) -> None:
            if error:
                refusals.append(error)

        if isinstance(values, str | bytes):
            raise TypeError("send_many takes several values, such as a list; for one there is send")
        payloads = list(map(self._encode, values))
        sent = len(payloads)
        self._check_size(max(payloads, key=len, default=b""), wire)  # before anything is sent
        for first in range(0, sent, SEND_CHUNK):
            chunk = payloads[first : first + SEND_CHUNK]
            if wire is None:
                publisher.publish_many(self._topic, chunk, self._key, refused)
            else:
                for data in chunk:
                    publisher.publish(self._topic, data, self._key, wire, report=refused)
                publisher.serve(0)
        flush = publisher.flush_many if wire is None else publisher.flush
        if sent and flush(CONFIRMED_WITHIN.total_seconds()) and not refusals:
            raise SendError(f"Not all of {sent} messages to {self.name} were confirmed in time.", queue=self.name)
        if refusals:
            raise SendError(
                f"{len(refusals)} of {sent} messages to {self.name} were refused; the others are durable. The first:"
                f" {publisher.error(refusals[0])}",
                queue=self.name,
            )
        return sent

    def _headers(self, key: str | bytes | None, headers: HeaderInput | None) -> list[tuple[str, bytes | None]]:
        if isinstance(headers, str | bytes):
            raise TypeError("headers must be a mapping or a list of pairs, such as {'trace': 'abc'}")
        pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
        wire: list[tuple[str, bytes | None]] = []
        for name, value in pairs:
            if name.startswith(records.HEADER_PREFIX):
                raise ConfigurationError(f"The header {name} is marq's own. Give yours a name without marq- before it.")
            wire.append((name, None if value is None else _as_bytes(f"the header {name}", value)))
        if key is not None:
            wire.append((records.KEY, _as_bytes("key", key)))
        return wire

    def _check_size(self, data: bytes, wire: list[tuple[str, bytes | None]] | None) -> None:
        size = len(data)
        if wire is not None:
            size += sum(HEADER_COST + len(name) + len(value or b"") for name, value in wire)
        if size > self._bytes_max:
            raise MessageTooLargeError(
                f"The message has {size:,} bytes; {self.name} takes {self._bytes_max:,}, so that it still fits into a"
                " marker. Send a reference to the data, or raise message.max.bytes in App(kafka=...) and"
                " max.message.bytes of marq's topics.",
                queue=self.name,
            )

    # Receiving

    def consume(self, **options: Unpack[ConsumeOptions]) -> Consumer[T]:
        """Take messages under leases. Options are those of ConsumerSettings: lease, mark_after, max_in_flight, ...

        with queue.consume(lease=timedelta(minutes=2)) as messages:
            for message in messages:
                ...
                message.ack()
        """
        app = self._app
        settings = app.settings.consumer
        known = [each.name for each in fields(ConsumerSettings)]
        for name in options:
            if name not in known:
                raise ConfigurationError(f"consume has no option {name!r}.{suggestion(name, known)}")
        settings = replace(settings, **options)
        if settings.lease <= settings.session_timeout and app.settings.transport == "kafka":
            log.warning(
                "lease (%s) is not longer than session_timeout (%s): after a crash a message can come back from the"
                " pipeline before its partition has changed hands, and then be delivered twice",
                format_duration(settings.lease),
                format_duration(settings.session_timeout),
            )
        app.ensure_topics()
        topics = app.settings.topics
        return Consumer(
            queue=self.name,
            topics=[self._topic],
            group=f"{topics.prefix}-{self.name}",
            markers=app.markers_topic,
            dead_letters=app.dead_letter_topic,
            transport=app.transport,
            codec=self._codec,
            retry=self.retry,
            settings=settings,
            delay_max=topics.retention,
            shared=True,
        )

    def __repr__(self) -> str:
        return f"<Queue {self.name} on {self._topic}>"


def _as_bytes(what: str, value: object) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    raise TypeError(f"{what} must be str or bytes, not {type(value).__name__}")
