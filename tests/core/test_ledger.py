"""The rules of the ledger, one at a time: what a lease is, what ends it, and what comes of it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marq.core.ledger import CONFIRM_AFTER_MS, Harvest, Ledger
from marq.core.marker_pb2 import Headers, MarkerBatch
from marq.core.records import DURATION_MS_MAX, OFFSET_MAX, Kind, Letter, Marker, decode, encode
from marq.core.shelf import DictShelf

HOUR = 3_600_000
DAY = 24 * HOUR


class Log:
    """A markers partition and the ledger that reads it. Every collection is a batch of its own."""

    def __init__(self, gate: int = 0) -> None:
        self.shelf = DictShelf()
        self.gate = gate
        self.records: list[tuple[int, bytes]] = []
        self.ledger = Ledger(self.shelf, gate=gate)

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
        log = Log(gate=len(self.records))
        for at, data in self.records:
            log.write(data, at)
        return log


def attempts_of(harvest: Harvest) -> list[int]:
    return [int(dict(letter.headers)["marq-attempt"]) for letter in harvest.letters]


# The tables of the seeds. S: start, K: keep-alive, E: end; R = 1000 ms; times in ms.

THREE = [("S", 0, 0), ("S", 1, 1000), ("S", 2, 2000)]


@pytest.mark.parametrize(
    ("history", "at", "due"),
    [
        ([], 0, []),
        ([("S", 0, 0)], 0, []),
        ([("S", 0, 0)], 1000, []),
        ([("S", 0, 0)], 1001, [0]),
        (THREE[:2], 1001, [0]),
        (THREE, 3001, [0, 1, 2]),
        ([THREE[0], THREE[2], THREE[1]], 3001, [0, 1, 2]),
        ([("S", 0, 0), ("S", 0, 1000)], 1001, []),
        ([("S", 0, 0), ("S", 0, 1000)], 2001, [0]),
        ([*THREE, ("K", 99, 2000)], 3001, [0, 1, 2]),
        ([("K", 0, 0)], 5000, []),
        ([("E", 0, 0)], 5000, []),
        ([("S", 0, 0), ("K", 0, 900), ("S", 1, 1000)], 1001, []),
        ([("S", 0, 0), ("K", 0, 900), ("S", 1, 1000)], 1901, [0]),
        ([("S", 0, 0), ("K", 0, 1000)], 1001, []),
        ([("S", 0, 0), ("K", 0, 1001)], 1002, [0]),
        ([("S", 0, 0), ("E", 0, 500)], 1001, []),
        ([*THREE, ("E", 0, 2000)], 3001, [1, 2]),
        ([*THREE, ("E", 2, 2000)], 3001, [0, 1]),
        ([*THREE, ("E", 1, 2000)], 3001, [0, 2]),
        ([("S", 0, 0), ("E", 99, 500)], 1001, [0]),
        ([("S", 0, 0), ("E", 0, 500), ("K", 0, 600)], 9000, []),
    ],
)
def test_what_is_due_when(history: list, at: int, due: list[int]) -> None:
    log = Log()
    for kind, offset, when in history:
        say = {"S": log.start, "K": log.keep_alive, "E": log.end}[kind]
        say(offset, at=when)
    assert log.due(at) == [b"m%d" % offset for offset in due]


def test_a_silent_log_has_no_time() -> None:
    """No machine's own clock is asked: only a record, were it a tick, brings the moment."""
    log = Log().start(0, at=0)
    assert [log.due(at) for at in (490, 500, 1000, 1001, 9000)] == [[], [], [], [b"m0"], []]


def test_keep_alives_carry_a_lease() -> None:
    log = Log().start(0, at=0, after=10_000).keep_alive(0, at=5000, after=10_000).keep_alive(0, at=10_000, after=10_000)
    assert log.due(14_000) == []
    assert log.due(20_500) == [b"m0"]


def test_an_end_just_in_time() -> None:
    assert Log().start(0, at=0, after=10_000).end(0, at=9900).due(11_000) == []


def test_a_lost_end_means_a_second_delivery() -> None:
    assert Log().start(0, at=0, after=10_000).due(11_000) == [b"m0"]


