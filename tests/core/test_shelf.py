"""The blobs on the shelf: rows, lists of blobs, names and segments come back as they were written."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marq.core import segments as segments_module
from marq.core.names import NOBODY, Names
from marq.core.records import Kind, Marker, encode
from marq.core.segments import COMPACT_AFTER_MS, SLOT_BITS, Segments
from marq.core.shelf import (
    NAMES,
    DictShelf,
    offset_of,
    pack_blobs,
    pack_rows,
    row_key,
    stream_of,
    unpack_blobs,
    unpack_rows,
)
from marq.errors import LedgerStateError

small = st.integers(0, 2**31 - 1)
large = st.integers(0, 2**62)
keys = st.builds(row_key, small, st.integers(0, 2**50 - 1))
rows = st.tuples(large, small, small, large)


@given(st.lists(st.tuples(keys, rows), max_size=8))
def test_rows_come_back_as_they_were(pairs: list) -> None:
    blob = pack_rows([key for key, _ in pairs], [row for _, row in pairs])
    assert list(unpack_rows(blob)) == pairs


@given(keys)
def test_a_key_names_stream_and_offset(key: int) -> None:
    assert row_key(stream_of(key), offset_of(key)) == key


def test_no_blob_holds_no_rows() -> None:
    assert list(unpack_rows(None)) == []


@pytest.mark.parametrize("blob", [b"", b"\x01", b"\x01\x00\x00\x00", pack_rows([1], [(1, 1, 1, 1)]) + b"x"])
def test_a_blob_of_the_wrong_length_is_refused_with_what_to_do(blob: bytes) -> None:
    with pytest.raises(LedgerStateError, match="new checkpoint folder"):
        unpack_rows(blob)


@given(st.lists(st.binary(max_size=5), max_size=5))
def test_blobs_come_back_as_they_were(blobs: list[bytes]) -> None:
    assert unpack_blobs(pack_blobs(blobs)) == blobs


def test_no_blob_holds_no_blobs() -> None:
    assert unpack_blobs(None) == []


def test_a_shelf_in_memory() -> None:
    shelf = DictShelf()
    shelf.put("a", b"1")
    assert shelf.get("a") == b"1"
    shelf.delete("a")
    shelf.delete("a")
    assert shelf.get("a") is None


# Names


def test_names_keep_their_numbers() -> None:
    shelf = DictShelf()
    names = Names(shelf)
    stream = names.stream(("q", "t", 1))
    owner = names.owner("consumer-1")
    assert (names.owner(""), names.known_owner("")) == (NOBODY, NOBODY)
    assert len({stream, owner, NOBODY}) == 3
    names.save()
    again = Names(shelf)
    assert again.stream(("q", "t", 1)) == again.known_stream(("q", "t", 1)) == stream
    assert again.owner("consumer-1") == again.known_owner("consumer-1") == owner
    assert again.stream_by(stream) == ("q", "t", 1)
    assert again.known_stream(("q", "t", 2)) is None
    assert again.known_owner("consumer-2") == NOBODY
    shelf.clear()
    again.save()
    assert shelf == {}, "nothing changed, so nothing is written"


def test_a_pruned_number_is_never_given_again() -> None:
    shelf = DictShelf()
    names = Names(shelf)
    keep, drop = names.stream(("q", "t", 1)), names.stream(("q", "t", 2))
    owner = names.owner("consumer-1")
    names.prune([keep], [])
    names.save()
    again = Names(shelf)
    assert len(again) == 1
    assert again.known_stream(("q", "t", 1)) == keep
    assert again.known_owner("consumer-1") == NOBODY
    assert again.stream(("q", "t", 2)) not in {keep, drop, owner}
    assert json.loads(shelf[NAMES])["next"] == 4


# Segments


def start(*offsets: int, size: int = 1) -> bytes:
    return encode(Marker(Kind.START, "q", "t", 0, list(offsets), values=[b"%d" % o * size for o in offsets]))


def reopened(shelf: DictShelf, old: Segments) -> Segments:
    old.save()
    return Segments(shelf, json.loads(json.dumps(old.directory())))


def payload(held: Segments, place: int) -> bytes | None:
    marker, position = held.fetch(place)
    held.forget_read()
    return marker.values[position]


def test_a_payload_is_found_by_its_place() -> None:
    shelf = DictShelf()
    held = Segments(shelf)
    first = held.add(0, start(10, 11), 2, 2, now=0)
    second = held.add(0, start(12), 1, 1, now=0)
    places = [first, first + 1, second]
    assert [payload(held, place) for place in places] == [b"10", b"11", b"12"]
    held = reopened(shelf, held)
    assert [payload(held, place) for place in places] == [b"10", b"11", b"12"]
    with pytest.raises(LedgerStateError):
        held.fetch(second + 1)


def test_a_small_segment_is_continued_by_the_next_batch() -> None:
    shelf = DictShelf()
    held = Segments(shelf)
    places = []
    for offset in range(5):
        places.append(held.add(0, start(offset), 1, 1, now=offset))
        held = reopened(shelf, held)
    assert (len(held), len(shelf)) == (1, 1)
    assert [payload(held, place) for place in places] == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("limit", ["CONTINUE_BYTES_MAX", "CONTINUE_SLOTS_MAX"])
def test_a_full_segment_is_not_continued(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments_module, limit, 1)
    shelf = DictShelf()
    held = Segments(shelf)
    for offset in range(3):
        held.add(0, start(offset), 1, 1, now=0)
        held = reopened(shelf, held)
    assert len(shelf) == 3


def test_tiers_do_not_share_a_segment() -> None:
    shelf = DictShelf()
    held = Segments(shelf)
    short, long = held.add(0, start(1), 1, 1, now=0), held.add(9, start(2), 1, 1, now=0)
    held = reopened(shelf, held)
    held.release([short])
    held = reopened(shelf, held)
    assert len(shelf) == 1
    assert payload(held, long) == b"2"


def test_a_segment_goes_with_its_last_message() -> None:
    shelf = DictShelf()
    held = Segments(shelf)
    first = held.add(0, start(1, 2), 2, 2, now=0)
    held = reopened(shelf, held)
    held.release([first])
    held = reopened(shelf, held)
    assert len(shelf) == 1
    held.release([first + 1])
    held = reopened(shelf, held)
    assert (len(held), shelf) == (0, {})


def test_a_segment_that_dies_in_its_own_batch_is_never_written() -> None:
    class Untouched(DictShelf):
        def put(self, key: str, value: bytes, /) -> None:
            raise AssertionError(key)

        delete = put

    held = Segments(Untouched())
    place = held.add(0, start(1), 1, 1, now=0)
    held.release([place])
    assert held.add(0, start(2), 1, 1, now=0) >> SLOT_BITS != place >> SLOT_BITS
    held.release([place + (1 << SLOT_BITS)])
    held.save()


def test_a_lost_blob_is_an_error_that_says_what_to_do() -> None:
    shelf = DictShelf()
    held = Segments(shelf)
    place = held.add(0, start(1), 1, 1, now=0)
    held = reopened(shelf, held)
    shelf.clear()
    with pytest.raises(LedgerStateError, match="new checkpoint folder"):
        held.fetch(place)


def test_a_mostly_dead_segment_is_rewritten_in_place() -> None:
    shelf = DictShelf()
    held = Segments(shelf)
    first = held.add(0, start(1, 2, 3, 4, size=10_000), 4, 4, now=0)
    held.add(0, start(5, 6, 7, 8, size=10_000), 4, 4, now=0)
    held = reopened(shelf, held)
    number = first >> SLOT_BITS
    held.release([first, first + 1, first + 2, first + 4, first + 5])
    assert held.garbage(COMPACT_AFTER_MS) == {}, "three of eight are alive"
    held.release([first + 6])
    assert held.garbage(COMPACT_AFTER_MS - 1) == {}, "young: it may soon die whole"
    assert held.garbage(COMPACT_AFTER_MS) == {number: 2}
    held.compact(number, {3, 7})
    held.looked_at(number)
    assert held.garbage(COMPACT_AFTER_MS) == {}
    held = reopened(shelf, held)
    assert len(shelf[f"seg/{number}"]) < 21_000
    assert payload(held, first + 3) == b"4" * 10_000
    assert payload(held, first + 7) == b"8" * 10_000
    held.release([first + 7])
    held.compact(number, {3})
    assert payload(held, first + 3) == b"4" * 10_000
    with pytest.raises(LedgerStateError):
        held.fetch(first + 7)


def test_markers_name_the_places_of_a_segment() -> None:
    held = Segments(DictShelf())
    first = held.add(0, start(1, 2), 2, 2, now=0)
    held.add(0, start(3), 1, 1, now=0)
    listed = [(place, marker.offsets) for place, marker in held.markers(first >> SLOT_BITS)]
    assert listed == [(first, [1, 2]), (first + 2, [3])]
