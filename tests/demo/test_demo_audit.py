"""The sum comes out when it should, and every line of it is wrong when it should be."""

import copy

import pytest

from marq.core import records
from marq.core.records import Kind, Marker
from marq.demo import plan
from marq.demo.audit import Killed, audit
from marq.demo.log import replay


@pytest.fixture
def checks(small_demo):
    """The table's lines by name, after something was changed in a copy of what really happened."""

    def after(change=lambda case: None):
        case = copy.copy(small_demo)
        case.evidence, case.tally = copy.copy(small_demo.evidence), copy.deepcopy(small_demo.tally)
        for name in ("originals", "copies", "_ids"):
            case.evidence.__dict__.pop(name, None)
        change(case)
        found = audit(case.evidence, case.tally, case.orders, case.sent, case.killed)
        return {"leases" if "leases" in check.what else check.what: check for check in found}

    return after


def wrong(checks):
    return {name for name, check in checks.items() if not check.ok}


def test_it_adds_up(checks, small_demo):
    lines = checks()
    assert wrong(lines) == set()
    poison = sum(order.kind == "poison" for order in small_demo.orders)
    assert lines["sent"].held == len(small_demo.orders)
    assert lines["dead"].held == poison > 0
    assert lines["acked"].held == len(small_demo.orders) - poison
    assert lines["leases"].claimed == lines["leases"].held > 2
    assert lines["redelivered by Spark"].held > 0
    assert lines["retried"].held > 0
    assert lines["left"].held == 0


def changed(record, **what):
    """The record with something else in it."""
    said = {
        "topic": record.topic(),
        "partition": record.partition(),
        "offset": record.offset(),
        "key": record.key(),
        "value": record.value(),
        "headers": record.headers(),
        "timestamp": record.timestamp(),
    } | what

    class Changed:
        def __getattr__(self, name):
            return lambda: said[name]

    return Changed()


def without_header(record, name):
    return changed(record, headers=[each for each in record.headers() if each[0] != name])


def lose_a_message(case):
    case.evidence.messages = case.evidence.messages[1:]


def alter_a_message(case):
    index = next(i for i, each in enumerate(case.evidence.messages) if records.provenance(each.headers()).id is None)
    messages = case.evidence.messages
    case.evidence.messages = [*messages[:index], changed(messages[index], value=b"{}"), *messages[index + 1 :]]


def lose_an_ack(case):
    del case.tally.acked[next(iter(case.tally.acked))]


def ack_a_dead_one(case):
    poison = next(order.number for order in case.orders if order.kind == "poison")
    case.tally.acked[case.sent[poison]] += 1


def lose_a_letter(case):
    case.evidence.letters = case.evidence.letters[1:]


def repeat_a_letter(case):
    case.evidence.letters = [*case.evidence.letters, case.evidence.letters[0]]


def forget_a_reason(case):
    case.evidence.letters = [without_header(case.evidence.letters[0], records.REASON), *case.evidence.letters[1:]]


def forget_an_origin(case):
    case.evidence.letters = [without_header(case.evidence.letters[0], records.ORIGIN), *case.evidence.letters[1:]]


def forget_the_senders_key(case):
    case.evidence.letters = [without_header(case.evidence.letters[0], records.KEY), *case.evidence.letters[1:]]


def miscount_attempts(case):
    letter = case.evidence.letters[0]
    headers = [(name, b"3" if name == records.ATTEMPT else value) for name, value in letter.headers()]
    case.evidence.letters = [changed(letter, headers=headers), *case.evidence.letters[1:]]


def try_too_often(case):
    case.tally.attempts_seen = plan.ATTEMPTS + 1


def lose_a_copy(case):
    identity, attempt, _ = case.evidence.copies[0]
    del case.evidence.copies
    case.evidence.messages = [
        each
        for each in case.evidence.messages
        if (records.provenance(each.headers()).id, records.provenance(each.headers()).attempt) != (identity, attempt)
    ]


def lose_a_retry(case):
    case.evidence.book = copy.deepcopy(case.evidence.book)
    failed_by_b = {(failure.id, failure.attempt + 1) for failure in case.tally.workers[1].failures}
    case.evidence.book.retries.discard(
        next(each for each in case.evidence.book.retries if (case.evidence.id_at(*each[:2]), each[2]) in failed_by_b)
    )


def kill_nobody(case):
    case.killed = Killed("A", 1, "somebody else", 3)


def handle_twice_for_no_reason(case):
    redelivered = {identity for identity, _, _ in case.evidence.copies}
    by_a = {ack.id for ack in case.tally.workers[0].acks}
    case.tally.acked[next(each for each in case.tally.acked if each not in redelivered | by_a)] += 1


def leave_an_offset(case):
    case.evidence.ends = {partition: end + 1 for partition, end in case.evidence.ends.items()}


def leave_a_lease(case):
    case.evidence.ledger = {**case.evidence.ledger, "hot": 1}


def leave_without_a_word(case):
    case.evidence.commits = {p: each._replace(metadata="marq:open") for p, each in case.evidence.commits.items()}


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        (lose_a_message, {"sent", "acked", "sent = acked + dead"}),
        (alter_a_message, {"sent"}),
        (lose_an_ack, {"acked", "sent = acked + dead"}),
        (ack_a_dead_one, {"acked", "sent = acked + dead"}),
        (lose_a_letter, {"dead", "acked"}),
        (repeat_a_letter, {"dead"}),
        (forget_a_reason, {"dead"}),
        (forget_an_origin, {"dead"}),
        (forget_the_senders_key, {"dead"}),
        (miscount_attempts, {"dead"}),
        (try_too_often, {"dead"}),
        (lose_a_copy, {"redelivered by Spark"}),
        (lose_a_retry, {"retried"}),
        (kill_nobody, {"leases"}),
        (handle_twice_for_no_reason, {"handled twice"}),
        (leave_an_offset, {"left"}),
        (leave_a_lease, {"left"}),
        (leave_without_a_word, {"left"}),
    ],
)
def test_what_is_not_right_is_seen(checks, change, lines):
    found = wrong(checks(change))
    assert lines <= found


def test_a_lease_that_nobody_ended_is_left(small_demo):
    """The replay reads the real markers: one more START, and the ledger holds it."""
    start = Marker(Kind.START, plan.QUEUE, "t", 0, offsets=[1], owner="me", redeliver_after_ms=[60_000], attempts=[1])
    last = small_demo.evidence.markers[-1]
    more = changed(last, offset=last.offset() + 1, value=records.encode(start))
    assert replay(small_demo.evidence.markers) == {"hot": 0, "cold": 0, "malformed": 0}
    assert replay([*small_demo.evidence.markers, more])["hot"] == 1
