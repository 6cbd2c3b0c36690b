"""`marq demo` tells its story for real, adds up, and leaves nothing behind."""

import json

import pytest

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(300)]

END_SECONDS = 240


def test_the_story_adds_up(marq_process):
    demo = marq_process("demo", "--json", "--messages", "1500", "--seed", "3")
    demo.await_line("kill -9", END_SECONDS)
    demo.await_line("the sum", END_SECONDS)
    assert demo.end(60) == 0, demo.said
    *events, result = demo.said
    told = json.loads(result)
    assert told["adds_up"] is True
    assert (told["sent"], told["acked"], told["dead"]) == (1500, 1497, 3)
    assert told["retried"] >= 3 * 3
    assert told["killed"]["leases"] > 0
    lines = {check["what"]: check for check in told["checks"]}
    assert all(check["ok"] for check in lines.values())
    leases = lines[f"leases of worker {told['killed']['name']}"]
    assert leases["claimed"] == leases["held"] == told["killed"]["leases"]
    assert lines["redelivered by Spark"]["held"] > 0
    assert lines["left"]["held"] == 0
    assert any("Spark gives its leases" in event for event in events)
    assert len(demo.family) >= 6  # the broker, the pipeline with its JVM, three workers, and a guard for each
    assert demo.survivors() == []
    assert [path.name for path in demo.temporary.iterdir() if path.name.startswith("marq-")] == []


def test_ctrl_c_ends_it_and_leaves_nothing(marq_process):
    demo = marq_process("demo")
    demo.await_line("pipeline on Spark", 60)
    demo.interrupt()
    demo.await_line("stopping", 2)
    assert demo.end(30) == 130
    assert not any("Traceback" in line for line in demo.said)
    assert demo.survivors() == []
    assert [path.name for path in demo.temporary.iterdir() if path.name.startswith("marq-")] == []
