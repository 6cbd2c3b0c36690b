"""Where and when the next tick is due.

The ledger's clock is the broker's: the largest timestamp seen on a markers partition. When nothing else is written
there, a tick must be. Ticks are aimed, because each costs a micro-batch: the ledger reports the earliest time it
waits for, and a tick follows at that moment. A slow heartbeat to all partitions covers whatever goes missing.

Nothing here reads a clock. A `moment` is milliseconds on the caller's monotonic clock; a `time` is milliseconds on
the broker's. What ties them is the last tick delivered: it had this time when it was known at that moment, so the
broker's clock shows at least `time + (moment now - moment then)`. Each partition has its own, since each may have
another leader with another clock.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

RETRY_MS = 1000


@dataclass(slots=True)
class _Target:
    """What is known of one markers partition."""

    due: int | None = None  # the earliest time the newest report asks for
    seen: int = -1  # the ledger's now in that report
    ticked: int | None = None  # the time of the last tick delivered
    ticked_at: int = 0  # the moment at which that was known
    on_its_way: bool = False
    not_before: int | None = None  # the moment at which to try again, after a failure

    def wanted_at(self, margin_ms: int) -> int | None:
        """The moment of the next aimed tick; None when the ledger waits for nothing that a tick could tell it."""
        if self.on_its_way:
            return None
        if self.not_before is not None:
            return self.not_before
        if self.ticked is None:
            return 0
        if self.due is None:
            return None
        if self.due > self.ticked:
            return self.ticked_at + self.due - self.ticked + margin_ms
        # The last tick was late enough. If the report knew of it, the ledger asks for another; else it comes by itself.
        return self.ticked_at if self.seen >= self.ticked else None


class Aim:
    """Decides which partitions get a tick, and how long the pulse may sleep.

    A tick that comes too soon is harmless, it only has to be sent again; the margin makes that rare, and lets one tick
    serve deadlines that lie close together.
    """

    def __init__(self, partitions: Iterable[int], *, heartbeat_ms: int, margin_ms: int = 0) -> None:
        self._heartbeat_ms = heartbeat_ms
        self._margin_ms = margin_ms
        self._targets = {partition: _Target() for partition in partitions}
        self._next_beat: int | None = None

    def watch(self, partitions: Iterable[int]) -> None:
        """The topic may have grown: new partitions get their first tick."""
        for partition in partitions:
            self._targets.setdefault(partition, _Target())

    def start_over(self) -> None:
        """The reader of the ticks was restarted: what it reported no longer holds, and each partition gets a tick."""
        for target in self._targets.values():
            target.due, target.seen, target.ticked = None, -1, None

    def report(self, partition: int, *, due: int | None, seen: int) -> None:
        """What a batch said of a partition: which time it waits for, and which it has seen.

        It speaks for that partition alone, and replaces what was said before.
        """
        target = self._targets.setdefault(partition, _Target())
        target.due, target.seen = due, seen

    def delivered(self, partition: int, *, time: int, moment: int) -> None:
        target = self._targets[partition]
        target.ticked, target.ticked_at = time, moment
        target.on_its_way, target.not_before = False, None

    def failed(self, partition: int, *, moment: int) -> None:
        target = self._targets[partition]
        target.on_its_way, target.not_before = False, moment + RETRY_MS

    def take(self, moment: int) -> list[int]:
        """The partitions to tick now. Each counts as on its way until it is `delivered` or `failed`."""
        if self._next_beat is None or moment >= self._next_beat:
            self._next_beat = moment + self._heartbeat_ms
            chosen = [partition for partition, target in self._targets.items() if not target.on_its_way]
        else:
            chosen = [partition for partition, wanted in self._wanted() if wanted <= moment]
        for partition in chosen:
            self._targets[partition].on_its_way = True
        return chosen

    def wait(self, moment: int) -> int:
        """Milliseconds until `take` may have something, if nothing is reported before."""
        first = min((wanted for _, wanted in self._wanted()), default=None)
        beat = moment if self._next_beat is None else self._next_beat
        return max(0, (beat if first is None else min(first, beat)) - moment)

    def _wanted(self) -> Iterator[tuple[int, int]]:
        for partition, target in self._targets.items():
            wanted = target.wanted_at(self._margin_ms)
            if wanted is not None:
                yield partition, wanted

    @property
    def on_their_way(self) -> bool:
        return any(target.on_its_way for target in self._targets.values())