def test_a_ledger_may_collect_more_than_once_between_saves() -> None:
    log = Log().start(1, 2, at=0)
    log.start(3, at=0, after=5000)
    assert len(log.write(encode(Marker(Kind.TICK)), 2000).ledger.collect().letters) == 2
    log.start(4, at=2000, after=2500)
    letters = log.write(encode(Marker(Kind.TICK)), 9000).ledger.collect().letters
    assert [letter.value for letter in letters] == [b"m4", b"m3"]


def test_two_messages_with_two_deadlines() -> None:
    log = Log().start(1000, at=10_000, after=4000).start(1001, at=12_000, after=4000)
    assert log.due(14_000) == []
    assert log.due(15_000) == [b"m1000"]
    assert log.due(17_000) == [b"m1001"]


def test_max_redelivery() -> None:
    """kmq's own black box: seven messages, every third never acked, four deliveries each, then a dead letter."""
    log = Log()
    inbox = [(offset, offset, 1) for offset in range(7)]
    received, dead = [], []
    fresh = iter(range(100, 1000))
    for now in range(0, 60_000, 2000):
        for offset, message, attempt in inbox:
            received.append(message)
            fields = {"attempts": [attempt], "values": [b"%d" % message], "max_attempts": 4, "dead_letter_topic": "d"}
            log.start(offset, at=now, **fields)
            if message % 3:
                log.end(offset, at=now)
        inbox = []
        for letter in log.collect(now + 1500).letters:
            if letter.topic == "d":
                dead.append(int(letter.value or b""))
            else:
                headers = dict(letter.headers)
                inbox.append((next(fresh), int(letter.value or b""), int(headers["marq-attempt"] or b"")))
    assert sorted(received) == sorted([0, 3, 6] * 4 + [1, 2, 4, 5])
    assert sorted(dead) == [0, 3, 6]


def test_resend() -> None:
    """kmq's other one: whoever is not acked the first time comes again, and nobody else."""
    log = Log().start(*range(21), at=0).end(*[n for n in range(21) if n % 5], at=10)
    assert log.due(2000) == [b"m%d" % n for n in range(0, 21, 5)]


# Leases


def test_attempts_and_the_dead_letter() -> None:
    policy = {"max_attempts": 2, "dead_letter_topic": "dead"}
    log = Log().start(1, at=0, attempts=[1], **policy).start(2, at=1, attempts=[2], **policy)
    harvest = log.collect(5000)
    assert (harvest.redelivered, harvest.dead, harvest.lateness_ms) == (1, 1, [4000, 3999])
    assert [(letter.topic, letter.partition) for letter in harvest.letters] == [("t", 3), ("dead", None)]
    assert attempts_of(harvest) == [2, 2]
    assert dict(harvest.letters[1].headers)["marq-reason"] == b"lease expired"


def test_no_limit_means_no_dead_letter() -> None:
    log = Log().start(1, at=0, attempts=[1_000_000], max_attempts=0, dead_letter_topic="dead")
    assert attempts_of(log.collect(5000)) == [1_000_001]


def test_without_a_dead_letter_topic_there_is_only_the_marker() -> None:
    log = Log().start(1, at=0, attempts=[5])
    harvest = log.collect(5000)
    assert (harvest.letters, harvest.dead, harvest.lateness_ms) == ([], 1, [])
    assert [decode(data).kind for data in log.collect().markers] == [Kind.DEAD]


def test_everything_about_a_message_survives() -> None:
    log = Log().start(
        7, at=0, keys=[b"k"], values=[b"v"], headers=[[("user", b"1"), ("marq-id", b"t/0/1"), ("none", None)]],
        timestamps=[555], attempts=[2], target_topic="elsewhere", target_partitions=[9],
    )  # fmt: skip
    headers = [("user", b"1"), ("marq-id", b"t/0/1"), ("none", None)]
    added = [("marq-origin", b"t/3/7"), ("marq-timestamp", b"555"), ("marq-attempt", b"3")]
    assert log.collect(5000).letters == [Letter("elsewhere", 9, b"k", b"v", headers + added)]


