"""The ledger and its log: confirmations, the gate, rebuilding, and records that make no sense."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marq.core.ledger import CONFIRM_AFTER_MS, Ledger
from marq.core.marker_pb2 import Headers, MarkerBatch
from marq.core.records import DURATION_MS_MAX, OFFSET_MAX, Kind, Marker, decode, encode
from marq.core.shelf import DictShelf

HOUR = 3_600_000


# Confirmations


def test_a_confirmation_follows_one_collection_after_its_letter(log) -> None:
    log.start(1, 2, at=0, attempts=[3])
    first = log.collect(2000)
    assert (len(first.letters), first.markers) == (2, [])
    assert first.next_due == 2000 + CONFIRM_AFTER_MS
    second = log.collect(2001)
    assert (second.letters, second.next_due) == ([], None)
    assert [decode(data) for data in second.markers] == [
        Marker(Kind.REDELIVERED, "q", "t", 3, offsets=[1, 2], deadlines=[1000, 1000], attempts=[3, 3])
    ]
    assert log.collect(2002).markers == []


def test_a_confirmation_does_not_delay_what_is_due_before_it(log) -> None:
    log.start(1, at=0).start(2, at=0, after=2500)
    assert log.collect(2000).next_due == 2501


def test_confirmations_are_split_by_what_they_say(log) -> None:
    log.start(1, at=0, attempts=[5]).start(2, at=0).start(3, at=0, topic="u")
    log.collect(2000)
    said = {(m.kind, m.topic, m.reason) for m in map(decode, log.collect(2000).markers)}
    assert said == {(Kind.DEAD, "t", "lease expired"), (Kind.REDELIVERED, "t", ""), (Kind.REDELIVERED, "u", "")}


def test_confirmations_of_many_letters_stay_small_enough_for_a_record(log) -> None:
    log.start(*range(20_000), at=0)
    log.collect(2000)
    markers = log.collect(2000).markers
    assert len(markers) > 1
    assert max(map(len, markers)) < 300_000
    assert sum(len(decode(data).offsets) for data in markers) == 20_000


@pytest.mark.parametrize("kind", [Kind.REDELIVERED, Kind.DEAD])
@pytest.mark.parametrize(
    ("deadlines", "attempts", "retires"),
    [([1000], [2], True), ([1000], [], True), ([1000], [1], False), ([999], [2], False), ([], [2], False)],
)
def test_a_confirmation_retires_the_lease_it_names(
    log, kind: int, deadlines: list, attempts: list, *, retires: bool
) -> None:
    log.start(1, at=0, attempts=[2]).say(kind, 1, at=500, deadlines=deadlines, attempts=attempts)
    assert log.due(2000) == ([] if retires else [b"m1"])


@pytest.mark.parametrize(("attempts", "retires"), [([2], True), ([], True), ([1], False)])
@pytest.mark.parametrize("way", ["delay", "start"])
def test_a_confirmation_retires_a_cold_one_too(log, way: str, attempts: list[int], *, retires: bool) -> None:
    getattr(log, way)(1, at=0, after=5 * HOUR, owner="", waiting=True, attempts=[2])
    topic = {"topic": ""} if way == "delay" else {}
    log.say(Kind.REDELIVERED, 1, at=1, deadlines=[5 * HOUR], attempts=attempts, **topic)
    log.say(Kind.REDELIVERED, 1, at=1, deadlines=[5 * HOUR + 1], attempts=[2], **topic)
    assert log.due(6 * HOUR) == ([] if retires else [b"m1"])


def test_a_confirmation_of_something_unknown_changes_nothing(log) -> None:
    log.say(Kind.DEAD, 1, at=0, deadlines=[5], attempts=[1]).start(1, at=0)
    assert log.due(2000) == [b"m1"]


# The gate


def test_nothing_is_given_out_before_the_gate(log) -> None:
    log = log.gated(4).start(1, at=0).start(2, at=0).end(1, at=5)
    harvest = log.collect(9000)
    assert (harvest.letters, log.ledger.gate_is_open, log.ledger.hot) == ([], False, 1)
    assert log.due(9001) == [b"m2"]
    assert log.ledger.gate_is_open


def test_a_filled_shelf_waits_for_a_new_gate(log) -> None:
    log.start(1, at=0)
    log.collect(500)
    log.gate = 4
    log.ledger = Ledger(log.shelf, gate=4)
    assert not log.ledger.gate_is_open
    assert log.due(5000) == []
    log.end(7, at=5000)
    assert log.due(5000) == [b"m1"]


def test_confirmations_do_not_wait_for_the_gate(log) -> None:
    """Their letters were on disk before the restart."""
    log.start(1, at=0)
    log.collect(2000)
    log.ledger = Ledger(log.shelf, gate=99)
    assert len(log.ledger.collect().markers) == 1


def test_a_rebuild_redelivers_only_what_is_still_in_flight(log) -> None:
    log.start(1, 2, 3, at=0).end(1, at=100)
    assert len(log.collect(2000).letters) == 2
    for data in log.collect(2001).markers:
        log.write(data, 2002)
    log.start(4, at=2100).start(5, at=2100, after=3 * HOUR, owner="", waiting=True)
    again = log.rebuilt()
    assert again.due(9000) == [b"m4"]
    assert again.due(4 * HOUR) == [b"m5"]


def test_a_rebuild_repeats_letters_that_nothing_in_the_log_confirms(log) -> None:
    log.start(1, at=0)
    first = log.collect(2000).letters
    assert log.rebuilt().collect(2001).letters == first


def test_many_ended_messages_come_not_again_after_a_restart(log) -> None:
    for offset in range(50):
        log.start(offset, at=offset * 100).end(offset, at=offset * 100 + 50)
    assert log.rebuilt().due(100_000) == []


def test_a_start_from_before_is_redelivered_by_a_tracker_that_comes_late(log) -> None:
    assert log.start(1, at=0).rebuilt().due(5000) == [b"m1"]


# Whatever is in it, the ledger goes on


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (None, "malformed"),
        (b"", "malformed"),
        (b"\xff", "malformed"),
        (encode(Marker(99)), "unknown_kind"),
        (encode(Marker(Kind.UNKNOWN)), "unknown_kind"),
        (encode(Marker(Kind.END, offsets=[9])), "unknown_end"),
        (encode(Marker(Kind.KEEPALIVE, offsets=[9], redeliver_after_ms=[1])), "stale"),
        (MarkerBatch(version=2, kind=Kind.TICK).SerializeToString(), "newer_version"),
    ],
)
def test_odd_records_are_counted(log, data: bytes | None, count: str) -> None:
    log.start(1, at=0).write(data, 10)
    assert log.ledger.counts == {count: 1}
    assert log.due(2000) == [b"m1"]


@pytest.mark.parametrize("timestamp", [-1, DURATION_MS_MAX, 2**63 - 1])
def test_a_record_from_no_time_is_skipped(log, timestamp: int) -> None:
    log.start(1, at=timestamp)
    assert (log.ledger.counts, log.ledger.hot, log.ledger.now) == ({"odd_timestamp": 1}, 0, 0)


def test_time_does_not_go_back(log) -> None:
    log.start(1, at=10_000).end(9, at=5)
    assert log.ledger.now == 10_000


def test_a_start_without_payload_gives_an_empty_letter_and_is_counted(log) -> None:
    log.start(1, at=0, values=[]).write(encode(Marker(Kind.TICK)), 5000)
    assert [letter.value for letter in log.ledger.collect().letters] == [None]
    assert log.ledger.counts == {"missing_payload": 1}


@pytest.mark.parametrize("topic", ["", "no such name", "x" * 300])
def test_what_can_go_nowhere_becomes_a_dead_letter(log, topic: str) -> None:
    log.delay(1, at=0, after=10, target_topic=topic, dead_letter_topic="dead")
    log.write(encode(Marker(Kind.TICK)), 5000)
    harvest = log.ledger.collect()
    assert (harvest.dead, log.ledger.counts) == (1, {"undeliverable": 1})
    assert [(letter.topic, dict(letter.headers)["marq-reason"]) for letter in harvest.letters] == [
        ("dead", b"no topic to deliver to")
    ]
    assert dict(harvest.letters[0].headers)["marq-attempt"] == b"1"


def test_the_owner_of_a_thousand_messages_is_one_name(log) -> None:
    log.start(*range(1000), at=0)
    log.collect(0)
    assert len(log.shelf["names"]) < 100


numbers = st.lists(st.integers(-5, 5) | st.sampled_from([OFFSET_MAX - 1, 2**62, -(2**62), 2**44, 0]), max_size=3)
odd_batches = st.builds(
    MarkerBatch,
    version=st.integers(0, 2),
    kind=st.integers(0, 8),
    queue=st.sampled_from(["", "q", "q" * 2000]),
    topic=st.sampled_from(["", "t", "\x00"]),
    partition=st.sampled_from([0, -(2**31), 2**31 - 1]),
    offsets=numbers,
    owner=st.sampled_from(["", "a"]),
    redeliver_after_ms=numbers,
    deadlines=numbers,
    attempts=st.lists(st.sampled_from([0, 1, 2, 2**30 - 1, 2**32 - 1]), max_size=3),
    waiting=st.booleans(),
    released=st.booleans(),
    max_attempts=st.sampled_from([0, 1, 2**32 - 1]),
    dead_letter_topic=st.sampled_from(["", "dead", "/"]),
    target_partitions=st.lists(st.sampled_from([-(2**31), 0, 2**31 - 1]), max_size=3),
    target_topic=st.sampled_from(["", "t", "?"]),
    keys=st.lists(st.binary(max_size=2), max_size=3),
    null_keys=st.lists(st.integers(0, 3), max_size=2),
    values=st.lists(st.binary(max_size=2), max_size=3),
    null_values=st.lists(st.integers(0, 3), max_size=2),
    headers=st.lists(st.builds(Headers), max_size=3),
    timestamps=numbers,
)
odd_times = st.sampled_from([-1, 0, 1, 10**12, 10**12 + 1000, DURATION_MS_MAX - 1, 2**63 - 1])
odd_records = st.tuples(odd_times, odd_batches.map(MarkerBatch.SerializeToString) | st.binary(max_size=20))


@given(st.lists(st.lists(odd_records, max_size=6), max_size=4))
@settings(max_examples=120, deadline=None)
def test_no_record_stops_the_ledger(batches: list) -> None:
    shelf = DictShelf()
    for batch in batches:
        ledger = Ledger(shelf)
        for offset, (timestamp, data) in enumerate(batch):
            ledger.apply(offset, timestamp, data)
        for letter in ledger.collect().letters:
            assert letter.topic in {"t", "dead"}
        ledger.save()
    last = Ledger(shelf)
    last.apply(99, DURATION_MS_MAX - 1, encode(Marker(Kind.TICK)))
    last.collect()
    last.save()
