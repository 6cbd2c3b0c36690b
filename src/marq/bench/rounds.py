"""Subjects take turns within one run, so that whatever else the machine does falls on all of them alike."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

Measure = Callable[[int], "Lap"]


@dataclass(frozen=True)
class Lap:
    """One subject's turn."""

    messages: int
    seconds: float
    cpu_seconds: float


@dataclass
class Subject:
    """Something that is measured, and what it did in each round."""

    name: str
    measure: Measure  # called with the number of the round
    laps: list[Lap] = field(default_factory=list)

    @property
    def rates(self) -> list[float]:
        return [lap.messages / lap.seconds for lap in self.laps]

    @property
    def median(self) -> float:
        return statistics.median(self.rates)

    def line(self, bench: str, size: int) -> str:
        cpu = statistics.median(lap.cpu_seconds / lap.messages for lap in self.laps) * 1e6
        return json.dumps(
            {
                "bench": bench,
                "subject": self.name,
                "size": size,
                "unit": "messages/s",
                "rounds": [round(rate) for rate in self.rates],
                "median": round(self.median),
                "cpu_us_per_message": round(cpu, 3),
            }
        )


class Stopwatch:
    """Wall and CPU time of this process, all threads: librdkafka's work counts too."""

    def __init__(self) -> None:
        self._wall = time.perf_counter()
        self._cpu = time.process_time()

    def lap(self, messages: int) -> Lap:
        return Lap(messages, time.perf_counter() - self._wall, time.process_time() - self._cpu)


def interleave(subjects: Sequence[Subject], rounds: int) -> Iterator[tuple[int, Subject, Lap]]:
    """A warm-up that does not count, then the rounds; each begins with another subject."""
    for subject in subjects:
        subject.measure(-1)
    for number in range(rounds):
        first = number % len(subjects)
        for subject in [*subjects[first:], *subjects[:first]]:
            lap = subject.measure(number)
            subject.laps.append(lap)
            yield number, subject, lap
