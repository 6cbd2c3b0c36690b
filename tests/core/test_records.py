"""The wire format: what is written is what is read, and whatever is read harms nobody."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marq.core import records
from marq.core.marker_pb2 import Header, Headers, MarkerBatch
from marq.core.records import (
    ATTEMPT_MAX,
    DURATION_MS_MAX,
    OFFSET_MAX,
    Kind,
    Letter,
    Marker,
    Original,
    Provenance,
    at,
    blank,
    copy_of,
    dead_letter_of,
    decode,
    encode,
    home,
    is_topic_name,
    message_id,
    original_of,
    provenance,
    select,
    split,
    spread,
    stream_key,
    target_of,
)
from marq.errors import MalformedMarkerError

ORIGINAL = Original("emails", "marq.messages-0", 3, 17, b"emails", b"hello", [("user", b"7"), ("none", None)], 1234)

names = st.text(max_size=8)
blobs = st.none() | st.binary(max_size=6)
headers = st.lists(st.tuples(st.text(max_size=4), blobs), max_size=3)


@st.composite
def markers(draw: st.DrawFn) -> Marker:
    count = draw(st.integers(0, 5))

    def column(values: st.SearchStrategy[object]) -> list:
        length = draw(st.sampled_from([0, 1, count]))
        return draw(st.lists(values, min_size=length, max_size=length))

    return Marker(
        kind=draw(st.integers(0, 20)),
        queue=draw(names),
        topic=draw(names),
        partition=draw(st.integers(-(2**31), 2**31 - 1)),
        offsets=draw(st.lists(st.integers(0, OFFSET_MAX - 1), min_size=count, max_size=count)),
        owner=draw(names),
        redeliver_after_ms=column(st.integers(0, DURATION_MS_MAX - 1)),
        deadlines=column(st.integers(0, DURATION_MS_MAX - 1)),
        attempts=column(st.integers(1, ATTEMPT_MAX - 1)),
        waiting=draw(st.booleans()),
        released=draw(st.booleans()),
        reason=draw(names),
        max_attempts=draw(st.integers(0, 2**32 - 1)),
        dead_letter_topic=draw(names),
        target_partitions=column(st.integers(-(2**31), 2**31 - 1)),
        target_topic=draw(names),
        keys=column(blobs),
        values=column(blobs),
        headers=column(headers),
        timestamps=column(st.integers(0, DURATION_MS_MAX - 1)),
    )


def settled_headers(marker: Marker) -> Marker:
    """Headers that are all empty are not written at all."""
    if not any(marker.headers):
        marker.headers = []
    return marker


@given(markers())
def test_what_is_written_is_what_is_read(marker: Marker) -> None:
    assert decode(encode(marker)) == settled_headers(marker)


@given(markers())
def test_without_payload_everything_else_is_the_same(marker: Marker) -> None:
    light = decode(encode(marker), payload=False)
    assert light.keys == light.values == light.headers == []
    light.keys, light.values, light.headers = marker.keys, marker.values, marker.headers
    assert settled_headers(light) == settled_headers(marker)


@given(st.binary(max_size=200))
@settings(max_examples=300)
def test_any_bytes_are_a_marker_or_malformed(data: bytes) -> None:
    with suppress(MalformedMarkerError):
        assert isinstance(decode(data), Marker)


numbers = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3)
batches = st.builds(
    MarkerBatch,
    version=st.integers(0, 3),
    kind=st.integers(0, 9),
    queue=names,
    offsets=numbers,
    redeliver_after_ms=numbers,
    deadlines=numbers,
    attempts=st.lists(st.integers(0, 2**32 - 1), max_size=3),
    keys=st.lists(st.binary(max_size=3), max_size=3),
    null_keys=st.lists(st.integers(0, 4), max_size=2),
    values=st.lists(st.binary(max_size=3), max_size=3),
    null_values=st.lists(st.integers(0, 4), max_size=2),
    timestamps=numbers,
)


@given(batches)
@settings(max_examples=200)
def test_any_batch_is_refused_at_once_or_never(batch: MarkerBatch) -> None:
    """The ledger keeps a START after reading it without payload: reading the payload later must not fail."""
    data = batch.SerializeToString()
    try:
        decode(data, payload=False)
    except MalformedMarkerError:
        with pytest.raises(MalformedMarkerError):
            decode(data)
    else:
        marker = decode(data)
        assert all(0 <= offset < OFFSET_MAX for offset in marker.offsets)
        for position in range(len(marker.offsets)):
            original_of(marker, position)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"version": 0}, "without a version"),
        ({"queue": "q" * 1001}, "more than 1000 characters"),
        ({"owner": "o" * 1001}, "more than 1000 characters"),
        ({"offsets": [1, 1, 1], "attempts": [1, 2]}, "3 offsets but 2 attempts"),
        ({"offsets": [1], "values": [b"a", b"b"]}, "1 offsets but 2 values"),
        ({"offsets": [1], "headers": [Headers(headers=[Header(name="a")]), Headers()]}, "1 offsets but 2 headers"),
        ({"keys": [b"a"], "null_keys": [1]}, "beyond the end"),
        ({"values": [b"a"], "null_values": [1]}, "beyond the end"),
        ({"offsets": [-1]}, "offsets out of range"),
        ({"offsets": [OFFSET_MAX - 1, 1]}, "offsets out of range"),
        ({"offsets": [1], "redeliver_after_ms": [-1]}, "redeliver_after_ms out of range"),
        ({"offsets": [1], "redeliver_after_ms": [DURATION_MS_MAX]}, "redeliver_after_ms out of range"),
        ({"offsets": [1], "deadlines": [-1]}, "deadlines out of range"),
        ({"offsets": [1], "timestamps": [DURATION_MS_MAX]}, "timestamps out of range"),
        ({"offsets": [1], "attempts": [0]}, "attempts out of range"),
        ({"offsets": [1], "attempts": [ATTEMPT_MAX]}, "attempts out of range"),
    ],
)
def test_what_would_break_the_arithmetic_is_malformed(fields: dict, complaint: str) -> None:
    batch = MarkerBatch(**{"version": 1, "kind": Kind.START, **fields})
    with pytest.raises(MalformedMarkerError, match=complaint):
        decode(batch.SerializeToString())


@pytest.mark.parametrize("data", [None, b"", b"\xff\xff\xff", b"not a marker"])
def test_what_is_no_protobuf_is_malformed(data: bytes | None) -> None:
    with pytest.raises(MalformedMarkerError):
        decode(data)


def test_fields_of_later_versions_are_skipped() -> None:
    later = encode(Marker(Kind.END, offsets=[1, 2])) + b"\xaa\x06\x03new"  # field 101, a string
    assert decode(later) == Marker(Kind.END, offsets=[1, 2])


def test_a_column_of_one_holds_for_all() -> None:
    assert [at(column, 1, 9) for column in ([], [5], [5, 6])] == [9, 5, 6]
    assert [list(spread(column, 2, 9)) for column in ([], [5], [5, 6])] == [[9, 9], [5, 5], [5, 6]]


@given(markers(), st.integers(1, 200))
def test_parts_of_a_split_are_the_whole(marker: Marker, bytes_max: int) -> None:
    parts = list(split(marker, bytes_max))
    assert [offset for part in parts for offset in part.offsets] == marker.offsets
    assert all(len(part.offsets) > 0 for part in parts) or parts == [marker]
    after = [at(part.redeliver_after_ms, i, -1) for part in parts for i in range(len(part.offsets))]
    assert after == [at(marker.redeliver_after_ms, i, -1) for i in range(len(marker.offsets))]
    payloads = [at(part.values, i, None) for part in parts for i in range(len(part.offsets))]
    assert payloads == [at(marker.values, i, None) for i in range(len(marker.offsets))]


def test_a_split_respects_the_size() -> None:
    marker = Marker(Kind.START, offsets=[1, 2, 3, 4], values=[b"x" * 100] * 4, headers=[[("h", b"v" * 50)]] * 4)
    parts = list(split(marker, 450))
    assert [part.offsets for part in parts] == [[1, 2], [3, 4]]
    assert all(len(encode(part)) <= 450 for part in parts)
    assert list(split(marker, 10_000)) == [marker]


def test_a_selection_keeps_what_was_said_of_each() -> None:
    marker = Marker(Kind.START, offsets=[1, 2, 3], attempts=[7, 8, 9], redeliver_after_ms=[5], keys=[b"a", None, b"c"])
    assert select(marker, [2, 0]) == Marker(
        Kind.START, offsets=[3, 1], attempts=[9, 7], redeliver_after_ms=[5], keys=[b"c", b"a"]
    )


def test_blanking_keeps_positions() -> None:
    marker = Marker(
        Kind.START, offsets=[1, 2], keys=[b"k"], values=[b"a", b"b"], headers=[[("h", b"1")], [("h", b"2")]]
    )
    kept = blank(marker, {1})
    assert (kept.offsets, kept.keys, kept.values, kept.headers) == (
        [1, 2], [b"", b"k"], [b"", b"b"], [[], [("h", b"2")]],
    )  # fmt: skip
    assert original_of(decode(encode(kept)), 1) == original_of(marker, 1)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (None, Provenance()),
        ([("user", b"1")], Provenance()),
        ([("marq-attempt", b"3"), ("marq-id", b"t/0/1"), ("marq-timestamp", b"99")], Provenance(3, "t/0/1", 99)),
        ([("marq-attempt", "3")], Provenance(3)),
        ([("marq-attempt", b"0")], Provenance()),
        ([("marq-attempt", b"-1")], Provenance()),
        ([("marq-attempt", b"two")], Provenance()),
        ([("marq-attempt", None)], Provenance()),
        ([("marq-attempt", "\N{SUPERSCRIPT TWO}")], Provenance()),
        ([("marq-attempt", b"%d" % ATTEMPT_MAX)], Provenance()),
        ([("marq-attempt", b"9" * 10_000)], Provenance()),
        ([("marq-timestamp", b"later")], Provenance()),
        ([("marq-id", b"\xff")], Provenance(id="\N{REPLACEMENT CHARACTER}")),
        ([("marq-due", b"5")], Provenance()),
    ],
)
def test_headers_tell_the_past(headers: list | None, expected: Provenance) -> None:
    assert provenance(headers) == expected


def test_a_copy_keeps_everything_and_counts_the_attempt() -> None:
    letter = copy_of(ORIGINAL, topic="marq.messages-0", partition=3, attempt=2)
    assert letter == Letter("marq.messages-0", 3, b"emails", b"hello", [
        ("user", b"7"), ("none", None),
        ("marq-id", b"marq.messages-0/3/17"), ("marq-origin", b"marq.messages-0/3/17"), ("marq-timestamp", b"1234"),
        ("marq-attempt", b"2"),
    ])  # fmt: skip


def test_a_copy_of_a_copy_keeps_the_first_history() -> None:
    first = copy_of(ORIGINAL, topic="marq.messages-0", partition=3, attempt=2)
    again = Original("emails", "marq.messages-0", 5, 400, first.key, first.value, first.headers, 9999)
    second = copy_of(again, topic="marq.messages-0", partition=5, attempt=3)
    assert second.headers == [*first.headers[:-1], ("marq-attempt", b"3")]


def test_a_delayed_message_has_an_id_but_no_origin() -> None:
    delayed = Original("emails", "", 3, 17, None, b"hello", [], None)
    letter = copy_of(delayed, topic="marq.messages-0", partition=1, attempt=1)
    assert letter.headers == [("marq-id", b"/3/17"), ("marq-attempt", b"1")]


def test_a_dead_letter_says_what_happened() -> None:
    dead_before = ORIGINAL._replace(headers=[("marq-reason", b"old"), ("marq-queue", b"old"), ("marq-attempt", b"1")])
    letter = dead_letter_of(dead_before, topic="emails.dead", attempts=5, reason="lease expired")
    assert (letter.topic, letter.partition, letter.key, letter.value) == ("emails.dead", None, b"emails", b"hello")
    assert dict(letter.headers) == {
        "marq-id": b"marq.messages-0/3/17",
        "marq-origin": b"marq.messages-0/3/17",
        "marq-timestamp": b"1234",
        "marq-attempt": b"5",
        "marq-queue": b"emails",
        "marq-reason": b"lease expired",
    }
    assert len(letter.headers) == 6


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ("t", 4)),
        ({"target_partitions": [7]}, ("t", 7)),
        ({"target_partitions": [-1]}, ("t", None)),
        ({"target_topic": "t"}, ("t", 4)),
        ({"target_topic": "other"}, ("other", None)),
        ({"target_topic": "other", "target_partitions": [2]}, ("other", 2)),
        ({"partition": -4}, ("t", None)),
    ],
)
def test_where_a_copy_goes(fields: dict, expected: tuple) -> None:
    assert (
        target_of(Marker(**{"kind": Kind.START, "topic": "t", "partition": 4, "offsets": [1], **fields}), 0) == expected
    )


@pytest.mark.parametrize("name", ["orders", "marq.messages-0", "A_b", "-", "a" * 249])
def test_names_that_kafka_takes(name: str) -> None:
    assert is_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "größe", "a\n", "a" * 250, "\N{ARABIC-INDIC DIGIT ONE}"])
def test_names_that_kafka_refuses(name: str) -> None:
    assert not is_topic_name(name)


def test_a_stream_has_one_home() -> None:
    homes = [home(stream_key("q", "t", partition), 4) for partition in range(100)]
    assert set(homes) == {0, 1, 2, 3}
    assert homes[:5] == [home(stream_key("q", "t", partition), 4) for partition in range(5)]


def test_keys_and_ids() -> None:
    assert stream_key("q", "t", 3) == b"q\x00t\x003"
    assert message_id("t", 3, 17) == "t/3/17"
    assert set(records.__all__) <= set(dir(records))
