"""What the pipeline says of itself, and where it hears it."""

import json
from types import SimpleNamespace

from pyspark.sql import Row

from marq.pipeline.listener import TrackerListener, lag_of, reports_in
from marq.pipeline.status import StatusBoard
from marq.pipeline.tracker import QUERY


def report(mp=0, **said):
    usual = {"now": 5, "due": None, "open": True, "hot": 0, "cold": 0, "redelivered": 0, "dead": 0}
    return {"mp": mp, **usual, "late_p50": None, "late_max": None, "counts": {}, **said}


def test_counts_add_up_and_states_are_the_latest():
    board = StatusBoard()
    board.batch(300, 7, [report(0, hot=5, redelivered=2, late_p50=100, late_max=900, counts={"malformed": 1})], 1)
    board.batch(100, 0, [report(0, hot=3), report(1, cold=4, dead=1, late_p50=200, late_max=300)], 0)
    status = board.snapshot(ticks=9)
    assert (status.batches, status.lag, status.ticks, status.orphans) == (2, 0, 9, 1)
    assert (status.hot, status.cold, status.redelivered, status.dead) == (3, 4, 2, 1)
    assert (status.batch_ms_p50, status.batch_ms_max) == (300, 300)
    assert (status.late_ms_p50, status.late_ms_max) == (200, 900)
    assert status.counts == {"malformed": 1}


def test_ready_means_every_partition_has_reached_its_gate():
    board = StatusBoard()
    assert not board.opened(2)
    board.batch(1, 0, [report(0), report(1, open=False)], 0)
    assert not board.opened(2)
    board.batch(1, 0, [report(1)], 0)
    assert board.opened(2)
    board.ready()
    assert board.snapshot().ready


def test_a_status_is_one_line_of_json():
    board = StatusBoard()
    board.failed("no broker")
    line = board.snapshot(tick_error="no leader").to_json()
    assert "\n" not in line
    said = json.loads(line)
    assert (said["restarts"], said["last_error"], said["batch_ms_p50"]) == (1, "no broker", None)
    assert StatusBoard().snapshot(tick_error="no leader").last_error == "no leader"


class FakePulse:
    def __init__(self):
        self.reports = []

    def report(self, partition, *, due, seen):
        self.reports.append((partition, due, seen))


def progress(reports, orphans=0, name=QUERY, rows=1, unwritable=""):
    sink = Row(orphans=orphans, unwritable=unwritable)
    observed = {"ledger": {"reports": "\n".join(map(json.dumps, reports))}, "sink": sink}
    source = SimpleNamespace(endOffset='{"m": {"0": 5, "1": 7}}', latestOffset='{"m": {"0": 9, "1": 7}}')
    return SimpleNamespace(
        progress=SimpleNamespace(
            name=name,
            observedMetrics=observed if reports else {},
            numInputRows=rows,
            batchDuration=250,
            sources=[source],
        )
    )


def test_the_listener_tells_the_pulse_and_the_board():
    board, pulse, events = StatusBoard(), FakePulse(), []
    listener = TrackerListener(board, pulse, lambda: events.append(1))
    listener.onQueryStarted(None)
    listener.onQueryProgress(progress([report(0, due=77), report(1)], orphans=2))
    listener.onQueryProgress(progress([report(0)], name="another"))
    listener.onQueryProgress(progress([], rows=0))
    listener.onQueryIdle(None)
    listener.onQueryTerminated(None)
    assert pulse.reports == [(0, 77, 5), (1, None, 5)]
    assert board.snapshot().lag == 4
    assert board.snapshot().orphans == 2
    assert board.batches == 1
    assert len(events) == 2


def test_letters_that_fit_nowhere_are_named_aloud(caplog):
    board = StatusBoard()
    listener = TrackerListener(board, FakePulse(), lambda: None)
    listener.onQueryProgress(progress([report(0)], unwritable="orders/0/1: too large\norders/0/2: too large"))
    listener.onQueryProgress(progress([report(0)], unwritable=None))
    assert board.snapshot().unwritable == 2
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert "only copy: orders/0/1: too large" in caplog.text


def test_idle_progress_reports_nothing():
    assert reports_in(None) == []
    assert reports_in({"reports": None}) == []
    assert reports_in({"reports": ""}) == []


def test_lag_counts_records_between_two_offsets():
    assert lag_of('{"m": {"0": 5}}', '{"m": {"0": 9, "1": 3}}') == 7
    assert lag_of('{"m": ', '{"m": {"0": 9}}') == 0
    assert lag_of('{"m": {"0": 5}}', "no JSON") == 0
    assert lag_of(None, '{"m": {"0": 9}}') == 0
    assert lag_of("null", '{"m": {"0": 9}}') == 0
    assert lag_of('{"m": {"0": 9}}', '{"m": {"0": 5}}') == 0
