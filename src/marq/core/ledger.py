"""The ledger: what is leased, held or delayed, and what must happen to it when its deadline has passed.

One ledger per markers partition. Records of that partition go in, in the order of the log; letters (redelivered
copies and dead letters) and confirmations come out. It reads no clock: *now* is the largest broker timestamp seen.
A batch, on any host: make a `Ledger` on the shelf, `apply` every record, `collect` once, `save`.

The rules:

- A message is due when now is past its deadline (strictly).
- START leases it, or enters a delay (`waiting`, no owner). A second START moves deadline and owner, and never
  lowers the attempt. A START that names a deadline replaces the delay that was entered with it (0: whichever).
- KEEPALIVE and RETRY count only from the present owner and only while the lease is live: they never resurrect one.
- END removes, whoever sends it.
- A due message that waits is delivered with the attempt it waits for; one whose attempt had begun gets the next
  attempt, or becomes a dead letter when its attempts are used up.
- REDELIVERED and DEAD say that a letter *is* durable. They are therefore handed out one collection after their
  letters: a host calls `collect` again only when what the last call gave it is on disk. A crash in between repeats
  letters (same id, same attempt); it never loses one, not even when the ledger is rebuilt from the log alone.
- Until the log has been read up to the `gate`, nothing is given out: what happened since is not known yet.

Where the rows lie is the book's business (book.py). This is what becomes of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from marq.core.book import Book
from marq.core.names import NOBODY
from marq.core.records import (
    DURATION_MS_MAX,
    WIRE_VERSION,
    Kind,
    Letter,
    Marker,
    at,
    copy_of,
    dead_letter_of,
    decode,
    encode,
    is_topic_name,
    original_of,
    select,
    split,
    spread,
    target_of,
)
from marq.core.shelf import Row, Shelf, offset_of, row_key, stream_of
from marq.core.wheel import ANY_ATTEMPT, ANY_DEADLINE, Bucket, bucket_of
from marq.errors import MalformedMarkerError

if TYPE_CHECKING:
    from collections.abc import Iterator

LEASE_EXPIRED = "lease expired"
NO_TARGET = "no topic to deliver to"
CONFIRMATION_BYTES_MAX = 256_000
CONFIRM_AFTER_MS = 1000
LETTERS_BYTES_MAX = 32 << 20  # of one collection; what is left is due at once again
SOON = 0  # the tier of segments whose messages are leased, or due soon

_Fresh = tuple[int, int, Bucket | None, int, int]  # position, key, bucket, deadline, attempt
_Settled = dict[tuple[int, str], list[tuple[int, int, int]]]  # stream, reason of death: offset, deadline, attempt


@dataclass(slots=True)
class Harvest:
    """What a collection gives out."""

    letters: list[Letter] = field(default_factory=list)  # in the order of their deadlines
    markers: list[bytes] = field(default_factory=list)  # for this markers partition
    redelivered: int = 0
    dead: int = 0
    lateness_ms: list[int] = field(default_factory=list)  # of each letter, on the broker's clock
    next_due: int | None = None  # when to look again, on the broker's clock; None: nothing waits


class Ledger:
    """The state of one markers partition."""

    def __init__(self, shelf: Shelf, *, gate: int = 0) -> None:
        self._book = Book(shelf)
        self._gate = gate
        self.gate_is_open = gate <= max(0, self._book.read_to)
        self.counts: Counter[str] = Counter()

    @property
    def now(self) -> int:
        """The largest broker timestamp seen."""
        return self._book.now

    @property
    def hot(self) -> int:
        """Messages leased, held or due soon."""
        return self._book.hot_count

    @property
    def cold(self) -> int:
        """Messages delayed for longer, among them cancelled ones that have not been swept out yet."""
        return len(self._book.wheel)

    # What comes in

    def apply(self, offset: int, timestamp: int, value: bytes | None) -> None:
        """One record of the markers partition. Whatever is in it, the ledger goes on."""
        self._book.read_to = offset
        if offset >= self._gate:
            self.gate_is_open = True
        if not 0 <= timestamp < DURATION_MS_MAX:
            self.counts["odd_timestamp"] += 1
            return
        self._book.now = max(self._book.now, timestamp)
        try:
            marker = decode(value, payload=False)
        except MalformedMarkerError:
            self.counts["malformed"] += 1
            return
        if marker.version > WIRE_VERSION:
            self.counts["newer_version"] += 1
        self._follow(marker, timestamp, value or b"")

    def _follow(self, marker: Marker, timestamp: int, record: bytes) -> None:
        match marker.kind:
            case Kind.START:
                self._start(marker, timestamp, record)
            case Kind.KEEPALIVE:
                self._keep_alive(marker, timestamp)
            case Kind.RETRY:
                self._retry(marker, timestamp)
            case Kind.END:
                self._end(marker)
            case Kind.REDELIVERED | Kind.DEAD:
                self._confirmed(marker)
            case Kind.TICK:
                pass
            case _:
                self.counts["unknown_kind"] += 1

    def _start(self, marker: Marker, timestamp: int, record: bytes) -> None:
        offsets = marker.offsets
        count = len(offsets)
        if len(set(offsets)) < count:
            self._start_one_by_one(timestamp, record)
            return
        stream = row_key(self._book.names.stream(marker.stream), 0)
        owner = self._book.names.owner(marker.owner)
        owned = owner << 1 | marker.waiting
        self._replace_delays(marker, stream)
        hot, find_given_up = self._book.hot, self._book.given_up.find
        afters = spread(marker.redeliver_after_ms, count, 0)
        attempts = spread(marker.attempts, count, 1)
        tiers: defaultdict[int, list[_Fresh]] = defaultdict(list)
        left = []  # a payload of before: the topic may have been made anew, and its offsets with it
        for position, (offset, after, attempt) in enumerate(zip(offsets, afters, attempts, strict=True)):
            key = stream | offset
            deadline = timestamp + after
            bucket = None if owner else bucket_of(deadline, self.now)
            row = hot.pop(key, None)
            if row is not None:
                left.append(row[3])
            else:
                row = find_given_up(key)
                if row is not None:
                    self._book.bury(key, row)
            known = row[1] if row is not None else 0
            tiers[bucket[0] if bucket else SOON].append((position, key, bucket, deadline, max(attempt, known)))
        if left:
            self._book.segments.release(left)
            self._book.hot_changed = True
        for tier, fresh in tiers.items():
            if len(tiers) == 1:
                self._enter(tier, record, count, fresh, owned)
            else:
                part = encode(select(decode(record), [position for position, *_ in fresh]))
                self._enter(tier, part, len(fresh), [(i, *each[1:]) for i, each in enumerate(fresh)], owned)

    def _start_one_by_one(self, timestamp: int, record: bytes) -> None:
        """A START that names a message twice: the second is a START like any other."""
        marker = decode(record)
        for position in range(len(marker.offsets)):
            one = select(marker, [position])
            self._start(one, timestamp, encode(one))

    def _replace_delays(self, marker: Marker, stream: int) -> None:
        """A delay that is entered anew, with another time: its sender names the deadline that no longer holds."""
        if marker.deadlines and not marker.topic and stream_of(stream) in self._book.wheel.by_stream:
            deadlines = spread(marker.deadlines, len(marker.offsets), ANY_DEADLINE)
            for offset, deadline in zip(marker.offsets, deadlines, strict=True):
                self._book.wheel.bury(stream | offset, deadline)

    def _enter(self, tier: int, record: bytes, count: int, fresh: list[_Fresh], owned: int) -> None:
        """Messages not known before, and the record that brought them."""
        first = self._book.segments.add(tier, record, count, len(fresh), self.now)
        if tier == SOON:
            self._book.hot.update((key, (due, attempt, owned, first + index)) for index, key, _, due, attempt in fresh)
            self._book.hot_changed = True
            return
        for index, key, bucket, due, attempt in fresh:
            self._book.put(key, (due, attempt, owned, first + index), bucket)

    def _keep_alive(self, marker: Marker, timestamp: int) -> None:
        if not marker.redeliver_after_ms:
            self.counts["malformed"] += 1  # taken as zero it would end the lease that it means to extend
            return
        for key, row, after, _ in self._live(marker):
            self._book.hot[key] = (timestamp + after, row[1], row[2] & ~1, row[3])
            self._book.hot_changed = True

    def _retry(self, marker: Marker, timestamp: int) -> None:
        for key, row, after, attempt in self._live(marker):
            owned = NOBODY << 1 | 1 if marker.released else row[2] & ~1 | marker.waiting
            self._book.lay(key, (timestamp + after, max(row[1], attempt or row[1] + 1), owned, row[3]))

    def _live(self, marker: Marker) -> Iterator[tuple[int, Row, int, int]]:
        """The messages of a batch whose lease is live and belongs to the sender, with the columns of the batch."""
        stream = row_key(self._book.names.known_stream(marker.stream) or 0, 0)
        owner = self._book.names.known_owner(marker.owner)
        count = len(marker.offsets)
        columns = (spread(marker.redeliver_after_ms, count, 0), spread(marker.attempts, count, 0))
        for offset, after, attempt in zip(marker.offsets, *columns, strict=True):
            row = self._book.hot.get(stream | offset)
            if row is None or owner == NOBODY or row[2] >> 1 != owner or self.now > row[0]:
                self.counts["stale"] += 1
            else:
                yield stream | offset, row, after, attempt

    def _end(self, marker: Marker) -> None:
        stream = row_key(self._book.names.known_stream(marker.stream) or 0, 0)
        hot = self._book.hot
        places = []
        for position, offset in enumerate(marker.offsets):
            row = hot.pop(stream | offset, None)
            if row is not None:
                places.append(row[3])
            elif not self._end_cold(stream | offset, at(marker.deadlines, position, ANY_DEADLINE)):
                self.counts["unknown_end"] += 1
        if places:
            self._book.segments.release(places)
            self._book.hot_changed = True

    def _end_cold(self, key: int, deadline: int) -> bool:
        row = self._book.given_up.find(key)
        if row is not None:
            self._book.bury(key, row)
            return True
        return self._book.may_be_delayed(key) and self._book.wheel.bury(key, deadline)

    def _confirmed(self, marker: Marker) -> None:
        """A letter is durable. The lease it names is over; a later lease on the same message is not."""
        stream = row_key(self._book.names.known_stream(marker.stream) or 0, 0)
        for position, offset in enumerate(marker.offsets):
            key = stream | offset
            deadline = at(marker.deadlines, position, ANY_DEADLINE)
            attempt = at(marker.attempts, position, ANY_ATTEMPT)
            if deadline == ANY_DEADLINE:
                continue
            row = self._book.hot.get(key)
            if row is not None:
                if row[0] == deadline and attempt in {ANY_ATTEMPT, row[1]}:
                    self._book.remove(key, row)
                continue
            row = self._book.given_up.find(key)
            if row is not None:
                if row[0] == deadline and attempt in {ANY_ATTEMPT, row[1]}:
                    self._book.bury(key, row)
            elif self._book.may_be_delayed(key):
                self._book.wheel.bury(key, deadline, attempt)

    # What goes out

    def collect(self) -> Harvest:
        """What is due, and the confirmations of what was given out last time."""
        harvest = Harvest(markers=self._book.confirmations)
        if harvest.markers:
            self._book.confirmations = []
            self._book.confirmations_changed = True
        for bucket in self._book.wheel.ripe(self.now):
            self._book.open(bucket)
        first = self._book.first_deadline()
        if self.gate_is_open and first is not None and first < self.now:
            self._give_out(harvest)
        harvest.next_due = self._next_due()
        return harvest

    def _next_due(self) -> int | None:
        first = self._book.first_deadline()
        waits = (
            first + 1 if first is not None else None,
            self._book.wheel.next_opening(),
            self.now + CONFIRM_AFTER_MS if self._book.confirmations else None,
        )
        return min((wait for wait in waits if wait is not None), default=None)

    def _give_out(self, harvest: Harvest) -> None:
        due = sorted((row[0], key, row) for key, row in self._book.hot.items() if row[0] < self.now)
        settled: _Settled = defaultdict(list)
        places, size = [], 0
        for deadline, key, row in due:
            if size >= LETTERS_BYTES_MAX:
                break
            del self._book.hot[key]
            places.append(row[3])
            letter, reason = self._letter(row)
            if letter is not None:
                size += letter.size
                harvest.letters.append(letter)
                harvest.lateness_ms.append(self.now - deadline)
            settled[stream_of(key), reason].append((offset_of(key), deadline, row[1]))
            if reason:
                harvest.dead += 1
            else:
                harvest.redelivered += 1
        self._book.segments.release(places)
        self._book.segments.forget_read()
        self._book.confirmations = [*self._book.confirmations, *self._confirm(settled)]
        self._book.hot_changed = self._book.confirmations_changed = True

    def _letter(self, row: Row) -> tuple[Letter | None, str]:
        """The letter for a due message, and for a dead one the reason."""
        _, attempt, owned, place = row
        marker, position = self._book.segments.fetch(place)
        if not marker.values:
            self.counts["missing_payload"] += 1
        original = original_of(marker, position)
        coming = attempt if owned & 1 else attempt + 1
        topic, partition = target_of(marker, position)
        if marker.max_attempts and coming > marker.max_attempts:
            reason = LEASE_EXPIRED
        elif is_topic_name(topic):
            return copy_of(original, topic=topic, partition=partition, attempt=coming), ""
        else:
            reason = NO_TARGET
            self.counts["undeliverable"] += 1
        if not is_topic_name(marker.dead_letter_topic):
            return None, reason
        attempts = max(1, coming - 1)
        return dead_letter_of(original, topic=marker.dead_letter_topic, attempts=attempts, reason=reason), reason

    def _confirm(self, settled: _Settled) -> Iterator[bytes]:
        for (stream, reason), entries in settled.items():
            queue, topic, partition = self._book.names.stream_by(stream)
            offsets, deadlines, attempts = (list(column) for column in zip(*entries, strict=True))
            marker = Marker(
                Kind.DEAD if reason else Kind.REDELIVERED,
                queue=queue,
                topic=topic,
                partition=partition,
                offsets=offsets,
                deadlines=deadlines,
                attempts=attempts,
                reason=reason,
            )
            yield from map(encode, split(marker, CONFIRMATION_BYTES_MAX))

    # What stays

    def save(self) -> None:
        """Write what has changed."""
        self._book.save()
