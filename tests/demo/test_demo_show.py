"""How the demo looks, on a terminal and without one."""

import io
import json

import pytest
from rich.console import Console

from marq.demo.audit import Check, Killed
from marq.demo.reports import ACKED, BEGUN, HERE, Report
from marq.demo.show import LiveStage, PlainStage, picture, table
from marq.demo.story import Outcome
from marq.demo.tally import Tally, WorkerTally


def screen(*, terminal):
    return Console(
        file=io.StringIO(), force_terminal=terminal, width=100, color_system="standard" if terminal else None
    )


@pytest.fixture
def tally():
    tally = Tally(1_000, sent=1_000, doing="at work")
    worker = WorkerTally("A", 4711)
    tally.workers.append(worker)
    tally.take(worker, [Report(HERE, 0, 0, "me"), Report(BEGUN, 1, 1, "t/0/1"), Report(ACKED, 1, 1, "t/0/1")])
    return tally


def outcome(*checks):
    return Outcome(
        adds_up=all(check.ok for check in checks),
        seconds=45.6,
        messages=1_000,
        seed=1,
        rate=300,
        killed=Killed("A", 4711, "me", 3),
        leased=10,
        checks=list(checks),
        events=[(0.0, "starting")],
    )


GOOD = (
    Check("sent", 1_000, 1_000, True, "as sent"),
    Check("acked", 998, 998, True, "by workers"),
    Check("dead", 2, 2, True, "after 4 attempts"),
)


def test_a_frame_shows_every_number(tally):
    console = screen(terminal=False)
    console.print(picture(tally))
    said = console.file.getvalue()
    for name in ("sent", "acked", "dead", "waiting", "in flight", "leased", "retried", "redelivered", "rate"):
        assert name in said
    assert "1 of 1,000" in said
    assert "worker A  process 4711  at work" in said


def test_the_live_stage_keeps_the_events_and_clears_the_picture(tally):
    console = screen(terminal=True)
    stage = LiveStage(console)
    stage.event(1.5, "something happened")
    stage.update(tally)
    stage.close()
    said = console.file.getvalue()
    assert "  1.5 s  something happened" in said
    assert said.rstrip().endswith("\x1b[2K")  # the picture's lines are erased again
    assert "\x1b[?25h" in said  # and the cursor is back


@pytest.mark.parametrize("stderr", [False, True])
def test_the_plain_stage_prints_lines(tally, capsys, monkeypatch, stderr):
    stage = PlainStage(stderr=stderr)
    stage.event(1.5, "something happened")
    stage.update(tally)
    monkeypatch.setattr("marq.demo.show.PLAIN_SECONDS", 0.0)
    stage.update(tally)
    stage.update(tally)
    stage.close()
    captured = capsys.readouterr()
    said, other = (captured.err, captured.out) if stderr else (captured.out, captured.err)
    first, second = said.splitlines()
    assert first == "  1.5 s  something happened"
    assert "sent 1,000, acked 1, dead 0, waiting 999, in flight 0" in second
    assert other == ""
    assert "\x1b" not in said


def test_the_table_ends_with_the_verdict():
    console = screen(terminal=False)
    console.print(table(outcome(*GOOD), console))
    said = console.file.getvalue()
    assert "It adds up: 1,000 messages sent, 998 acked, 2 dead, none lost, one worker killed, in 46 s." in said
    assert "\x1b" not in said


def test_the_table_says_what_is_wrong():
    console = screen(terminal=False)
    console.print(table(outcome(*GOOD[:2], Check("dead", 2, 3, False, "after 4 attempts")), console))
    said = console.file.getvalue()
    assert "It does not add up: dead." in said
    assert [line.split()[:4] for line in said.splitlines() if line.startswith("dead")] == [["dead", "2", "3", "WRONG"]]


def test_json_has_the_numbers_and_the_lines():
    said = json.loads(outcome(*GOOD).to_json())
    assert (said["adds_up"], said["sent"], said["acked"], said["dead"]) == (True, 1_000, 998, 2)
    assert said["killed"] == {"name": "A", "pid": 4711, "consumer": "me", "leases": 3}
    assert said["checks"][2] == {"what": "dead", "claimed": 2, "held": 2, "ok": True, "how": "after 4 attempts"}
    assert said["events"] == [[0.0, "starting"]]
