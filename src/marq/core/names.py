"""Streams and owners by number, so that a row in flight is a few integers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from marq.core.shelf import NAMES, Shelf

if TYPE_CHECKING:
    from collections.abc import Iterable

NOBODY = 0
UNUSED_MAX = 256  # names that nobody uses any more and that are kept all the same

Stream = tuple[str, str, int]  # queue, topic, partition


class Names:
    """Both directions of the numbering, as it lies on the shelf."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        blob = shelf.get(NAMES)
        stored: dict[str, Any] = json.loads(blob) if blob else {"next": 1, "streams": [], "owners": []}
        self._next: int = stored["next"]
        self._streams: dict[Stream, int] = {(q, topic, partition): n for n, q, topic, partition in stored["streams"]}
        self._owners: dict[str, int] = {name: n for n, name in stored["owners"]}
        self._by_number: dict[int, Stream] = {number: stream for stream, number in self._streams.items()}
        self.changed = False

    def __len__(self) -> int:
        return len(self._streams) + len(self._owners)

    def stream(self, stream: Stream) -> int:
        """The number of a stream, a new one if need be."""
        number = self._streams.get(stream)
        if number is None:
            number = self._streams[stream] = self._number()
            self._by_number[number] = stream
        return number

    def known_stream(self, stream: Stream) -> int | None:
        return self._streams.get(stream)

    def stream_by(self, number: int) -> Stream:
        return self._by_number[number]

    def owner(self, name: str) -> int:
        """The number of an owner, a new one if need be."""
        if not name:
            return NOBODY
        number = self._owners.get(name)
        if number is None:
            number = self._owners[name] = self._number()
        return number

    def known_owner(self, name: str) -> int:
        return self._owners.get(name, NOBODY)

    def _number(self) -> int:
        number = self._next
        self._next += 1
        self.changed = True
        return number

    def prune(self, streams: Iterable[int], owners: Iterable[int]) -> None:
        """Keep these alone."""
        keep_streams, keep_owners = set(streams), set(owners)
        self._streams = {stream: n for stream, n in self._streams.items() if n in keep_streams}
        self._owners = {name: n for name, n in self._owners.items() if n in keep_owners}
        self._by_number = {number: stream for stream, number in self._streams.items()}
        self.changed = True

    def save(self) -> None:
        if self.changed:
            streams = [(n, *stream) for stream, n in self._streams.items()]
            owners = [(n, name) for name, n in self._owners.items()]
            stored = {"next": self._next, "streams": streams, "owners": owners}
            self._shelf.put(NAMES, json.dumps(stored, separators=(",", ":")).encode())
            self.changed = False