def test_a_second_start_never_lowers_the_attempt() -> None:
    log = Log().start(1, at=0, attempts=[3]).start(1, at=500, attempts=[1], owner="b")
    log.keep_alive(1, at=600, owner="a", after=60_000)
    assert attempts_of(log.collect(1501)) == [4]


def test_a_message_named_twice_in_one_start() -> None:
    log = Log().say(Kind.START, 1, 2, 1, at=0, owner="a", values=[b"x", b"y", b"z"], attempts=[1, 1, 3],
                    redeliver_after_ms=[100, 200, 300])  # fmt: skip
    assert log.ledger.hot == 2
    assert log.due(201) == [b"y"]
    assert attempts_of(log.collect(301)) == [4]


@pytest.mark.parametrize("owner", ["b", ""])
def test_keep_alive_and_retry_count_only_from_the_owner(owner: str) -> None:
    log = Log().start(1, at=0).keep_alive(1, at=500, owner=owner).retry(1, at=500, owner=owner, attempts=[9])
    assert log.ledger.counts["stale"] == 2
    assert attempts_of(log.collect(1001)) == [2]


def test_an_owner_is_not_nobody() -> None:
    log = Log().start(1, at=0, owner="").keep_alive(1, at=500, owner="").retry(1, at=500, owner="")
    assert log.due(1001) == [b"m1"]


def test_a_keep_alive_that_says_no_time_changes_nothing() -> None:
    log = Log().start(1, at=0).say(Kind.KEEPALIVE, 1, at=500, owner="a")
    assert log.ledger.counts["malformed"] == 1
    assert log.due(1000) == []


def test_an_end_counts_from_anyone() -> None:
    assert Log().start(1, at=0).end(1, at=5, owner="stranger").due(5000) == []


# Attempts that have not begun


def test_a_held_message_comes_back_with_the_attempt_it_waits_for() -> None:
    assert attempts_of(Log().start(1, at=0, attempts=[3], waiting=True).collect(1001)) == [3]


def test_the_last_attempt_may_still_be_waited_for() -> None:
    harvest = Log().start(1, at=0, attempts=[5], waiting=True, dead_letter_topic="dead").collect(1001)
    assert (harvest.redelivered, harvest.dead, attempts_of(harvest)) == (1, 0, [5])


def test_one_attempt_too_many_is_never_delivered() -> None:
    harvest = Log().start(1, at=0, attempts=[6], waiting=True, dead_letter_topic="dead").collect(1001)
    assert (harvest.redelivered, harvest.dead, attempts_of(harvest)) == (0, 1, [5])


def test_a_keep_alive_says_that_the_attempt_has_begun() -> None:
    log = Log().start(1, at=0, attempts=[3], waiting=True).keep_alive(1, at=500)
    assert attempts_of(log.collect(1501)) == [4]


@pytest.mark.parametrize(
    ("fields", "attempt"),
    [
        ({"attempts": [2], "waiting": True}, 2),
        ({"attempts": [1], "waiting": True}, 1),  # a snooze spends no attempt
        ({"attempts": [2]}, 3),  # begun at once
        ({"waiting": True}, 2),  # not said: the next
        ({"attempts": [2], "released": True}, 2),
    ],
)
def test_a_retry_says_which_attempt_is_to_come(fields: dict, attempt: int) -> None:
    log = Log().start(1, at=0, attempts=[1]).retry(1, at=500, after=2000, **fields)
    assert log.due(2500) == []
    assert attempts_of(log.collect(2501)) == [attempt]


def test_a_retry_never_lowers_the_attempt() -> None:
    log = Log().start(1, at=0, attempts=[4]).retry(1, at=500, attempts=[2], waiting=True)
    assert attempts_of(log.collect(5000)) == [4]


def test_a_retry_keeps_the_policy_of_the_start() -> None:
    log = Log().start(1, at=0, attempts=[1], max_attempts=2, dead_letter_topic="dead")
    log.retry(1, at=500, attempts=[2], max_attempts=9)
    assert [letter.topic for letter in log.collect(5000).letters] == ["dead"]


