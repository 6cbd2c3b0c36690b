"""Payloads of messages in flight: START records as they came, a few blobs of them on a shelf.

A message's place is segment number << SLOT_BITS | slot, slots counting the messages of a segment. A segment is
dropped with its last message. A small one is continued by the next batch, so that a trickle of messages does not
leave a segment each; what will stay for days is kept apart from what leaves in a minute; and one that is
mostly dead is rewritten without the dead payloads, which moves no message.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from marq.core.records import Marker, blank, decode, encode
from marq.errors import LedgerStateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from marq.core.shelf import Shelf

SLOT_BITS = 32
SLOT_MASK = (1 << SLOT_BITS) - 1
CONTINUE_BYTES_MAX = 256_000
CONTINUE_SLOTS_MAX = 1 << 16
SEGMENT_BYTES_MAX = 4 << 20  # one record may be larger. A host copies each blob several times, in a heap of its own
READ_BYTES_MAX = 32 << 20  # what `fetch` keeps at hand
COMPACT_BYTES_MIN = 64_000
COMPACT_AFTER_MS = 30_000  # most segments die whole soon after: leave them time
COMPACT_AT_ONCE_MAX = 4

_ENTRY = struct.Struct("<II")

Entry = tuple[int, bytes]  # first slot, record


@dataclass(slots=True)
class Segment:
    """What the directory knows of a segment."""

    born: int
    alive: int = 0
    counted: int = 0  # messages alive when somebody last looked for dead ones
    slots: int = 0
    size: int = 0
    stored: bool = True

    def summary(self) -> tuple[int, ...]:
        return (self.born, self.alive, self.counted, self.slots, self.size)


class Segments:
    """The segments on their shelf."""

    def __init__(self, shelf: Shelf, directory: Sequence[Any] = (1, (), ())) -> None:
        self._shelf = shelf
        self._next, segments, growing = directory
        self._segments = {number: Segment(*summary) for number, *summary in segments}
        self._growing: dict[int, int] = dict(growing)
        self._entering: dict[int, list[Entry]] = {}
        self._dropped: set[int] = set()
        self._read: dict[int, tuple[list[int], list[bytes]]] = {}
        self._read_bytes = 0
        self._decoded: dict[tuple[int, int], Marker] = {}

    def __len__(self) -> int:
        return len(self._segments)

    def directory(self) -> list[Any]:
        """What `Segments` must be given to find them again."""
        summaries = [(number, *segment.summary()) for number, segment in self._segments.items()]
        return [self._next, summaries, [*self._growing.items()]]

    def add(self, tier: int, record: bytes, count: int, alive: int, now: int) -> int:
        """Keep a record of `count` messages, of which `alive` are in flight; the place of its first message."""
        number = self._growing.get(tier)
        if number is not None and self._segments[number].size + len(record) > SEGMENT_BYTES_MAX:
            self._write_entering(number)  # now, so that a batch of any size is never in memory as a whole
            del self._growing[tier]
            number = None
        if number is None:
            number = self._growing[tier] = self._next
            self._next += 1
            self._segments[number] = Segment(now, stored=False)
        segment = self._segments[number]
        first = segment.slots
        segment.slots += count
        segment.alive += alive
        segment.counted += alive
        segment.size += len(record)
        self._entering.setdefault(number, []).append((first, record))
        return number << SLOT_BITS | first

    def release(self, places: Iterable[int]) -> None:
        """These messages are settled."""
        for number, count in Counter(place >> SLOT_BITS for place in places).items():
            segment = self._segments[number]
            segment.alive -= count
            if segment.alive == 0:
                self._drop(number, segment)

    def _drop(self, number: int, segment: Segment) -> None:
        del self._segments[number]
        self._entering.pop(number, None)
        if segment.stored:
            self._dropped.add(number)
        for tier in [tier for tier, growing in self._growing.items() if growing == number]:
            del self._growing[tier]

    def fetch(self, place: int) -> tuple[Marker, int]:
        """The record that a message came in, and its position there.

        Without it the message would be lost, and the log still has it: so a gap is an error that asks for a rebuild.
        """
        number, slot = place >> SLOT_BITS, place & SLOT_MASK
        if number not in self._read:
            if self._read_bytes + self._segments[number].size > READ_BYTES_MAX:
                self.forget_read()
            self._read_bytes += self._segments[number].size
            entries = self._entries(number)
            self._read[number] = [first for first, _ in entries], [record for _, record in entries]
        firsts, records = self._read[number]
        index = bisect_right(firsts, slot) - 1
        if index < 0:
            raise LedgerStateError
        marker = self._decoded.get((number, index))
        if marker is None:
            marker = self._decoded[number, index] = decode(records[index])
        position = slot - firsts[index]
        if position >= len(marker.offsets):
            raise LedgerStateError
        return marker, position

    def forget_read(self) -> None:
        """Give back the memory that `fetch` took."""
        self._read.clear()
        self._read_bytes = 0
        self._decoded.clear()

    def _entries(self, number: int) -> list[Entry]:
        stored = _unpack(self._shelf.get(f"seg/{number}")) if self._segments[number].stored else []
        return stored + self._entering.get(number, [])

    def garbage(self, now: int) -> dict[int, int]:
        """Segments worth rewriting, with the number of messages alive in each."""
        worth = [
            (number, segment.alive)
            for number, segment in self._segments.items()
            if segment.alive * 4 <= segment.counted
            and segment.size >= COMPACT_BYTES_MIN
            and (now - segment.born >= COMPACT_AFTER_MS or not segment.stored)
        ]
        return dict(worth[:COMPACT_AT_ONCE_MAX])

    def markers(self, number: int) -> list[tuple[int, Marker]]:
        """The records of a segment, without payload, each with the place of its first message."""
        return [(number << SLOT_BITS | first, decode(record, payload=False)) for first, record in self._entries(number)]

    def compact(self, number: int, alive: set[int]) -> None:
        """Rewrite a segment so that it holds the payloads of these slots alone. The rest of it is dead."""
        kept: list[Entry] = []
        for first, record in self._entries(number):
            marker = decode(record)
            wanted = {slot - first for slot in range(first, first + len(marker.offsets)) if slot in alive}
            if wanted:
                kept.append((first, encode(blank(marker, wanted))))
        self._entering.pop(number, None)
        self._segments[number].size = sum(len(record) for _, record in kept)
        self._put(number, kept, b"")

    def looked_at(self, number: int) -> None:
        """Do not look for garbage in this segment again before much more of it is dead."""
        self._segments[number].counted = self._segments[number].alive

    def save(self) -> None:
        for number in [*self._entering]:
            self._write_entering(number)
        for number in self._dropped:
            self._shelf.delete(f"seg/{number}")
        for tier, number in [*self._growing.items()]:
            segment = self._segments[number]
            if segment.size >= CONTINUE_BYTES_MAX or segment.slots >= CONTINUE_SLOTS_MAX:
                del self._growing[tier]
        self._dropped.clear()
        self.forget_read()

    def _write_entering(self, number: int) -> None:
        entries = self._entering.pop(number, None)
        if entries:
            before = self._shelf.get(f"seg/{number}") if self._segments[number].stored else None
            self._put(number, entries, before or b"")

    def _put(self, number: int, entries: list[Entry], before: bytes) -> None:
        self._shelf.put(f"seg/{number}", before + _pack(entries))
        self._segments[number].stored = True


def _pack(entries: Iterable[Entry]) -> bytes:
    return b"".join(_ENTRY.pack(first, len(record)) + record for first, record in entries)


def _unpack(blob: bytes | None) -> list[Entry]:
    entries = []
    rest = blob or b""
    position = 0
    while position < len(rest):
        first, length = _ENTRY.unpack_from(rest, position)
        position += _ENTRY.size
        entries.append((first, rest[position : position + length]))
        position += length
    return entries
