"""Workers' reports: lines that are whole or not there, read as they come."""

from marq.demo.reports import ACKED, BEGUN, FAILED, HERE, Report, ReportFile, ReportTail
from marq.demo.tally import Tally, WorkerTally


def test_lines_are_read_as_they_come(tmp_path):
    tail = ReportTail(tmp_path / "reports")
    assert tail.read() == []
    file = ReportFile(tmp_path / "reports")
    file.write(HERE, "host-1-abc")
    file.write(BEGUN, "t/0/1", 7, 2)
    assert tail.read() == [Report(HERE, 0, 0, "host-1-abc"), Report(BEGUN, 7, 2, "t/0/1")]
    assert tail.read() == []
    file.write(ACKED, "t/0/1", 7, 2)
    assert tail.read() == [Report(ACKED, 7, 2, "t/0/1")]


def test_half_a_line_waits_for_its_other_half(tmp_path):
    path = tmp_path / "reports"
    tail = ReportTail(path)
    path.write_bytes(b"acked 1 1 t/0/1\nacked 2")
    assert [report.number for report in tail.read()] == [1]
    with path.open("ab") as file:
        file.write(b"2 1 t/0/2\n")
    assert [report.number for report in tail.read()] == [22]


def test_the_tally_counts_each_message_once():
    tally = Tally(10)
    worker = WorkerTally("A", 1)
    tally.workers.append(worker)
    tally.sent = 10
    tally.take(worker, [Report(HERE, 0, 0, "me")])
    assert (worker.state, worker.consumer) == ("at work", "me")
    tally.take(worker, [Report(BEGUN, n, 1, f"t/0/{n}") for n in range(4)])
    assert (tally.in_flight, tally.waiting) == (4, 6)
    tally.take(worker, [Report(ACKED, 0, 1, "t/0/0"), Report(FAILED, 1, 1, "t/0/1"), Report(FAILED, 2, 4, "t/0/2")])
    assert (tally.in_flight, tally.settled, tally.retried) == (1, 1, 1)
    tally.dead.add("t/0/2")
    tally.take(worker, [Report(ACKED, 0, 1, "t/0/0")])
    assert (tally.settled, tally.acked["t/0/0"]) == (2, 2)
    worker.state = "killed"
    assert (tally.in_flight, tally.waiting) == (0, 8)


def test_the_rate_is_that_of_the_last_seconds():
    tally = Tally(100)
    assert tally.rate == 0.0
    tally.mark(0.0)
    tally.acked.update({f"t/0/{n}": 1 for n in range(20)})
    tally.mark(2.0)
    assert tally.rate == 10.0
    tally.mark(4.0)
    tally.mark(6.0)
    assert tally.rate == 0.0