def test_a_released_message_has_no_owner_any_more() -> None:
    log = Log().start(1, at=0).retry(1, at=500, attempts=[2], after=1000, released=True)
    log.keep_alive(1, at=600, after=60_000).retry(1, at=600, after=60_000)
    assert log.ledger.counts["stale"] == 2
    assert log.due(1501) == [b"m1"]


# Far delays


@pytest.mark.parametrize("after", [3 * 60_000, 5 * HOUR, 40 * DAY])
@pytest.mark.parametrize("way", ["delayed", "given up", "released"])
def test_a_far_delay_is_cold_and_comes_out_in_time(after: int, way: str) -> None:
    log = Log()
    if way == "delayed":
        log.delay(1, at=0, after=after)
    elif way == "given up":
        log.start(1, at=0, after=after, owner="", waiting=True)
    else:
        log.start(1, at=0).retry(1, at=0, after=after, attempts=[1], released=True)
    assert (log.ledger.hot, log.ledger.cold) == (0, 1)
    harvest = log.collect(0)
    for _ in range(4):
        if harvest.letters:
            break
        assert harvest.next_due is not None
        assert harvest.next_due <= after + 1
        harvest = log.collect(harvest.next_due)
    assert (harvest.lateness_ms, attempts_of(harvest)) == ([1], [1])


def test_a_lease_is_hot_however_long() -> None:
    log = Log().start(1, at=0, after=5 * DAY)
    assert (log.ledger.hot, log.ledger.cold) == (1, 0)
    assert log.collect(0).next_due == 5 * DAY + 1


@pytest.mark.parametrize("deadlines", [[5 * DAY], [0], []])
@pytest.mark.parametrize("is_saved", [True, False])
def test_a_cancelled_delay_is_gone(deadlines: list[int], *, is_saved: bool) -> None:
    log = Log().delay(1, 2, at=0, after=5 * DAY)
    if is_saved:
        log.collect(0)
    log.end(1, at=10, topic="", deadlines=deadlines)
    assert log.ledger.counts["unknown_end"] == 0
    log.collect(10)
    assert log.ledger.cold == 1
    log.collect(4 * DAY)
    assert log.due(6 * DAY) == [b"m2"]


@pytest.mark.parametrize("deadlines", [[5 * DAY], [0]])
@pytest.mark.parametrize("after", [1000, 5 * HOUR, 9 * DAY])
def test_a_delay_entered_anew_replaces_the_old_one(deadlines: list[int], after: int) -> None:
    log = Log().delay(1, at=0, after=5 * DAY)
    log.collect(0)
    log.delay(1, at=10, after=after, deadlines=deadlines)
    found = [log.collect(at) for at in (after + 10, after + 11, 5 * DAY + 1, 20 * DAY)]
    assert [len(harvest.letters) for harvest in found] == [0, 1, 0, 0]


def test_a_delay_entered_anew_without_a_word_is_still_given_out_once_while_both_wait() -> None:
    log = Log().delay(1, at=0, after=5 * DAY)
    log.collect(0)
    log.collect(3 * DAY)
    log.delay(1, at=5 * DAY - 2000, after=1500, values=[b"anew"])
    assert log.due(5 * DAY + 5) == [b"anew"]


def test_a_start_that_names_a_deadline_of_its_own_topic_searches_nothing() -> None:
    log = Log().delay(1, at=0, after=5 * DAY).start(1, at=0, deadlines=[0])
    assert (log.ledger.hot, log.ledger.cold) == (1, 1)


@pytest.mark.parametrize("after", [1000, 9 * HOUR])
@pytest.mark.parametrize("owner", ["b", ""])
def test_a_given_up_message_that_is_leased_again_is_one_message(owner: str, after: int) -> None:
    """The offset commit was lost, so the next owner reads the message again and leases it: there is one letter."""
    log = Log().start(1, at=0, after=5 * HOUR, owner="", waiting=True, attempts=[3])
    log.collect(0)
    log.start(1, at=10, after=after, owner=owner, attempts=[1])
    counts = [attempts_of(log.collect(at)) for at in (after + 10, after + 11, 5 * HOUR + 1, 20 * HOUR)]
    assert counts == [[], [4], [], []]


