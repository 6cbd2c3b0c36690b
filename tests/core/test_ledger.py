"""The rules of the ledger, one at a time: what a lease is, what ends it, and what comes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from marq.core.records import Kind, Letter, Marker, decode, encode

if TYPE_CHECKING:
    from marq.core.ledger import Harvest

HOUR = 3_600_000
DAY = 24 * HOUR


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
def test_what_is_due_when(log, history: list, at: int, due: list[int]) -> None:
    for kind, offset, when in history:
        say = {"S": log.start, "K": log.keep_alive, "E": log.end}[kind]
        say(offset, at=when)
    assert log.due(at) == [b"m%d" % offset for offset in due]


def test_a_silent_log_has_no_time(log) -> None:
    """No machine's own clock is asked: only a record, were it a tick, brings the moment."""
    log.start(0, at=0)
    assert [log.due(at) for at in (490, 500, 1000, 1001, 9000)] == [[], [], [], [b"m0"], []]


def test_keep_alives_carry_a_lease(log) -> None:
    log.start(0, at=0, after=10_000).keep_alive(0, at=5000, after=10_000).keep_alive(0, at=10_000, after=10_000)
    assert log.due(14_000) == []
    assert log.due(20_500) == [b"m0"]


def test_an_end_just_in_time(log) -> None:
    assert log.start(0, at=0, after=10_000).end(0, at=9900).due(11_000) == []


def test_a_lost_end_means_a_second_delivery(log) -> None:
    assert log.start(0, at=0, after=10_000).due(11_000) == [b"m0"]


def test_a_ledger_may_collect_more_than_once_between_saves(log) -> None:
    log.start(1, 2, at=0)
    log.start(3, at=0, after=5000)
    assert len(log.write(encode(Marker(Kind.TICK)), 2000).ledger.collect().letters) == 2
    log.start(4, at=2000, after=2500)
    letters = log.write(encode(Marker(Kind.TICK)), 9000).ledger.collect().letters
    assert [letter.value for letter in letters] == [b"m4", b"m3"]


def test_two_messages_with_two_deadlines(log) -> None:
    log.start(1000, at=10_000, after=4000).start(1001, at=12_000, after=4000)
    assert log.due(14_000) == []
    assert log.due(15_000) == [b"m1000"]
    assert log.due(17_000) == [b"m1001"]


def test_max_redelivery(log) -> None:
    """kmq's own black box: seven messages, every third never acked, four deliveries each, then a dead letter."""
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


def test_resend(log) -> None:
    """kmq's other one: whoever is not acked the first time comes again, and nobody else."""
    log.start(*range(21), at=0).end(*[n for n in range(21) if n % 5], at=10)
    assert log.due(2000) == [b"m%d" % n for n in range(0, 21, 5)]


# Leases


def test_attempts_and_the_dead_letter(log) -> None:
    policy = {"max_attempts": 2, "dead_letter_topic": "dead"}
    log.start(1, at=0, attempts=[1], **policy).start(2, at=1, attempts=[2], **policy)
    harvest = log.collect(5000)
    assert (harvest.redelivered, harvest.dead, harvest.lateness_ms) == (1, 1, [4000, 3999])
    assert [(letter.topic, letter.partition) for letter in harvest.letters] == [("t", 3), ("dead", None)]
    assert attempts_of(harvest) == [2, 2]
    assert dict(harvest.letters[1].headers)["marq-reason"] == b"lease expired"


def test_no_limit_means_no_dead_letter(log) -> None:
    log.start(1, at=0, attempts=[1_000_000], max_attempts=0, dead_letter_topic="dead")
    assert attempts_of(log.collect(5000)) == [1_000_001]


def test_without_a_dead_letter_topic_there_is_only_the_marker(log) -> None:
    log.start(1, at=0, attempts=[5])
    harvest = log.collect(5000)
    assert (harvest.letters, harvest.dead, harvest.lateness_ms) == ([], 1, [])
    assert [decode(data).kind for data in log.collect().markers] == [Kind.DEAD]


def test_everything_about_a_message_survives(log) -> None:
    log.start(
        7, at=0, keys=[b"k"], values=[b"v"], headers=[[("user", b"1"), ("marq-id", b"t/0/1"), ("none", None)]],
        timestamps=[555], attempts=[2], target_topic="elsewhere", target_partitions=[9],
    )  # fmt: skip
    headers = [("user", b"1"), ("marq-id", b"t/0/1"), ("none", None)]
    added = [("marq-origin", b"t/3/7"), ("marq-timestamp", b"555"), ("marq-attempt", b"3")]
    assert log.collect(5000).letters == [Letter("elsewhere", 9, b"k", b"v", headers + added)]


