"""Spark's progress, as it comes: deadlines to the pulse, numbers to the status board."""

import json
import logging
from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from marq.pipeline.destinations import UNWRITABLE
from marq.pipeline.pulse import Pulse
from marq.pipeline.status import StatusBoard
from marq.pipeline.tracker import LEDGER, QUERY, SINK

log = logging.getLogger("marq.pipeline")


class TrackerListener(StreamingQueryListener):  # type: ignore[misc]  # pyspark has no types that hold
    """Spark calls it on a thread of its own, some milliseconds after the batch."""

    def __init__(self, board: StatusBoard, pulse: Pulse, on_event: Callable[[], None]) -> None:
        self._board = board
        self._pulse = pulse
        self._on_event = on_event

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Nothing has happened yet."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        progress = event.progress
        if progress.name != QUERY:
            return
        reports = reports_in(progress.observedMetrics.get(LEDGER))
        for report in reports:
            self._pulse.report(report["mp"], due=report["due"], seen=report["now"])
        if not progress.numInputRows:
            return
        sink = progress.observedMetrics.get(SINK)
        orphans = int(sink["orphans"] or 0) if sink is not None else 0
        lag = sum(lag_of(source.endOffset, source.latestOffset) for source in progress.sources)
        unwritable = (sink[UNWRITABLE] or "").splitlines() if sink is not None else []
        self._board.batch(int(progress.batchDuration), lag, reports, orphans, len(unwritable))
        if orphans:
            log.warning("%d letters could not go to their topic; they are in the dead-letter topic", orphans)
        for letter in unwritable:
            log.error(
                "a letter fits on no topic and was not written; its START on the markers topic is the only copy: %s",
                letter,
            )
        self._on_event()

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Nothing is waiting."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802, ARG002 - Spark's name
        self._on_event()


def reports_in(observed: Any) -> list[dict[str, Any]]:
    """The reports of a batch, one per markers partition that had records; none on idle progress."""
    text = observed["reports"] if observed is not None else None
    return [json.loads(line) for line in text.splitlines()] if text else []


def lag_of(end: str | None, latest: str | None) -> int:
    """How many records lie between two of Spark's Kafka offsets: {"topic": {"0": 17}}."""
    if not end or not latest or latest == "null" or end == "null":
        return 0
    try:
        ends, latests = json.loads(end), json.loads(latest)
    except ValueError:  # a number for the eye is not worth a failure
        return 0
    reached = {(t, p): offset for t, partitions in ends.items() for p, offset in partitions.items()}
    return sum(
        max(0, offset - reached.get((topic, partition), 0))
        for topic, partitions in latests.items()
        for partition, offset in partitions.items()
    )