@pytest.mark.parametrize("deadlines", [[], [777]])
def test_a_given_up_message_can_be_ended_by_whoever_has_it(deadlines: list[int]) -> None:
    log = Log().start(1, 2, at=0, after=5 * HOUR, owner="", waiting=True)
    log.collect(0)
    log.end(1, at=10, deadlines=deadlines)
    log.collect(10)
    assert log.due(6 * HOUR) == [b"m2"]


def test_a_record_with_near_and_far_delays_is_taken_apart() -> None:
    log = Log()
    log.say(Kind.START, 1, 2, 3, at=0, topic="", waiting=True, target_topic="t", values=[b"x", b"y", b"z"],
            redeliver_after_ms=[100, 5 * HOUR, 200])  # fmt: skip
    assert (log.ledger.hot, log.ledger.cold) == (2, 1)
    assert log.due(101) == [b"x"]
    assert log.due(300) == [b"z"]
    assert [name for name in log.shelf if name.startswith("seg/")] == ["seg/2"]
    log.collect(4 * HOUR)
    assert log.due(5 * HOUR + 1) == [b"y"]


# Confirmations


def test_a_confirmation_follows_one_collection_after_its_letter() -> None:
    log = Log().start(1, 2, at=0, attempts=[3])
    first = log.collect(2000)
    assert (len(first.letters), first.markers) == (2, [])
    assert first.next_due == 2000 + CONFIRM_AFTER_MS
    second = log.collect(2001)
    assert (second.letters, second.next_due) == ([], None)
    assert [decode(data) for data in second.markers] == [
        Marker(Kind.REDELIVERED, "q", "t", 3, offsets=[1, 2], deadlines=[1000, 1000], attempts=[3, 3])
    ]
    assert log.collect(2002).markers == []


def test_a_confirmation_does_not_delay_what_is_due_before_it() -> None:
    log = Log().start(1, at=0).start(2, at=0, after=2500)
    assert log.collect(2000).next_due == 2501


def test_confirmations_are_split_by_what_they_say() -> None:
    log = Log().start(1, at=0, attempts=[5]).start(2, at=0).start(3, at=0, topic="u")
    log.collect(2000)
    said = {(m.kind, m.topic, m.reason) for m in map(decode, log.collect(2000).markers)}
    assert said == {(Kind.DEAD, "t", "lease expired"), (Kind.REDELIVERED, "t", ""), (Kind.REDELIVERED, "u", "")}


def test_confirmations_of_many_letters_stay_small_enough_for_a_record() -> None:
    log = Log().start(*range(20_000), at=0)
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
    kind: int, deadlines: list, attempts: list, *, retires: bool
) -> None:
    log = Log().start(1, at=0, attempts=[2]).say(kind, 1, at=500, deadlines=deadlines, attempts=attempts)
    assert log.due(2000) == ([] if retires else [b"m1"])


@pytest.mark.parametrize(("attempts", "retires"), [([2], True), ([], True), ([1], False)])
@pytest.mark.parametrize("way", ["delay", "start"])
def test_a_confirmation_retires_a_cold_one_too(way: str, attempts: list[int], *, retires: bool) -> None:
    log = Log()
    getattr(log, way)(1, at=0, after=5 * HOUR, owner="", waiting=True, attempts=[2])
    topic = {"topic": ""} if way == "delay" else {}
    log.say(Kind.REDELIVERED, 1, at=1, deadlines=[5 * HOUR], attempts=attempts, **topic)
    log.say(Kind.REDELIVERED, 1, at=1, deadlines=[5 * HOUR + 1], attempts=[2], **topic)
    assert log.due(6 * HOUR) == ([] if retires else [b"m1"])


def test_a_confirmation_of_something_unknown_changes_nothing() -> None:
    log = Log().say(Kind.DEAD, 1, at=0, deadlines=[5], attempts=[1]).start(1, at=0)
    assert log.due(2000) == [b"m1"]


# The gate


