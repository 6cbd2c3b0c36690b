import sys

from marq.stack import progress
from marq.stack.progress import Progress


class FakeTerminal:
    def __init__(self, terminal):
        self.terminal, self.text = terminal, ""

    def isatty(self):
        return self.terminal

    def write(self, text):
        self.text += text
        return len(text)

    def flush(self):
        pass


def test_without_a_terminal_there_are_plain_lines_now_and_then(monkeypatch):
    clock = iter([0.0, 1.0, 6.0, 6.0, 7.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    stderr = FakeTerminal(terminal=False)
    monkeypatch.setattr(sys, "stderr", stderr)
    with Progress("Fetching it", 45_000_000) as shown:
        shown.arrived(1_000_000)
        shown.arrived(33_000_000)
        shown.arrived(34_000_000)
    assert stderr.text.splitlines() == ["Fetching it", "  33 of 45 MB"]


def test_on_a_terminal_there_is_a_bar(monkeypatch):
    stderr = FakeTerminal(terminal=True)
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setenv("TERM", "xterm")
    with Progress("Fetching it", 45_000_000) as shown:
        shown.arrived(90_000_000)
    assert stderr.text.startswith("Fetching it\n")
    assert "45.0/45.0 MB" in stderr.text
