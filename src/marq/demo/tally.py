"""Where the demo stands, from what the workers report and what the topics show."""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass, field

from marq.demo.log import LeaseBook
from marq.demo.plan import ATTEMPTS
from marq.demo.reports import ACKED, BEGUN, Report

RATE_SECONDS = 3.0


@dataclass
class WorkerTally:
    """One worker."""

    name: str
    pid: int
    state: str = "starting"
    consumer: str = ""  # the id of its consumer, as leases carry it
    acks: list[Report] = field(default_factory=list)
    failures: list[Report] = field(default_factory=list)
    begun: int = 0

    @property
    def in_hand(self) -> int:
        return max(0, self.begun - len(self.acks) - len(self.failures)) if self.state == "at work" else 0

    def take(self, report: Report) -> None:
        match report.what:
            case "here":
                self.consumer = report.id
                self.state = "at work"
            case "begun":
                self.begun += 1
            case "acked":
                self.acks.append(report)
            case "failed":
                self.failures.append(report)


@dataclass
class Tally:
    """Everything that is shown."""

    planned: int
    doing: str = "starting"
    began: float = field(default_factory=time.monotonic)
    sent: int = 0
    workers: list[WorkerTally] = field(default_factory=list)
    acked: Counter[str] = field(default_factory=Counter)  # by id
    dead: set[str] = field(default_factory=set)
    book: LeaseBook = field(default_factory=LeaseBook)
    attempts_seen: int = 0  # the highest
    events: list[tuple[float, str]] = field(default_factory=list)
    _marks: deque[tuple[float, int]] = field(default_factory=deque)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    def take(self, worker: WorkerTally, reports: list[Report]) -> None:
        for report in reports:
            worker.take(report)
            if report.what == ACKED:
                self.acked[report.id] += 1
            elif report.what == BEGUN:
                self.attempts_seen = max(self.attempts_seen, report.attempt)

    @property
    def settled(self) -> int:
        return len(self.acked) + len(self.dead - self.acked.keys())

    @property
    def in_flight(self) -> int:
        return sum(worker.in_hand for worker in self.workers)

    @property
    def waiting(self) -> int:
        return max(0, self.sent - self.settled - self.in_flight)

    @property
    def leased(self) -> int:
        """Durable leases right now, those of retries that wait included."""
        return len(self.book.live)

    @property
    def redelivered(self) -> int:
        return len(self.book.returned)

    @property
    def retried(self) -> int:
        return sum(failure.attempt < ATTEMPTS for worker in self.workers for failure in worker.failures)

    def mark(self, now: float) -> None:
        """Remember how far it has come, for the rate."""
        self._marks.append((now, self.settled))
        while now - self._marks[0][0] > RATE_SECONDS:
            self._marks.popleft()

    @property
    def rate(self) -> float:
        """Messages settled per second, of late."""
        if not self._marks:
            return 0.0
        (then, before), (now, settled) = self._marks[0], self._marks[-1]
        return (settled - before) / (now - then) if now > then else 0.0
