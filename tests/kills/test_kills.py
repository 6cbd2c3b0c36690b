"""What is promised when a process is killed with -9, on a real broker with the real pipeline."""

import shutil
import time
from datetime import timedelta

import pytest

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(180)]

SESSION_TIMEOUT = 10
WARM_LATENESS = 2.0


def send(stage, queue, values):
    """Each with a key and a header of its own; id -> (value, key, headers, timestamp)."""
    queue = stage.app.queue(queue, str)
    sent = {}
    for number, value in enumerate(values):
        receipt = queue.send(value, key=f"key-{number}", headers={"trace": f"t{number}"})
        sent[receipt.result().id] = (value, f"key-{number}", [["trace", f"t{number}"]])
    return sent


def test_a_message_that_always_fails_is_tried_exactly_so_often_and_then_dead(stage, eventually):
    sent = send(stage, "failing", [f"fail {n}" for n in range(10)])
    worker = stage.worker("failing", attempts=4)
    letters = lambda: [r for r in stage.read(stage.app.dead_letter_topic) if r.key() == b"failing"]  # noqa: E731
    eventually(lambda: len(letters()) >= 10, 40)
    worker.kill()

    tries = sorted((line["id"], line["attempt"]) for line in worker.got)
    assert tries == sorted((identity, attempt) for identity in sent for attempt in (1, 2, 3, 4))
    found = letters()
    assert len(found) == 10
    for letter in found:
        headers = dict(letter.headers())
        identity = headers["marq-id"].decode()
        value, key, _ = sent[identity]
        assert letter.value() == value.encode()
        assert headers["marq-key"] == key.encode()
        assert headers["trace"].startswith(b"t")
        assert headers["marq-attempt"] == b"4"
        assert headers["marq-origin"].decode() == identity
        assert headers["marq-reason"] == b"failed 4 times"


def test_a_retry_that_nobody_holds_comes_back_through_the_pipeline_and_never_early(stage, eventually):
    sent = send(stage, "later", [f"later {n}" for n in range(10)])
    worker = stage.worker("later", hold_max=0)
    eventually(lambda: len(worker.got) >= 20, 30)
    worker.kill()

    first = {line["id"]: line["at"] for line in worker.got if line["attempt"] == 1}
    second = {line["id"]: line["at"] for line in worker.got if line["attempt"] == 2}
    assert first.keys() == second.keys() == sent.keys()
    waits = sorted(second[identity] - first[identity] for identity in sent)
    print(f"retries after 2 s came after {waits[0]:.2f} to {waits[-1]:.2f} s")
    assert waits[0] >= 2.0
    assert waits[-1] <= 2.0 + WARM_LATENESS + 0.5


def test_the_leases_of_a_killed_worker_come_back_as_attempt_two(stage, eventually):
    # Given a worker that holds leases, and another one that will take what comes
    sent = send(stage, "leased", [f"hold {n}" for n in range(50)])
    # (its partitions change hands before the leases run out: a lease is longer than the session's time-out)
    first = stage.worker("leased", lease=12, mark_after=0.5, session_timeout=6)
    eventually(lambda: len(first.got) == 50, 30)
    eventually(lambda: len(stage.leased("leased")) == 50, 20)
    second = stage.worker("leased", lease=12, mark_after=0.5, session_timeout=6)
    eventually(lambda: second.told, 20)

    # When it is killed
    first.kill()

    # Then each message comes back once, whole, never before its deadline and soon after it
    eventually(lambda: len(second.got) >= 50, 40)
    deadlines = stage.deadlines("leased")
    by_id = {line["id"]: line for line in second.got}
    assert by_id.keys() == sent.keys()
    stamps = {line["id"]: line["timestamp"] for line in first.got}
    for identity, line in by_id.items():
        value, key, headers = sent[identity]
        assert (line["value"], line["key"], line["headers"]) == (value, key, headers)
        assert line["attempt"] == 2
        assert line["timestamp"] == stamps[identity]
    lateness = sorted(line["at"] - deadlines[identity][1] / 1000 for identity, line in by_id.items())
    print(f"lateness of redelivery: median {lateness[25]:.2f} s, worst {lateness[-1]:.2f} s")
    assert lateness[0] > 0
    assert lateness[-1] <= WARM_LATENESS
    assert all(attempts == [2] for attempts in stage.copies("leased").values())
    second.kill()


