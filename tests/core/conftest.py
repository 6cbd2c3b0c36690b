"""A markers partition for the tests of the ledger."""

from __future__ import annotations

import pytest

from marq.core.ledger import Harvest, Ledger
from marq.core.records import Kind, Marker, encode
from marq.core.shelf import DictShelf


class Log:
    """A markers partition and the ledger that reads it. Every collection is a batch of its own."""

    def __init__(self, gate: int = 0) -> None:
        self.shelf = DictShelf()
        self.gate = gate
        self.records: list[tuple[int, bytes]] = []
        self.ledger = Ledger(self.shelf, gate=gate)

    def gated(self, gate: int) -> Log:
        return Log(gate)

    def say(self, kind: int, *offsets: int, at: int, **fields: object) -> Log:
        marker = Marker(kind, **{"queue": "q", "topic": "t", "partition": 3, **fields}, offsets=list(offsets))
        return self.write(encode(marker), at)

    def write(self, data: bytes | None, at: int) -> Log:
        self.ledger.apply(len(self.records), at, data)
        self.records.append((at, data or b""))
        return self

    def start(self, *offsets: int, at: int, after: int = 1000, **fields: object) -> Log:
        fields = {"owner": "a", "values": [b"m%d" % offset for offset in offsets], "max_attempts": 5, **fields}
        return self.say(Kind.START, *offsets, at=at, redeliver_after_ms=[after], **fields)

    def delay(self, *offsets: int, at: int, after: int, **fields: object) -> Log:
        fields = {"owner": "", "topic": "", "waiting": True, "target_topic": "t", **fields}
        return self.start(*offsets, at=at, after=after, **fields)

    def keep_alive(self, *offsets: int, at: int, owner: str = "a", after: int = 1000) -> Log:
        return self.say(Kind.KEEPALIVE, *offsets, at=at, owner=owner, redeliver_after_ms=[after])

    def retry(self, *offsets: int, at: int, owner: str = "a", after: int = 1000, **fields: object) -> Log:
        return self.say(Kind.RETRY, *offsets, at=at, owner=owner, redeliver_after_ms=[after], **fields)

    def end(self, *offsets: int, at: int = 0, **fields: object) -> Log:
        return self.say(Kind.END, *offsets, at=at, **fields)

    def collect(self, at: int = 0) -> Harvest:
        """A tick, and the end of a batch."""
        self.write(encode(Marker(Kind.TICK)), at)
        harvest = self.ledger.collect()
        self.ledger.save()
        self.ledger = Ledger(self.shelf, gate=self.gate)
        return harvest

    def due(self, at: int = 0) -> list[bytes | None]:
        return [letter.value for letter in self.collect(at).letters]

    def rebuilt(self) -> Log:
        """The state is lost; the log is read from its beginning, and its present end is the gate."""
        log = self.gated(len(self.records))
        for at, data in self.records:
            log.write(data, at)
        return log


@pytest.fixture
def log() -> Log:
    return Log()
