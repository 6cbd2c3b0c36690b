"""How much to trust a partition that has just become ours: its last owner may have died of what lies at its front."""

from __future__ import annotations

from collections.abc import Iterable

from marq.core.frontier import Place
from marq.core.records import OFFSET_MAX

CLEAN = "marq:clean"  # commit metadata: whoever committed this left nothing behind
OPEN = "marq:open"  # somebody is at work here; found by a new owner, it means that he died

CAREFUL_SECONDS = 10.0  # how long commits follow every batch, so that a second death finds the culprit at the front


class Caution:
    """Decides what is leased, and what is committed, before messages are handed out."""

    def __init__(self, window: int) -> None:
        self._window = window  # as many messages as the dead owner may have had in hand
        self._left: dict[Place, int] = {}
        self._doubtful: dict[Place, int] = {}  # left open by their last owner: where he may have been, at the most
        self._announced: set[Place] = set()  # partitions of which the group knows that somebody is at work there
        self._until = 0.0

    def assigned(self, place: Place, metadata: str | None, now: float, end: int = -1) -> bool:
        """Whether the partition was left in order. No commit at all says that it was not. The log ends at `end`."""
        if metadata == CLEAN:
            return True
        self._left[place] = self._window
        if metadata is not None:
            self._doubtful[place] = end if end >= 0 else OFFSET_MAX
        self._until = now + CAREFUL_SECONDS
        return False

    def dropped(self, place: Place) -> None:
        self._left.pop(place, None)
        self._doubtful.pop(place, None)
        self._announced.discard(place)

    def leases_first(self, place: Place, count: int) -> bool:
        """Whether a run must be leased before it is handed out: then its attempt survives what it may do to us."""
        left = self._left.get(place)
        if left is None:
            return False
        if left > count:
            self._left[place] = left - count
        else:
            del self._left[place]
            self._doubtful.pop(place, None)
        return True

    def parting_word(self, place: Place, position: int) -> str:
        """What to commit when the partition goes. Nobody vouches for what a dead owner left unseen."""
        return OPEN if position < self._doubtful.get(place, -1) else CLEAN

    def is_unannounced(self, places: Iterable[Place]) -> bool:
        return any(place not in self._announced for place in places)

    def announced(self, places: Iterable[Place]) -> None:
        self._announced.update(places)

    def commits_now(self, now: float) -> bool:
        """Whether commits follow every batch."""
        return now < self._until