def test_what_a_killed_worker_had_not_leased_goes_to_the_next_one(stage, eventually):
    # Given a group that was left in order, and a worker with messages that it has not leased
    queue = stage.app.queue("unmarked", str)
    send(stage, "unmarked", ["quick"])
    with queue.consume() as messages:
        for message in messages.receive(timeout=timedelta(seconds=20)):
            message.ack()
    sent = send(stage, "unmarked", [f"hold {n}" for n in range(20)])
    options = {"lease": 120, "mark_after": 50, "session_timeout": SESSION_TIMEOUT}
    first = stage.worker("unmarked", **options)
    eventually(lambda: len(first.got) == 20, 30)
    second = stage.worker("unmarked", acks_later=False, **options)
    eventually(lambda: second.told, 20)
    assert not stage.leased("unmarked")

    # When it is killed
    killed_at = time.time()
    first.kill()

    # Then they go to the next worker within the session's time-out, as they were: no attempt was spent
    eventually(lambda: {line["id"] for line in second.got} >= set(sent), SESSION_TIMEOUT + 8)
    slowest = max(line["at"] for line in second.got) - killed_at
    print(f"unmarked messages are back {slowest:.1f} s after the kill")
    assert slowest <= SESSION_TIMEOUT + 3
    for line in second.got:
        value, key, headers = sent[line["id"]]
        assert (line["value"], line["key"], line["headers"], line["attempt"]) == (value, key, headers, 1)
    second.kill()


def test_the_pipeline_is_killed_for_ten_seconds_and_nothing_is_lost(stage, eventually):
    # Given acked messages, some of them leased before, and leases of a worker that dies with the pipeline
    done = send(stage, "outage", [f"quick {n}" for n in range(200)])
    held = send(stage, "outage", [f"hold {n}" for n in range(30)])
    worker = stage.worker("outage", lease=5, mark_after=0.5)
    eventually(lambda: len(worker.got) == 230, 30)
    eventually(lambda: set(stage.leased("outage")) == set(held), 20)

    # When both are killed, and the pipeline comes back after ten seconds
    stage.pipeline.kill()
    worker.kill()
    back_at = time.monotonic() + 10
    second = stage.worker("outage", lease=5)
    eventually(lambda: time.monotonic() > back_at, 15)
    stage.pipeline.start()

    # Then what was in flight comes back once, and nothing that was acked does
    eventually(lambda: {line["id"] for line in second.got} >= set(held), 60)
    assert {line["id"] for line in second.got if line["attempt"] > 1} == set(held)
    copies = stage.copies("outage")
    assert not copies.keys() & done.keys()
    assert all(attempts == [2] for attempts in copies.values())
    second.kill()


def test_without_its_checkpoint_the_pipeline_redelivers_only_what_is_in_flight(stage, eventually):
    # Given a log full of past: what the other tests did, a lease that was acked, and leases that are live
    held = send(stage, "rebuilt", [f"hold {n}" for n in range(25)])
    send(stage, "rebuilt", [f"quick {n}" for n in range(100)])
    worker = stage.worker("rebuilt", lease=8, mark_after=0.5)
    eventually(lambda: len(worker.got) == 125, 30)
    eventually(lambda: set(stage.leased("rebuilt")) == set(held), 20)
    queues = ("leased", "unmarked", "failing", "outage", "rebuilt")
    before = {queue: stage.copies(queue) for queue in queues}

    # When the state is thrown away, and the worker dies
    stage.pipeline.kill()
    shutil.rmtree(stage.pipeline.checkpoint)
    stage.pipeline.start()
    worker.kill()

    # Then the live leases come back once, and nothing else
    eventually(lambda: set(stage.copies("rebuilt")) == set(held), 60)
    settled_at = time.monotonic() + 5
    eventually(lambda: time.monotonic() > settled_at, 10)
    after = {queue: stage.copies(queue) for queue in queues}
    assert all(attempts == [2] for attempts in after["rebuilt"].values())
    for queue in queues[:-1]:
        assert after[queue] == before[queue]


@pytest.mark.chaos
def test_a_message_that_kills_its_worker_at_once_is_dead_after_a_bounded_number_of_kills(stage, eventually):
    # Given a message whose handler kills the process, and somebody who starts a new worker each time
    sent = send(stage, "poison", ["poison"])
    letters = lambda: [r for r in stage.read(stage.app.dead_letter_topic) if r.key() == b"poison"]  # noqa: E731
    attempts, kills = 2, 0
    until = time.monotonic() + 120
    while not letters() and time.monotonic() < until:
        worker = stage.worker("poison", attempts=attempts, lease=8, session_timeout=6)
        eventually(lambda worker=worker: worker.process.poll() is not None or letters(), 60)
        kills += worker.process.poll() == 9
        worker.kill()

    # Then its attempts are used up, however it ended them
    assert kills <= 2 * attempts
    [letter] = letters()
    assert dict(letter.headers())["marq-attempt"] == b"2"
    assert dict(letter.headers())["marq-reason"] == b"lease expired"
    assert dict(letter.headers())["marq-id"].decode() in sent
