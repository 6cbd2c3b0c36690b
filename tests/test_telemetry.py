import logging

import pytest

from marq.telemetry import COUNTERS, PIPELINE_COUNTERS, Counters, Event


def test_counters_start_at_zero_and_are_told_by_name():
    counters = Counters()
    counters.acked += 3
    counters.held += 1
    assert counters.snapshot() == dict.fromkeys(COUNTERS, 0) | {"acked": 3, "held": 1}


def test_a_misspelt_counter_is_an_error():
    with pytest.raises(AttributeError):
        Counters().ackd = 1


def test_a_snapshot_does_not_move():
    counters = Counters()
    before = counters.snapshot()
    counters.received += 1
    assert before["received"] == 0


def test_every_name_has_a_meaning_of_its_own():
    for table in (COUNTERS, PIPELINE_COUNTERS, {event.value: event.meaning for event in Event}):
        assert all(table.values())
        assert len(set(table.values())) == len(table)


def test_an_event_is_text_in_a_log_record():
    record = logging.getLogger("marq").makeRecord(
        "marq", logging.WARNING, __file__, 1, "no commit", (), None, extra={"event": Event.COMMIT_FAILED}
    )
    assert record.event == "commit.failed"
    assert Event("commit.failed") is Event.COMMIT_FAILED