def test_a_second_start_never_lowers_the_attempt(log) -> None:
    log.start(1, at=0, attempts=[3]).start(1, at=500, attempts=[1], owner="b")
    log.keep_alive(1, at=600, owner="a", after=60_000)
    assert attempts_of(log.collect(1501)) == [4]


@pytest.mark.parametrize("again", [{"owner": "b"}, {"owner": "", "waiting": True, "after": 9 * 3_600_000}])
def test_the_payload_of_the_latest_start_counts(log, again: dict) -> None:
    """A topic that was deleted and made anew gives its offsets to other messages."""
    log.start(1, 2, at=0, values=[b"old 1", b"old 2"]).start(2, at=500, values=[b"new"], **again)
    assert log.due(1001) == [b"old 1"]
    assert log.due(500 + again.get("after", 1000) + 1) == [b"new"]
    assert log.collect(10 * 3_600_000).next_due is None
    assert not [name for name in log.shelf if name.startswith("seg/")]


def test_a_message_named_twice_in_one_start(log) -> None:
    log.say(Kind.START, 1, 2, 1, at=0, owner="a", values=[b"x", b"y", b"z"], attempts=[1, 1, 3],
                    redeliver_after_ms=[100, 200, 300])  # fmt: skip
    assert log.ledger.hot == 2
    assert log.due(201) == [b"y"]
    assert attempts_of(log.collect(301)) == [4]


@pytest.mark.parametrize("owner", ["b", ""])
def test_keep_alive_and_retry_count_only_from_the_owner(log, owner: str) -> None:
    log.start(1, at=0).keep_alive(1, at=500, owner=owner).retry(1, at=500, owner=owner, attempts=[9])
    assert log.ledger.counts["stale"] == 2
    assert attempts_of(log.collect(1001)) == [2]


def test_an_owner_is_not_nobody(log) -> None:
    log.start(1, at=0, owner="").keep_alive(1, at=500, owner="").retry(1, at=500, owner="")
    assert log.due(1001) == [b"m1"]


def test_a_keep_alive_that_says_no_time_changes_nothing(log) -> None:
    log.start(1, at=0).say(Kind.KEEPALIVE, 1, at=500, owner="a")
    assert log.ledger.counts["malformed"] == 1
    assert log.due(1000) == []


def test_an_end_counts_from_anyone(log) -> None:
    assert log.start(1, at=0).end(1, at=5, owner="stranger").due(5000) == []


# Attempts that have not begun


def test_a_held_message_comes_back_with_the_attempt_it_waits_for(log) -> None:
    assert attempts_of(log.start(1, at=0, attempts=[3], waiting=True).collect(1001)) == [3]


def test_the_last_attempt_may_still_be_waited_for(log) -> None:
    harvest = log.start(1, at=0, attempts=[5], waiting=True, dead_letter_topic="dead").collect(1001)
    assert (harvest.redelivered, harvest.dead, attempts_of(harvest)) == (1, 0, [5])


def test_one_attempt_too_many_is_never_delivered(log) -> None:
    harvest = log.start(1, at=0, attempts=[6], waiting=True, dead_letter_topic="dead").collect(1001)
    assert (harvest.redelivered, harvest.dead, attempts_of(harvest)) == (0, 1, [5])


def test_a_keep_alive_says_that_the_attempt_has_begun(log) -> None:
    log.start(1, at=0, attempts=[3], waiting=True).keep_alive(1, at=500)
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
def test_a_retry_says_which_attempt_is_to_come(log, fields: dict, attempt: int) -> None:
    log.start(1, at=0, attempts=[1]).retry(1, at=500, after=2000, **fields)
    assert log.due(2500) == []
    assert attempts_of(log.collect(2501)) == [attempt]


def test_a_retry_never_lowers_the_attempt(log) -> None:
    log.start(1, at=0, attempts=[4]).retry(1, at=500, attempts=[2], waiting=True)
    assert attempts_of(log.collect(5000)) == [4]


