"""What the pipeline says of itself."""

import json
import threading
from collections import Counter, deque
from dataclasses import asdict, dataclass, field
from typing import Any

RECENT = 200  # batches from which durations and lateness are taken


@dataclass(frozen=True)
class PipelineStatus:
    """One moment of the pipeline. Counts are since it started."""

    ready: bool = False
    batches: int = 0
    batch_ms_p50: int | None = None  # of the latest batches
    batch_ms_max: int | None = None
    lag: int = 0  # marker records not yet read, when the last batch ended
    hot: int = 0  # messages leased, or due soon
    cold: int = 0  # messages delayed further
    redelivered: int = 0
    dead: int = 0
    orphans: int = 0  # letters that their topic could not take: they went to the dead-letter topic
    unwritable: int = 0  # letters that no topic could take
    late_ms_p50: int | None = None  # letters given out after their deadline, on the broker's clock
    late_ms_max: int | None = None
    ticks: int = 0
    restarts: int = 0
    counts: dict[str, int] = field(default_factory=dict)  # what the ledger found odd: malformed, stale, unknown_end...
    last_error: str | None = None

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class StatusBoard:
    """Collects the status from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._partitions: dict[int, dict[str, Any]] = {}
        self._sums: Counter[str] = Counter()
        self._odd: Counter[str] = Counter()
        self._durations: deque[int] = deque(maxlen=RECENT)
        self._late: deque[tuple[int, int]] = deque(maxlen=RECENT)
        self._lag = 0
        self._restarts = 0
        self._last_error: str | None = None
        self._ready = False

    @property
    def batches(self) -> int:
        with self._lock:
            return self._sums["batches"]

    def batch(
        self, duration_ms: int, lag: int, reports: list[dict[str, Any]], orphans: int, unwritable: int = 0
    ) -> None:
        with self._lock:
            self._sums["batches"] += 1
            self._sums["orphans"] += orphans
            self._sums["unwritable"] += unwritable
            self._durations.append(duration_ms)
            self._lag = lag
            for report in reports:
                self._partitions[report["mp"]] = report
                self._sums["redelivered"] += report["redelivered"]
                self._sums["dead"] += report["dead"]
                self._odd.update(report["counts"])
                if report["late_max"] is not None:
                    self._late.append((report["late_p50"], report["late_max"]))

    def opened(self, partitions: int) -> bool:
        """Whether every markers partition has been read up to its gate."""
        with self._lock:
            return sum(bool(report["open"]) for report in self._partitions.values()) >= partitions

    def ready(self) -> None:
        with self._lock:
            self._ready = True

    def failed(self, error: str) -> None:
        with self._lock:
            self._restarts += 1
            self._last_error = error

    def warn(self, error: str) -> None:
        """Something is wrong, but nothing has ended."""
        with self._lock:
            self._last_error = error

    def snapshot(self, *, ticks: int = 0, tick_error: str | None = None) -> PipelineStatus:
        with self._lock:
            late = sorted(middle for middle, _ in self._late)
            durations = sorted(self._durations)
            return PipelineStatus(
                ready=self._ready,
                batches=self._sums["batches"],
                batch_ms_p50=durations[len(durations) // 2] if durations else None,
                batch_ms_max=durations[-1] if durations else None,
                lag=self._lag,
                hot=sum(report["hot"] for report in self._partitions.values()),
                cold=sum(report["cold"] for report in self._partitions.values()),
                redelivered=self._sums["redelivered"],
                dead=self._sums["dead"],
                orphans=self._sums["orphans"],
                unwritable=self._sums["unwritable"],
                late_ms_p50=late[len(late) // 2] if late else None,
                late_ms_max=max((worst for _, worst in self._late), default=None),
                ticks=ticks,
                restarts=self._restarts,
                counts=dict(self._odd),
                last_error=self._last_error or tick_error,
            )
