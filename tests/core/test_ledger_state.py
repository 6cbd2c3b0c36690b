"""What the ledger keeps: little, no longer than needed, and read only when something is to be done with it."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from marq.core import ledger as ledger_module
from marq.core import segments
from marq.core.ledger import Harvest, Ledger
from marq.core.names import UNUSED_MAX
from marq.core.records import Kind, Marker, decode, encode
from marq.core.shelf import CONFIRM, HOT, META, NAMES, DictShelf
from marq.errors import LedgerStateError

HOUR = 3_600_000
DAY = 24 * HOUR


class CountingShelf(DictShelf):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def get(self, key: str, /) -> bytes | None:  # type: ignore[override]
        self.calls.append(f"get {key}")
        return super().get(key)

    def put(self, key: str, value: bytes, /) -> None:
        self.calls.append(f"put {key}")
        super().put(key, value)

    def delete(self, key: str, /) -> None:
        self.calls.append(f"delete {key}")
        super().delete(key)


class Host:
    """Batches of markers, each a ledger of its own."""

    def __init__(self) -> None:
        self.shelf = CountingShelf()
        self.offset = 0

    def batch(self, *markers: Marker, at: int = 0) -> Harvest:
        ledger = Ledger(self.shelf)
        for marker in markers or (Marker(Kind.TICK),):
            ledger.apply(self.offset, at, encode(marker))
            self.offset += 1
        self.shelf.calls.clear()
        harvest = ledger.collect()
        ledger.save()
        return harvest

    def calls(self, *markers: Marker, at: int = 0) -> list[str]:
        self.shelf.calls.clear()
        ledger = Ledger(self.shelf)
        for marker in markers or (Marker(Kind.TICK),):
            ledger.apply(self.offset, at, encode(marker))
            self.offset += 1
        ledger.collect()
        ledger.save()
        return sorted(self.shelf.calls)

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.shelf)


def start(*offsets: int, after: int = 1000, topic: str = "t", owner: str = "a", size: int = 10, **fields) -> Marker:
    values = [b"%010d" % offset * (size // 10) for offset in offsets]
    return Marker(
        Kind.START,
        "q",
        topic,
        0,
        offsets=list(offsets),
        owner=owner,
        redeliver_after_ms=[after],
        values=values,
        **fields,
    )


def delay(*offsets: int, after: int, **fields) -> Marker:
    return start(*offsets, after=after, topic="", owner="", waiting=True, target_topic="t", **fields)


def end(*offsets: int, topic: str = "t", **fields) -> Marker:
    return Marker(Kind.END, "q", topic, 0, offsets=list(offsets), **fields)


# Round trips


def test_a_tick_with_nothing_due_reads_and_writes_one_blob() -> None:
    host = Host()
    host.batch(start(*range(100), after=60_000), delay(*range(100, 200), after=DAY))
    assert host.calls(at=1000) == ["get meta", "put meta"]
    assert host.ledger.now == 1000


def test_the_counts_need_no_rows() -> None:
    host = Host()
    host.batch(start(*range(100), after=60_000), delay(*range(100, 130), after=DAY))
    host.shelf.calls.clear()
    ledger = host.ledger
    assert (ledger.hot, ledger.cold) == (100, 30)
    assert host.shelf.calls == ["get meta"]


def test_a_batch_of_starts_and_ends_touches_few_blobs() -> None:
    host = Host()
    host.batch(start(1, after=60_000))
    assert host.calls(start(2), end(1)) == sorted(
        ["get meta", "get names", "get hot", "get seg/1", "put seg/1", "put hot", "put meta"]
    )
    assert host.calls(end(99)) == ["get hot", "get meta", "get names", "put meta"]


def test_messages_ended_in_their_own_batch_are_never_written() -> None:
    host = Host()
    host.batch(start(1, 2, 3), end(1, 2, 3))
    assert set(host.shelf) == {META, NAMES}


def test_a_letter_costs_its_segment_and_its_confirmation() -> None:
    host = Host()
    host.batch(start(1, 2))
    assert host.calls(at=2000) == sorted(
        ["get meta", "get names", "get hot", "get seg/1", "delete hot", "delete seg/1", f"put {CONFIRM}", "put meta"]
    )
    assert host.calls(at=2001) == ["delete confirm", "get confirm", "get meta", "put meta"]


def test_delays_are_only_appended() -> None:
    host = Host()
    for first in range(0, 5000, 500):
        host.batch(delay(*range(first, first + 500), after=5 * HOUR))
    calls = host.calls(delay(*range(5000, 5500), after=5 * HOUR))
    assert Counter(call.split("/")[0] for call in calls) == {
        "get meta": 1, "get names": 1, "get seg": 1, "put seg": 1, "put cold": 1, "put meta": 1,
    }  # fmt: skip


def test_a_lease_is_not_looked_for_in_the_cold() -> None:
    host = Host()
    host.batch(
        delay(*range(1000), after=5 * HOUR),
        start(*range(40_000, 40_010), after=5 * HOUR, owner="", waiting=True),
        start(3, after=60_000),
    )
    calls = host.calls(start(1, 2), end(3), end(77))
    assert not [call for call in calls if "cold" in call or "given" in call]


def test_a_start_near_a_given_up_message_reads_one_page() -> None:
    host = Host()
    host.batch(start(1, 2, after=5 * HOUR, owner="", waiting=True))
    calls = host.calls(start(3))
    assert len([call for call in calls if "given" in call]) == 1
    assert not [call for call in calls if "cold" in call]


# After the drain


def test_nothing_is_left_after_the_drain() -> None:
    host = Host()
    for batch in range(20):
        offsets = range(batch * 100, batch * 100 + 100)
        host.batch(
            start(*offsets[:40], after=60_000),
            start(*offsets[40:60], after=batch * HOUR, owner="", waiting=True),
            delay(*offsets[60:], after=batch * HOUR),
            at=batch,
        )
    for batch in range(20):
        host.batch(end(*range(batch * 100, batch * 100 + 30)), at=100)
        cancelled = range(batch * 100 + 60, batch * 100 + 80)
        host.batch(end(*cancelled, topic="", deadlines=[batch * HOUR + batch]), at=100)
    due, letters = 100, 0
    for _ in range(200):
        harvest = host.batch(at=due)
        letters += len(harvest.letters)
        if harvest.next_due is None:
            break
        due = harvest.next_due
    assert letters == 19 * (10 + 20 + 20) + 10, "the delays of the first batch were over before anything was cancelled"
    assert set(host.shelf) == {META, NAMES}
    assert sum(map(len, host.shelf.values())) < 300
    assert (host.ledger.hot, host.ledger.cold) == (0, 0)


def test_cancelled_delays_leave_at_once() -> None:
    host = Host()
    host.batch(delay(*range(1000), after=30 * DAY))
    host.batch(end(*range(1000), topic="", deadlines=[30 * DAY]))
    assert set(host.shelf) == {META, NAMES}


def test_names_of_owners_that_are_gone_are_pruned() -> None:
    host = Host()
    host.batch(delay(1, after=10**6))
    for number in range(3 * UNUSED_MAX):
        host.batch(start(number, owner=f"consumer-{number}", after=10**9), end(number - 5))
    stored = json.loads(host.shelf[NAMES])
    assert len(stored["owners"]) <= UNUSED_MAX + 10
    assert host.ledger.hot == 5
    assert [name for _, *name in stored["streams"]] == [["q", "", 0], ["q", "t", 0]]
    assert len(host.batch(at=10**6 + 1).letters) == 1, "a stream that has only cold messages keeps its name"


def test_names_go_with_the_drain_when_no_new_ones_come() -> None:
    host = Host()
    owners = range(2 * UNUSED_MAX)
    host.batch(*(start(number, owner=f"consumer-{number}", after=10**9) for number in owners))
    assert len(json.loads(host.shelf[NAMES])["owners"]) == len(owners)
    host.batch(start(10**6, 10**6 + 1, owner="consumer-1", after=10**9))
    host.batch(end(*owners))
    stored = json.loads(host.shelf[NAMES])
    assert [name for _, name in stored["owners"]] == ["consumer-1"]
    assert host.batch(end(10**6), end(10**6 + 1)).next_due is None


def test_names_are_not_gone_through_for_nothing() -> None:
    """With more rows than names, and no new name, pruning could win nothing worth a look at every row."""
    host = Host()
    owners = range(UNUSED_MAX + 10)
    host.batch(*(start(number, owner=f"consumer-{number}", after=10**9) for number in owners))
    host.batch(start(*range(10_000, 10_600), owner="consumer-1", after=10**9))
    host.batch(end(*owners))
    assert len(json.loads(host.shelf[NAMES])["owners"]) == len(owners)


# Compaction


def test_a_mostly_dead_segment_is_compacted() -> None:
    host = Host()
    host.batch(start(*range(100), after=10**9, size=1000))
    size = len(host.shelf["seg/1"])
    host.batch(end(*range(80)), at=segments.COMPACT_AFTER_MS - 1)
    assert len(host.shelf["seg/1"]) == size
    host.batch(at=segments.COMPACT_AFTER_MS)
    assert len(host.shelf["seg/1"]) < size / 4
    letters = host.batch(at=2 * 10**9).letters
    assert [letter.value for letter in letters] == [b"%010d" % offset * 100 for offset in range(80, 100)]


def test_what_dies_at_once_is_not_written() -> None:
    host = Host()
    host.batch(start(*range(100), after=10**9, size=1000), end(*range(90)))
    assert len(host.shelf["seg/1"]) < 15_000


def test_given_up_messages_do_not_keep_a_dead_segment_large() -> None:
    host = Host()
    host.batch(start(*range(100), after=10**9, size=1000))
    released = Marker(
        Kind.RETRY, "q", "t", 0, [7, 8], owner="a", redeliver_after_ms=[9 * HOUR], attempts=[2], released=True
    )
    host.batch(released, end(*range(7), *range(9, 99)), at=1)
    host.batch(at=segments.COMPACT_AFTER_MS)
    assert len(host.shelf["seg/1"]) < 5000
    host.batch(at=8 * HOUR)
    assert [letter.value for letter in host.batch(at=10 * HOUR).letters] == [
        b"%010d" % offset * 100 for offset in (7, 8)
    ]


def test_a_segment_whose_living_cannot_be_named_is_left_alone_and_not_read_each_time() -> None:
    """Delays that were cancelled lie in closed buckets: which of them live is known when those are opened."""
    host = Host()
    host.batch(*(delay(*range(i * 20, i * 20 + 20), after=(5 + i) * HOUR, size=1000) for i in range(5)))
    size = len(host.shelf["seg/1"])
    host.batch(end(*range(80), topic=""), at=1)
    calls = host.calls(at=segments.COMPACT_AFTER_MS)
    assert "get seg/1" in calls
    assert len(host.shelf["seg/1"]) == size
    assert host.calls(at=segments.COMPACT_AFTER_MS) == ["get meta", "put meta"]
    host.batch(at=9 * HOUR - 100_000)
    letters = host.batch(at=10 * HOUR).letters
    assert [letter.value for letter in letters] == [b"%010d" % offset * 100 for offset in range(80, 100)]


def test_a_message_entered_again_elsewhere_does_not_pass_for_one_that_lives_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(segments, "CONTINUE_BYTES_MAX", 1)
    host = Host()
    given_up = start(*range(100), after=5 * HOUR, owner="", waiting=True, size=1000)
    host.batch(given_up, delay(200, after=5 * HOUR))
    host.batch(start(0, after=6 * HOUR, owner="", waiting=True), end(*range(1, 100)), at=1)
    host.batch(at=segments.COMPACT_AFTER_MS)
    host.batch(at=5 * HOUR)
    assert [letter.value for letter in host.batch(at=7 * HOUR).letters] == [b"0000000200", b"0000000000"]


# The format


@pytest.mark.parametrize("stored", [{"format": 2}, {"format": None}])
def test_a_state_of_another_format_says_how_to_rebuild(stored: dict) -> None:
    shelf = DictShelf({META: json.dumps(stored).encode()})
    with pytest.raises(LedgerStateError, match=r"format .* Start with a new checkpoint folder"):
        Ledger(shelf)


@pytest.mark.parametrize("stored", [b"", b"{}", b"[]", b"\xff\xfe", b"null"])
def test_a_state_that_is_none_says_how_to_rebuild(stored: bytes) -> None:
    with pytest.raises(LedgerStateError, match="Start with a new checkpoint folder"):
        Ledger(DictShelf({META: stored}))


def test_a_damaged_index_says_how_to_rebuild() -> None:
    host = Host()
    host.batch(start(1))
    host.shelf[HOT] = b"damaged"
    with pytest.raises(LedgerStateError, match="Start with a new checkpoint folder"):
        host.batch(start(2))


def test_a_lost_payload_is_not_a_lost_message() -> None:
    """The log still has it. To go on without it would be to lose it."""
    host = Host()
    host.batch(start(1))
    del host.shelf["seg/1"]
    with pytest.raises(LedgerStateError, match="Start with a new checkpoint folder"):
        host.batch(at=5000)


# Much at once


def test_no_blob_of_payloads_is_large_but_by_one_record() -> None:
    host = Host()
    record = segments.SEGMENT_BYTES_MAX // 4 + 100
    calls = host.calls(*(start(offset, after=60_000, size=record) for offset in range(10)))
    sizes = [len(blob) for name, blob in host.shelf.items() if name.startswith("seg/")]
    assert len(sizes) == 4
    assert max(sizes) <= segments.SEGMENT_BYTES_MAX
    assert len([call for call in calls if call.startswith("put seg/")]) == 4
    host.batch(start(10, after=60_000, size=2 * segments.SEGMENT_BYTES_MAX), at=1)
    harvests = [host.batch(at=70_000) for _ in range(4)]
    values = [letter.value for harvest in harvests for letter in harvest.letters]
    assert [value[:10] for value in values] == [b"%010d" % offset for offset in range(11)]
    assert set(host.shelf) == {META, NAMES}


def test_a_large_record_does_not_continue_a_small_segment() -> None:
    host = Host()
    host.batch(start(1, after=60_000))
    calls = host.calls(start(2, after=60_000, size=segments.SEGMENT_BYTES_MAX))
    assert [call for call in calls if "seg/" in call] == ["put seg/2"]


def test_a_batch_that_fills_a_segment_does_not_wait_with_it() -> None:
    host = Host()
    ledger = Ledger(host.shelf)
    for offset in range(5):
        record = encode(start(offset, after=60_000, size=segments.SEGMENT_BYTES_MAX // 4 + 100))
        ledger.apply(offset, 0, record)
    assert [name for name in host.shelf if name.startswith("seg/")] == ["seg/1"]


def test_what_is_due_at_once_comes_out_in_bounded_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "LETTERS_BYTES_MAX", 2500)
    host = Host()
    host.batch(start(*range(5), size=1000))
    first = host.batch(at=2000)
    assert [letter.value[:10] for letter in first.letters] == [b"%010d" % offset for offset in range(3)]
    assert first.next_due == 1001, "there is more, and it is due by now"
    second = host.batch(at=2001)
    assert [letter.value[:10] for letter in second.letters] == [b"%010d" % offset for offset in (3, 4)]
    assert [decode(marker).offsets for marker in second.markers] == [[0, 1, 2]]
    assert set(host.shelf) == {META, NAMES, CONFIRM}


def test_reading_many_segments_keeps_few_of_them_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENT_BYTES_MAX", 1500)
    monkeypatch.setattr(segments, "READ_BYTES_MAX", 2500)
    shelf = CountingShelf()
    kept = segments.Segments(shelf)
    places = [kept.add(0, encode(start(offset, size=1000)), 1, 1, 0) for offset in range(3)]
    kept.save()
    shelf.calls.clear()
    for index in (0, 1, 1, 2, 0):
        marker, _ = kept.fetch(places[index])
        assert marker.offsets == [index]
    assert shelf.calls == ["get seg/1", "get seg/2", "get seg/3", "get seg/1"]
