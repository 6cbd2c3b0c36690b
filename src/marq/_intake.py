"""From polled runs to what a queue's consumer can hand out: its own records, decoded, and noticed if seen before."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from itertools import compress
from typing import Any, Generic, NamedTuple, TypeVar

from marq.codecs import Codec, is_identity
from marq.core import records
from marq.errors import DecodeError
from marq.transport.base import Record, Run

T = TypeVar("T")

REPEATS_REMEMBERED = 10_000


class Opened(NamedTuple):
    """The part of a run that belongs to this queue."""

    rows: Sequence[Record]
    values: Sequence[Any]  # decoded; of a broken one None
    broken: dict[int, str]  # which could not be decoded, and why
    end: int  # the offset after the run, other queues' records included


class Intake(Generic[T]):
    """Opens runs for one queue. All but the rare case is done by loops in C."""

    def __init__(self, codec: Codec[T], key: bytes | None, counts: Counter[str]) -> None:
        self._decode = None if is_identity(codec) else codec.decode
        self._key = key  # on a shared topic, the key of this queue's records
        self._counts = counts
        self._seen: OrderedDict[tuple[str, int], None] = OrderedDict()

    def open(self, run: Run) -> Opened:
        rows, data = run.records, run.values
        end = rows[-1].offset() + 1
        if self._key is not None and run.keys.count(self._key) != len(run.keys):
            ours = [key == self._key for key in run.keys]
            self._counts["foreign_skipped"] += ours.count(False)
            rows, data = list(compress(rows, ours)), list(compress(data, ours))
        self._counts["received"] += len(rows)
        self._notice(rows)
        if self._decode is None:
            return Opened(rows, data, {}, end)
        try:
            return Opened(rows, list(map(self._decode, data)), {}, end)
        except Exception:  # noqa: BLE001 - a codec may be anybody's; one by one it is seen which record it was
            return self._open_one_by_one(rows, data, end)

    def _open_one_by_one(self, rows: Sequence[Record], data: Sequence[bytes | None], end: int) -> Opened:
        values: list[Any] = []
        broken: dict[int, str] = {}
        for index, payload in enumerate(data):
            try:
                values.append(self.value(payload))
            except DecodeError as error:
                values.append(None)
                broken[index] = str(error)
            except Exception as error:  # noqa: BLE001 - a codec of the user's that raises what it should not
                values.append(None)
                broken[index] = f"{type(error).__name__}: {error}"
        self._counts["decode_failed"] += len(broken)
        return Opened(rows, values, broken, end)

    def value(self, payload: bytes | None) -> Any:
        return payload if self._decode is None else self._decode(payload)

    def _notice(self, rows: Sequence[Record]) -> None:
        """Count later attempts, and those that came twice: a batch that the pipeline repeated after a crash."""
        if not rows or not any(map(type(rows[0]).headers, rows)):  # most have none, and this loop runs in C
            return
        for row in rows:
            headers = row.headers()
            if headers:
                past = records.provenance(headers)
                if past.attempt > 1 and past.id is not None:
                    self._counts["redelivered_seen"] += 1
                    self._remember((past.id, past.attempt))

    def _remember(self, delivery: tuple[str, int]) -> None:
        if delivery in self._seen:
            self._counts["repeats"] += 1
            return
        self._seen[delivery] = None
        if len(self._seen) > REPEATS_REMEMBERED:
            self._seen.popitem(last=False)