def test_nothing_is_given_out_before_the_gate() -> None:
    log = Log(gate=4).start(1, at=0).start(2, at=0).end(1, at=5)
    harvest = log.collect(9000)
    assert (harvest.letters, log.ledger.gate_is_open, log.ledger.hot) == ([], False, 1)
    assert log.due(9001) == [b"m2"]
    assert log.ledger.gate_is_open


def test_a_filled_shelf_waits_for_a_new_gate() -> None:
    log = Log().start(1, at=0)
    log.collect(500)
    log.gate = 4
    log.ledger = Ledger(log.shelf, gate=4)
    assert not log.ledger.gate_is_open
    assert log.due(5000) == []
    log.end(7, at=5000)
    assert log.due(5000) == [b"m1"]


def test_confirmations_do_not_wait_for_the_gate() -> None:
    """Their letters were on disk before the restart."""
    log = Log().start(1, at=0)
    log.collect(2000)
    log.ledger = Ledger(log.shelf, gate=99)
    assert len(log.ledger.collect().markers) == 1


def test_a_rebuild_redelivers_only_what_is_still_in_flight() -> None:
    log = Log().start(1, 2, 3, at=0).end(1, at=100)
    assert len(log.collect(2000).letters) == 2
    for data in log.collect(2001).markers:
        log.write(data, 2002)
    log.start(4, at=2100).start(5, at=2100, after=3 * HOUR, owner="", waiting=True)
    again = log.rebuilt()
    assert again.due(9000) == [b"m4"]
    assert again.due(4 * HOUR) == [b"m5"]


def test_a_rebuild_repeats_letters_that_nothing_in_the_log_confirms() -> None:
    log = Log().start(1, at=0)
    first = log.collect(2000).letters
    assert log.rebuilt().collect(2001).letters == first


def test_many_ended_messages_come_not_again_after_a_restart() -> None:
    log = Log()
    for offset in range(50):
        log.start(offset, at=offset * 100).end(offset, at=offset * 100 + 50)
    assert log.rebuilt().due(100_000) == []


def test_a_start_from_before_is_redelivered_by_a_tracker_that_comes_late() -> None:
    assert Log().start(1, at=0).rebuilt().due(5000) == [b"m1"]


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
def test_odd_records_are_counted(data: bytes | None, count: str) -> None:
    log = Log().start(1, at=0).write(data, 10)
    assert log.ledger.counts == {count: 1}
    assert log.due(2000) == [b"m1"]


@pytest.mark.parametrize("timestamp", [-1, DURATION_MS_MAX, 2**63 - 1])
def test_a_record_from_no_time_is_skipped(timestamp: int) -> None:
    log = Log().start(1, at=timestamp)
    assert (log.ledger.counts, log.ledger.hot, log.ledger.now) == ({"odd_timestamp": 1}, 0, 0)


def test_time_does_not_go_back() -> None:
    log = Log().start(1, at=10_000).end(9, at=5)
    assert log.ledger.now == 10_000


def test_a_start_without_payload_gives_an_empty_letter_and_is_counted() -> None:
    log = Log().start(1, at=0, values=[]).write(encode(Marker(Kind.TICK)), 5000)
    assert [letter.value for letter in log.ledger.collect().letters] == [None]
    assert log.ledger.counts == {"missing_payload": 1}


@pytest.mark.parametrize("topic", ["", "no such name", "x" * 300])
def test_what_can_go_nowhere_becomes_a_dead_letter(topic: str) -> None:
    log = Log().delay(1, at=0, after=10, target_topic=topic, dead_letter_topic="dead")
    log.write(encode(Marker(Kind.TICK)), 5000)
    harvest = log.ledger.collect()
    assert (harvest.dead, log.ledger.counts) == (1, {"undeliverable": 1})
    assert [(letter.topic, dict(letter.headers)["marq-reason"]) for letter in harvest.letters] == [
        ("dead", b"no topic to deliver to")
    ]
    assert attempts_of(harvest) == [1]


def test_the_owner_of_a_thousand_messages_is_one_name() -> None:
    log = Log().start(*range(1000), at=0)
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
