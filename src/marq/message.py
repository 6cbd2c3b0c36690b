"""A message in hand, and the receipt of one that was sent."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

import msgspec

from marq.core import records
from marq.errors import SendError, TransportError
from marq.settings import require_between
from marq.transport.base import Publisher, Record

T_co = TypeVar("T_co", covariant=True)

CONFIRMED_WITHIN = timedelta(minutes=2)  # longer than the producer tries, so that its own error comes first


class Message(msgspec.Struct, Generic[T_co], eq=False, gc=False):
    """A message under a lease. It is yours until you settle it: `ack`, `nack` or `dead_letter`, from any thread.

    A message that is not settled and whose process lives keeps its lease; one whose process died comes back.
    """

    # A C struct, because one of these is made for every message (benchmarks/README.md), and out of sight of the garbage
    # collector, which would otherwise walk all of them: whatever refers back to a message is emptied on close.
    _record: Any
    value: T_co
    _sheet: Any
    _index: int

    def ack(self) -> None:
        """Processed: never again. Acking twice is harmless."""
        sheet = self._sheet
        flags = sheet.flags
        if flags[self._index]:
            sheet.desk.ack_late(self)
        else:
            flags[self._index] = 1  # frontier.ACKED; one store into a bytearray is atomic

    def nack(self, delay: timedelta | None = None) -> None:
        """Failed: again after `delay` (the queue's retry policy says, when you do not), or dead when tried enough."""
        self._sheet.desk.nack(self, delay)

    def extend(self, lease: timedelta) -> None:
        """Keep it for this long from now, even if this process should stop keeping its leases alive."""
        self._sheet.desk.extend(self, lease)

    def dead_letter(self, reason: str) -> None:
        """Never again: to the dead letters, with the reason."""
        self._sheet.desk.dead_letter(self, reason)

    @property
    def id(self) -> str:
        """The same through every retry and redelivery: where the message first lay."""
        past = records.provenance(self._record.headers())
        topic, partition = self._sheet.place
        return past.id or records.message_id(topic, partition, self._record.offset())

    @property
    def attempt(self) -> int:
        """Which try this is; the first is 1."""
        if self._sheet.attempt is not None:
            return int(self._sheet.attempt)
        return records.provenance(self._record.headers()).attempt

    @property
    def key(self) -> bytes | None:
        """The key that the sender gave."""
        return self._sheet.desk.key_of(self._record)  # type: ignore[no-any-return]

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        """The sender's headers, without marq's own."""
        return [(name, data) for name, data in self._record.headers() or () if not name.startswith("marq-")]

    @property
    def timestamp(self) -> datetime:
        """When it was sent; a redelivery does not change that."""
        past = records.provenance(self._record.headers())
        millis = past.timestamp if past.timestamp is not None else self._record.timestamp()[1]
        return datetime.fromtimestamp(millis / 1000, UTC)

    @property
    def raw(self) -> bytes | None:
        """The payload as it lay on the topic."""
        return self._record.value()  # type: ignore[no-any-return]

    @property
    def queue(self) -> str:
        return self._sheet.desk.queue  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<Message {self.id} of {self.queue}, attempt {self.attempt}>"


class Receipt(msgspec.Struct, eq=False, gc=False):
    """The broker's word that a message is durable, or will be: `result()` waits for it."""

    # Like Message, a C struct out of the collector's sight; the transport calls it when the broker has answered.
    _publisher: Publisher
    queue: str
    _topic: str
    partition: int = -1
    offset: int = -1
    _error: Any = None
    _done: bool = False

    def __call__(self, error: Any, record: Record) -> None:
        if error:
            self._error = error
        else:
            self.partition = record.partition()
            self.offset = record.offset()
        self._done = True

    def done(self) -> bool:
        """Whether the broker has answered."""
        return self._done

    @property
    def id(self) -> str:
        """The message's id, once it is durable."""
        if self.offset < 0:
            raise SendError("The message has no id before it is durable. Call result() first.", queue=self.queue)
        return records.message_id(self._topic, self.partition, self.offset)

    def result(self, timeout: timedelta = CONFIRMED_WITHIN) -> Receipt:
        """Wait until the message is durable. Raises what went wrong; the message was then not confirmed."""
        if not self._done:
            require_between("result: timeout", timeout, timedelta(0), timedelta(days=1))
            until = time.monotonic() + timeout.total_seconds()
            while not self._done:
                self._publisher.serve(0.05)
                if time.monotonic() > until and not self._done:
                    raise self._unconfirmed()
        return self._confirmed()

    async def wait(self) -> Receipt:
        """`result()` for asyncio."""
        until = time.monotonic() + CONFIRMED_WITHIN.total_seconds()
        while not self._done:
            self._publisher.serve(0)
            if time.monotonic() > until and not self._done:
                raise self._unconfirmed()
            await asyncio.sleep(0.002)
        return self._confirmed()

    def _confirmed(self) -> Receipt:
        if self._error is not None:
            error = self._publisher.error(self._error)
            raise error if isinstance(error, SendError) else SendError(str(error), queue=self.queue)
        return self

    def _unconfirmed(self) -> TransportError:
        return TransportError(
            f"The broker has not confirmed a message to {self.queue} in time. It may still do so;"
            " sending it again may deliver it twice."
        )

    def __repr__(self) -> str:
        state = "on its way" if not self._done else "refused" if self._error is not None else f"offset {self.offset}"
        return f"<Receipt of a message to {self.queue}: {state}>"


__all__ = ["Message", "Receipt"]
