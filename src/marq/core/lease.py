"""What a consumer notes of a message that needs more than its uncommitted offset, and of what it writes for it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from marq.core.frontier import LogRecord, Place, Sheet
from marq.core.records import Marker


class State(Enum):
    """Where a message stands that is not simply in flight."""

    MARKING = "its START is on its way"
    LEASED = "its lease is durable and kept alive"
    RETRYING = "its next attempt is on its way to the log"
    HELD = "it waits here for its time"
    DYING = "its dead letter is on its way"
    RELEASING = "it is being given up to the pipeline"
    EXPIRED = "its lease ran out: the pipeline gives it to somebody else"


KEPT = frozenset({State.LEASED, State.HELD, State.DYING, State.EXPIRED})


@dataclass(slots=True, eq=False)
class Lease:
    """A message that needs more than its uncommitted offset."""

    sheet: Sheet
    index: int
    record: LogRecord
    place: Place
    offset: int
    attempt: int
    state: State
    durable: bool = False  # the log knows of it
    sent: bool = False  # a START for it has left, so the log may know of it
    renew_at: float = 0.0
    expires_at: float = 0.0  # by our clock, counted from before the marker was sent: never too late
    told_at: float = 0.0  # when the marker that set this was ordered: answers may overtake each other
    delay: float = 0.0
    term: float = 0.0  # the length of the lease in force
    due: float = 0.0
    in_place: bool = False  # too large for any marker: it is protected by its uncommitted offset alone
    letter_refused: bool = False  # its dead letter is written again later: nothing of it is on its way
    home: tuple[Sheet, int] | None = None  # of one in place: the byte that the frontier waits for

    @property
    def key(self) -> tuple[Place, int]:
        return self.place, self.offset

    @property
    def is_kept_in_place(self) -> bool:
        return self.in_place and self.state in {State.LEASED, State.HELD}

    def has_run_out(self, now: float) -> bool:
        """Whether the pipeline may be giving the message to somebody else by now, noticed or not."""
        return self.state is State.EXPIRED or (self.durable and not self.in_place and now > self.expires_at)

    def mark(self, flag: int) -> None:
        self.sheet.flags[self.index] = flag
        if self.home is not None:
            sheet, index = self.home
            sheet.flags[index] = flag


@dataclass(slots=True)
class Order:
    """A marker to write, and whom it concerns."""

    marker: Marker
    leases: list[Lease]
    ordered_at: float


@dataclass(frozen=True, slots=True)
class Terms:
    """What the queue grants its consumers, in seconds."""

    queue: str
    owner: str
    lease: float
    mark_after: float
    hold_max: float
    hold_bytes: int
    max_attempts: int  # 0: no limit
    dead_letter_topic: str
    marker_bytes: int = 700_000
