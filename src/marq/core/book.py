"""The book: the rows of a ledger and where they lie.

Rows are either hot (leased, or due soon: a dict, rewritten by each batch that changes it) or cold (the wheel).
Whatever has an owner is hot, so what an owner says of its leases is looked up nowhere else. Blobs are read from
the shelf by the first use of what is in them: a tick with nothing due reads and writes `meta` alone.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any

from marq.core.names import UNUSED_MAX, Names
from marq.core.segments import SLOT_BITS, SLOT_MASK, Segments
from marq.core.shelf import (
    CONFIRM,
    FORMAT,
    HOT,
    META,
    Row,
    Shelf,
    pack_blobs,
    pack_rows,
    row_key,
    stream_of,
    unpack_blobs,
    unpack_rows,
)
from marq.core.wheel import Bucket, GivenUp, Wheel, bucket_of
from marq.errors import LedgerStateError

if TYPE_CHECKING:
    from collections.abc import Iterator

_EMPTY: dict[str, Any] = {
    "now": 0,
    "read_to": -1,
    "hot": (0, None),
    "confirmations": 0,
    "segments": (1, (), ()),
    "wheel": ((), ()),
    "given_up": (),
}


class Book:
    """Everything that a ledger keeps between batches."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        meta = _read_meta(shelf.get(META))
        self.now: int = meta["now"]
        self.read_to: int = meta["read_to"]  # offset of the last record applied
        self._hot_stored: int
        self._first_stored: int | None
        self._hot_stored, self._first_stored = meta["hot"]
        self._confirmations_stored: int = meta["confirmations"]
        self.segments = Segments(shelf, meta["segments"])
        self.wheel = Wheel(shelf, meta["wheel"])
        self.given_up = GivenUp(shelf, meta["given_up"])
        self.hot_changed = self.confirmations_changed = False

    @cached_property
    def hot(self) -> dict[int, Row]:
        return dict(unpack_rows(self._shelf.get(HOT) if self._hot_stored else None))

    @cached_property
    def names(self) -> Names:
        return Names(self._shelf)

    @cached_property
    def confirmations(self) -> list[bytes]:
        """REDELIVERED and DEAD markers that wait until their letters are durable."""
        return unpack_blobs(self._shelf.get(CONFIRM) if self._confirmations_stored else None)

    def _has_read(self, name: str) -> bool:
        return name in self.__dict__

    @property
    def hot_count(self) -> int:
        return len(self.hot) if self._has_read("hot") else self._hot_stored

    def first_deadline(self) -> int | None:
        """The earliest deadline among hot rows."""
        if not self._has_read("hot"):
            return self._first_stored
        return min(self.hot.values())[0] if self.hot else None

    # Rows move

    def lay(self, key: int, row: Row) -> None:
        """Put a row where it belongs by its owner and deadline."""
        self.put(key, row, None if row[2] >> 1 else bucket_of(row[0], self.now))

    def put(self, key: int, row: Row, bucket: Bucket | None) -> None:
        if bucket is None:
            self.hot[key] = row
            self.hot_changed = True
            return
        self.hot_changed |= self.hot.pop(key, None) is not None
        self.wheel.add(bucket, key, row)
        if self._lay_on_a_topic(key):
            self.given_up.add(key, row)

    def remove(self, key: int, row: Row) -> None:
        """A hot message is settled."""
        del self.hot[key]
        self.hot_changed = True
        self.segments.release([row[3]])

    def bury(self, key: int, row: Row) -> None:
        """A message that its consumer gave up, and that lies in the wheel, is settled or entered anew."""
        self.wheel.bury(key, row[0], row[1])
        self.given_up.remove(key, row)

    def open(self, bucket: Bucket) -> None:
        """Sort a bucket of the wheel one level down."""
        alive, dead = self.wheel.open(bucket)
        self.segments.release(row[3] for _, row in dead)
        for key, row in alive.items():
            self.given_up.remove(key, row)
            if key in self.hot:  # entered anew, without a word about this one
                self.segments.release([row[3]])
            else:
                self.lay(key, row)

    def _lay_on_a_topic(self, key: int) -> bool:
        _, topic, _ = self.names.stream_by(stream_of(key))
        return bool(topic)

    def may_be_delayed(self, key: int) -> bool:
        """Whether the wheel may hold this message, one that was delayed when it was sent."""
        return stream_of(key) in self.wheel.by_stream and not self._lay_on_a_topic(key)

    # What stays

    def save(self) -> None:
        """Write what has changed."""
        self.segments.release(row[3] for _, row in self.wheel.sweep())
        self._compact()
        self._prune_names()
        self.wheel.save()
        self.given_up.save()
        self.segments.save()
        if self._has_read("names"):
            self.names.save()
        if self.hot_changed:
            self._write(HOT, pack_rows([*self.hot], [*self.hot.values()]) if self.hot else None, self._hot_stored)
            self._hot_stored = len(self.hot)
        if self.confirmations_changed:
            self._write(CONFIRM, pack_blobs(self.confirmations) or None, self._confirmations_stored)
            self._confirmations_stored = len(self.confirmations)
        meta = {
            "format": FORMAT,
            "now": self.now,
            "read_to": self.read_to,
            "hot": (self.hot_count, self.first_deadline()),
            "confirmations": self._confirmations_stored,
            "segments": self.segments.directory(),
            "wheel": self.wheel.directory(),
            "given_up": self.given_up.directory(),
        }
        self._shelf.put(META, json.dumps(meta, separators=(",", ":")).encode())
        self.hot_changed = self.confirmations_changed = False

    def _write(self, name: str, blob: bytes | None, stored: int) -> None:
        if blob is not None:
            self._shelf.put(name, blob)
        elif stored:
            self._shelf.delete(name)

    def _compact(self) -> None:
        """Rewrite segments that are mostly dead, where all that is alive in them can be named."""
        garbage = self.segments.garbage(self.now)
        if not garbage:
            return
        slots: dict[int, set[int]] = {number: set() for number in garbage}
        for *_, place in self.hot.values():
            if place >> SLOT_BITS in slots:
                slots[place >> SLOT_BITS].add(place & SLOT_MASK)
        for number, alive in garbage.items():
            if len(slots[number]) < alive:
                slots[number].update(self._given_up_in(number))
            if len(slots[number]) == alive:
                self.segments.compact(number, slots[number])
            self.segments.looked_at(number)

    def _given_up_in(self, number: int) -> Iterator[int]:
        """Slots of a segment whose messages lie in the wheel, as far as that is known."""
        for first, marker in self.segments.markers(number):
            stream = row_key(self.names.known_stream(marker.stream) or 0, 0)
            for position, offset in enumerate(marker.offsets):
                row = self.given_up.find(stream | offset)
                if row is not None and row[3] == first + position:
                    yield row[3] & SLOT_MASK

    def _prune_names(self) -> None:
        if not self._has_read("names") or len(self.names) <= UNUSED_MAX:
            return
        if not self.names.changed and len(self.names) < len(self.hot):
            return  # nothing to win that would be worth going through so many rows
        streams = {stream_of(key) for key in self.hot} | set(self.wheel.by_stream)
        owners = {row[2] >> 1 for row in self.hot.values()}
        if len(self.names) > len(streams) + len(owners) + UNUSED_MAX:
            self.names.prune(streams, owners)


def _read_meta(blob: bytes | None) -> dict[str, Any]:
    if blob is None:
        return _EMPTY
    try:
        meta: dict[str, Any] = json.loads(blob)
        known = meta["format"] == FORMAT
    except (ValueError, TypeError, KeyError) as error:
        raise LedgerStateError from error
    if not known:
        raise LedgerStateError(
            f"The stored state has format {meta['format']}, this version of marq reads format {FORMAT}. "
            "Start with a new checkpoint folder: the state is rebuilt from the log."
        )
    return meta