def test_a_retry_keeps_the_policy_of_the_start(log) -> None:
    log.start(1, at=0, attempts=[1], max_attempts=2, dead_letter_topic="dead")
    log.retry(1, at=500, attempts=[2], max_attempts=9)
    assert [letter.topic for letter in log.collect(5000).letters] == ["dead"]


def test_a_released_message_has_no_owner_any_more(log) -> None:
    log.start(1, at=0).retry(1, at=500, attempts=[2], after=1000, released=True)
    log.keep_alive(1, at=600, after=60_000).retry(1, at=600, after=60_000)
    assert log.ledger.counts["stale"] == 2
    assert log.due(1501) == [b"m1"]


# Far delays


@pytest.mark.parametrize("after", [3 * 60_000, 5 * HOUR, 40 * DAY])
@pytest.mark.parametrize("way", ["delayed", "given up", "released"])
def test_a_far_delay_is_cold_and_comes_out_in_time(log, after: int, way: str) -> None:
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


def test_a_lease_is_hot_however_long(log) -> None:
    log.start(1, at=0, after=5 * DAY)
    assert (log.ledger.hot, log.ledger.cold) == (1, 0)
    assert log.collect(0).next_due == 5 * DAY + 1


@pytest.mark.parametrize("deadlines", [[5 * DAY], [0], []])
@pytest.mark.parametrize("is_saved", [True, False])
def test_a_cancelled_delay_is_gone(log, deadlines: list[int], *, is_saved: bool) -> None:
    log.delay(1, 2, at=0, after=5 * DAY)
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
def test_a_delay_entered_anew_replaces_the_old_one(log, deadlines: list[int], after: int) -> None:
    log.delay(1, at=0, after=5 * DAY)
    log.collect(0)
    log.delay(1, at=10, after=after, deadlines=deadlines)
    found = [log.collect(at) for at in (after + 10, after + 11, 5 * DAY + 1, 20 * DAY)]
    assert [len(harvest.letters) for harvest in found] == [0, 1, 0, 0]


def test_a_delay_entered_anew_without_a_word_is_still_given_out_once_while_both_wait(log) -> None:
    log.delay(1, at=0, after=5 * DAY)
    log.collect(0)
    log.collect(3 * DAY)
    log.delay(1, at=5 * DAY - 2000, after=1500, values=[b"anew"])
    assert log.due(5 * DAY + 5) == [b"anew"]


def test_a_start_that_names_a_deadline_of_its_own_topic_searches_nothing(log) -> None:
    log.delay(1, at=0, after=5 * DAY).start(1, at=0, deadlines=[0])
    assert (log.ledger.hot, log.ledger.cold) == (1, 1)


@pytest.mark.parametrize("after", [1000, 9 * HOUR])
@pytest.mark.parametrize("owner", ["b", ""])
def test_a_given_up_message_that_is_leased_again_is_one_message(log, owner: str, after: int) -> None:
    """The offset commit was lost, so the next owner reads the message again and leases it: there is one letter."""
    log.start(1, at=0, after=5 * HOUR, owner="", waiting=True, attempts=[3])
    log.collect(0)
    log.start(1, at=10, after=after, owner=owner, attempts=[1])
    counts = [attempts_of(log.collect(at)) for at in (after + 10, after + 11, 5 * HOUR + 1, 20 * HOUR)]
    assert counts == [[], [4], [], []]


@pytest.mark.parametrize("deadlines", [[], [777]])
def test_a_given_up_message_can_be_ended_by_whoever_has_it(log, deadlines: list[int]) -> None:
    log.start(1, 2, at=0, after=5 * HOUR, owner="", waiting=True)
    log.collect(0)
    log.end(1, at=10, deadlines=deadlines)
    log.collect(10)
    assert log.due(6 * HOUR) == [b"m2"]


def test_a_record_with_near_and_far_delays_is_taken_apart(log) -> None:
    log.say(Kind.START, 1, 2, 3, at=0, topic="", waiting=True, target_topic="t", values=[b"x", b"y", b"z"],
            redeliver_after_ms=[100, 5 * HOUR, 200])  # fmt: skip
    assert (log.ledger.hot, log.ledger.cold) == (2, 1)
    assert log.due(101) == [b"x"]
    assert log.due(300) == [b"z"]
    assert [name for name in log.shelf if name.startswith("seg/")] == ["seg/2"]
    log.collect(4 * HOUR)
    assert log.due(5 * HOUR + 1) == [b"y"]
