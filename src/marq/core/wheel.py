"""Delays that are far off, by the time they fall due: minutes for the next hour, hours for two days, days beyond.

However widely delays are spread there are at most about 120 + 72 + days buckets. Each is opened once: when it comes
near, its entries are sorted one level down or into the hot index. Nothing looks for an entry in a bucket. What
happens to one before its bucket is opened is appended as a tombstone, and applied when the bucket is opened, or
sooner when half of it is garbage.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

from marq.core.shelf import Row, Shelf, pack_rows, stream_of, unpack_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS

HOT_MS = 2 * MINUTE_MS  # what falls due within this time belongs to the hot index
PART_ROWS_MAX = 400  # a batch's few entries join the part before, until it holds as many as this

Bucket = tuple[int, int]  # (width in ms, number): deadlines in [number * width, (number + 1) * width)

ANY_DEADLINE = 0
ANY_ATTEMPT = 0


def bucket_of(deadline: int, now: int) -> Bucket | None:
    """The widest bucket for a deadline that need not be open yet, or None when it belongs in the hot index."""
    if deadline - now < HOT_MS:
        return None
    for width in (DAY_MS, HOUR_MS, MINUTE_MS):
        bucket = (width, deadline // width)
        if opens_at(bucket) > now:
            return bucket
    return None


def candidates(deadline: int) -> tuple[Bucket, Bucket, Bucket]:
    """The buckets that may hold a deadline, whenever it was entered."""
    return (
        (MINUTE_MS, deadline // MINUTE_MS),
        (HOUR_MS, deadline // HOUR_MS),
        (DAY_MS, deadline // DAY_MS),
    )


def opens_at(bucket: Bucket) -> int:
    """When a bucket must be sorted one level down: before anything in it could be due, or need a finer bucket."""
    width, number = bucket
    start = width * number
    if width == MINUTE_MS:
        return start - HOT_MS
    return start - HOUR_MS if width == HOUR_MS else start - 2 * DAY_MS


@dataclass(slots=True)
class _Content:
    """What the directory knows of a bucket."""

    parts: int = 0
    rows: int = 0
    tombstones: int = 0
    tail_rows: int = 0  # entries of the last part


class Wheel:
    """The cold buckets on their shelf."""

    def __init__(self, shelf: Shelf, directory: Sequence[Sequence[Any]] = ((), ())) -> None:
        self._shelf = shelf
        buckets, streams = directory
        self._contents: dict[Bucket, _Content] = {(width, n): _Content(*content) for width, n, *content in buckets}
        self.by_stream: Counter[int] = Counter(dict(streams))
        self._entering: dict[Bucket, list[tuple[int, Row]]] = {}
        self._dropped: set[str] = set()

    def __len__(self) -> int:
        """Entries, among them those whose tombstone has not been applied yet."""
        return self.by_stream.total()

    def directory(self) -> list[Any]:
        """What `Wheel` must be given to find its buckets again."""
        return [[(*bucket, *astuple(content)) for bucket, content in self._contents.items()], [*self.by_stream.items()]]

    def add(self, bucket: Bucket, key: int, row: Row) -> None:
        self._enter(bucket, key, row).rows += 1
        self.by_stream[stream_of(key)] += 1

    def bury(self, key: int, deadline: int, attempt: int = ANY_ATTEMPT) -> bool:
        """Leave a tombstone wherever the entry may lie; False when it lies in no bucket."""
        buckets = candidates(deadline) if deadline != ANY_DEADLINE else [*self._contents]
        found = [bucket for bucket in buckets if bucket in self._contents]
        for bucket in found:
            self._enter(bucket, key, (deadline, -attempt, 0, 0)).tombstones += 1
        return bool(found)

    def _enter(self, bucket: Bucket, key: int, row: Row) -> _Content:
        self._entering.setdefault(bucket, []).append((key, row))
        content = self._contents.get(bucket)
        if content is None:
            content = self._contents[bucket] = _Content()
        return content

    def next_opening(self) -> int | None:
        return min(map(opens_at, self._contents), default=None)

    def ripe(self, now: int) -> list[Bucket]:
        """Buckets that must be opened now."""
        return [bucket for bucket in self._contents if opens_at(bucket) <= now]

    def open(self, bucket: Bucket) -> tuple[dict[int, Row], list[tuple[int, Row]]]:
        """Take everything out of a bucket: what is alive, and what tombstones or later entries have put aside."""
        content = self._contents.pop(bucket)
        names = [_part_name(bucket, part) for part in range(content.parts)]
        self._dropped.update(names)
        entries = [entry for name in names for entry in unpack_rows(self._shelf.get(name))]
        entries += self._entering.pop(bucket, [])
        alive: dict[int, Row] = {}
        dead: list[tuple[int, Row]] = []
        for key, row in entries:
            before = alive.get(key)
            if row[1] > 0:
                alive[key] = row
            elif before is not None and _is_buried(before, row):
                del alive[key]
            else:
                continue
            if before is not None:
                dead.append((key, before))
        self._leave([*alive, *(key for key, _ in dead)])
        return alive, dead

    def _leave(self, keys: list[int]) -> None:
        self.by_stream.subtract(map(stream_of, keys))
        for stream in {stream_of(key) for key in keys}:
            if not self.by_stream[stream]:
                del self.by_stream[stream]

    def sweep(self) -> list[tuple[int, Row]]:
        """Apply the tombstones of buckets that are half garbage; what they put aside."""
        garbage = []
        for bucket in [*self._entering]:
            content = self._contents[bucket]
            if content.tombstones * 2 >= content.rows:
                alive, dead = self.open(bucket)
                garbage += dead
                for key, row in alive.items():
                    self.add(bucket, key, row)
        return garbage

    def save(self) -> None:
        for bucket, entries in self._entering.items():
            content = self._contents[bucket]
            if content.parts and content.tail_rows + len(entries) <= PART_ROWS_MAX:
                tail = unpack_rows(self._shelf.get(_part_name(bucket, content.parts - 1)))
                joined = [*tail, *entries]
            else:
                content.parts += 1
                joined = entries
            content.tail_rows = len(joined)
            name = _part_name(bucket, content.parts - 1)
            self._dropped.discard(name)
            self._shelf.put(name, pack_rows([key for key, _ in joined], [row for _, row in joined]))
        for name in self._dropped:
            self._shelf.delete(name)
        self._entering.clear()
        self._dropped.clear()


def _is_buried(row: Row, tombstone: Row) -> bool:
    deadline, minus_attempt, *_ = tombstone
    return deadline in {ANY_DEADLINE, row[0]} and -minus_attempt in {ANY_ATTEMPT, row[1]}


def _part_name(bucket: Bucket, part: int) -> str:
    return f"cold/{bucket[0]}/{bucket[1]}/{part}"


class GivenUp:
    """Where in the wheel the messages of real topics lie: those that a consumer gave up with a far deadline.

    A consumer may lease such a message again (its offset commit was lost), or end it by a handle that knows
    another deadline. Pages of neighbouring offsets answer that exactly, and a stream without cold rows costs nothing.
    Messages that were delayed when they were sent need no pages: they lie at no offset that a consumer could read.
    """

    _PAGE_BITS = 14

    def __init__(self, shelf: Shelf, directory: Sequence[int] = ()) -> None:
        self._shelf = shelf
        self._pages = set(directory)
        self._read: dict[int, dict[int, Row]] = {}
        self._changed: set[int] = set()

    def directory(self) -> list[int]:
        return [*self._pages]

    def find(self, key: int) -> Row | None:
        page = key >> self._PAGE_BITS
        return self._rows(page).get(key) if page in self._pages else None

    def add(self, key: int, row: Row) -> None:
        page = key >> self._PAGE_BITS
        self._rows(page)[key] = row
        self._pages.add(page)
        self._changed.add(page)

    def remove(self, key: int, row: Row) -> None:
        """Forget a row; a later one under the same key stays."""
        if self.find(key) == row:
            page = key >> self._PAGE_BITS
            del self._read[page][key]
            self._changed.add(page)

    def _rows(self, page: int) -> dict[int, Row]:
        rows = self._read.get(page)
        if rows is None:
            rows = self._read[page] = dict(
                unpack_rows(self._shelf.get(f"given/{page}") if page in self._pages else None)
            )
        return rows

    def save(self) -> None:
        for page in self._changed:
            rows = self._read[page]
            if rows:
                self._shelf.put(f"given/{page}", pack_rows([*rows], [*rows.values()]))
            else:
                self._shelf.delete(f"given/{page}")
                self._pages.discard(page)
        self._read.clear()
        self._changed.clear()
