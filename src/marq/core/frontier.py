"""How far a partition is settled: one byte a message, and the commit position is the first byte that is not.

Every polled run of a partition is a *sheet*. A message knows its sheet and its place on it for life, so acking is one
store into a bytearray from any thread; nothing ever moves under it. Only the front of the queue of sheets is examined.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

IN_FLIGHT = 0  # handed out or about to be; only its uncommitted offset protects it
ACKED = 1
PENDING = 2  # something about it is on its way to the broker, and not durable yet
PARKED = 3  # durable elsewhere: leased, held, given up or dead-lettered; the frontier may pass
LOST = 4  # its partition was taken away while it was in flight; it belongs to somebody else

Place = tuple[str, int]


class LogRecord(Protocol):
    """A record as the transport hands it out."""

    def offset(self) -> int: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> list[tuple[str, bytes | None]] | None: ...
    def timestamp(self) -> tuple[int, int]: ...


class Sheet:
    """The messages of one polled run, and a byte for each."""

    __slots__ = ("attempt", "count", "desk", "end", "flags", "handed", "place", "records", "seen", "seen_at")

    def __init__(
        self,
        desk: Any,
        place: Place,
        records: Sequence[LogRecord],
        end: int,
        *,
        flag: int = IN_FLIGHT,
        attempt: int | None = None,
    ) -> None:
        self.desk = desk  # whom a message asks when its byte is not IN_FLIGHT
        self.place = place
        self.records = records
        self.end = end  # the offset after the run, records of other queues included
        self.count = len(records)
        self.flags = bytearray((flag,)) * self.count
        self.attempt = attempt  # None: the headers say
        self.handed = 0  # how many the application has
        self.seen = 0  # how many it had at `seen_at`
        self.seen_at = 0.0

    def first_unsettled(self) -> int:
        """The index of the first message that the commit may not pass, or -1."""
        in_flight = self.flags.find(IN_FLIGHT)
        pending = self.flags.find(PENDING)
        if in_flight < 0 or pending < 0:
            return max(in_flight, pending)
        return min(in_flight, pending)

    def unsettled(self) -> int:
        return self.flags.count(IN_FLIGHT) + self.flags.count(PENDING)

    def waiting(self, limit: int) -> list[int]:
        """Which of the first messages are still in flight."""
        found: list[int] = []
        index = self.flags.find(IN_FLIGHT, 0, limit)
        while index >= 0:
            found.append(index)
            index = self.flags.find(IN_FLIGHT, index + 1, limit)
        return found


class Frontier:
    """The sheets of one partition that are not wholly settled, oldest first."""

    __slots__ = ("acked", "committed", "position", "sheets")

    def __init__(self, start: int) -> None:
        self.position = start
        self.committed = -1  # what was last given to the broker; -1: nothing, so a first commit is due
        self.sheets: deque[Sheet] = deque()
        self.acked = 0  # messages that left the front acked, for the counters

    def add(self, sheet: Sheet) -> None:
        self.sheets.append(sheet)

    def advance(self) -> int:
        """Move past what is settled and say what may be committed."""
        sheets = self.sheets
        while sheets:
            sheet = sheets[0]
            first = sheet.first_unsettled()
            if first >= 0:
                self.position = sheet.records[first].offset()
                break
            self.position = sheet.end
            self.acked += sheet.flags.count(ACKED)
            sheets.popleft()
        return self.position

    def unsettled(self) -> int:
        return sum(sheet.unsettled() for sheet in self.sheets)

    def abandon(self) -> int:
        """The partition is gone: what was in flight is somebody else's. Returns how many that were."""
        lost = 0
        for sheet in self.sheets:
            lost += sheet.flags.count(IN_FLIGHT)
            sheet.flags[:] = sheet.flags.replace(bytes((IN_FLIGHT,)), bytes((LOST,)))
        self.sheets.clear()
        return lost
