"""How often a message is tried, and how long it waits between two attempts."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from math import isfinite
from typing import TYPE_CHECKING

from marq.durations import format_duration
from marq.errors import ConfigurationError
from marq.settings import require_between

if TYPE_CHECKING:
    from collections.abc import Callable

ATTEMPTS_MAX = (1 << 31) - 1
DELAY_MAX = timedelta(days=365)


@dataclass(frozen=True)
class Retry:
    """Try a message `attempts` times (None: without end), waiting longer after each failure.

    After the first failed attempt a message waits `delay`, after each further one `factor` times as long as before,
    but no longer than `max_delay`. Every wait is then spread by up to `jitter` of itself, in both directions, so that
    messages that failed together do not come back together: 0.1 makes ten seconds anything from nine to eleven.
    """

    attempts: int | None = 5
    _: KW_ONLY
    delay: timedelta = timedelta(seconds=1)
    factor: float = 2.0
    max_delay: timedelta = timedelta(minutes=1)
    jitter: float = 0.1

    def __post_init__(self) -> None:
        if self.attempts is not None:
            require_between("attempts", self.attempts, 1, ATTEMPTS_MAX)
        require_between("delay", self.delay, timedelta(0), DELAY_MAX)
        require_between("max_delay", self.max_delay, timedelta(0), DELAY_MAX)
        _require_number("factor", self.factor, 1, 1000)
        _require_number("jitter", self.jitter, 0, 1)
        if self.delay > self.max_delay:
            raise ConfigurationError(
                f"delay ({format_duration(self.delay)}) is longer than max_delay ({format_duration(self.max_delay)}):"
                " give max_delay too"
            )

    @classmethod
    def fixed(cls, delay: timedelta, *, attempts: int | None = 5, jitter: float = 0.0) -> Retry:
        """The same wait after every failed attempt."""
        return cls(attempts, delay=delay, factor=1.0, max_delay=delay, jitter=jitter)

    @property
    def max_attempts(self) -> int:
        """The number of attempts as markers carry it: 0 means without end."""
        return self.attempts or 0

    def delay_after(self, attempt: int, random: Callable[[], float]) -> timedelta:
        """How long to wait when this attempt (1-based) has failed. `random` gives numbers from 0 up to 1."""
        if not self.delay:
            return self.delay
        try:
            wait = min(self.delay * float(self.factor) ** (attempt - 1), self.max_delay)
        except OverflowError:
            wait = self.max_delay
        return wait * (1 + self.jitter * (2 * random() - 1))


def _require_number(name: str, value: object, low: int, high: int) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    if not is_number or not low <= value <= high:  # type: ignore[operator]  # a number by now
        raise ConfigurationError(f"{name} must be a number from {low} to {high}, not {value!r}")
