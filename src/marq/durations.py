"""Durations: `timedelta` in code, "5m" on command lines, in the environment and in files, milliseconds on the wire."""

from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction
from math import ceil

from marq.errors import ConfigurationError

_MICROSECONDS = {"d": 86_400_000_000, "h": 3_600_000_000, "m": 60_000_000, "s": 1_000_000, "ms": 1_000}
_SHAPE = re.compile(r"\s*".join(rf"(?:(?P<{unit}>[0-9]{{1,15}}(?:\.[0-9]{{1,9}})?){unit})?" for unit in _MICROSECONDS))
_BARE_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_MILLISECOND = timedelta(milliseconds=1)
_SHOWN_MAX = 40


def parse_duration(value: object, *, name: str = "the duration") -> timedelta:
    """The duration in "250ms", "5m" or "1h30m"; a `timedelta` is passed through.

    `name` is the setting that the error speaks of. A fraction of a microsecond counts as a whole one, so that nothing
    is early. A number without a unit is refused: nobody can see whether it means seconds or milliseconds.
    """
    if isinstance(value, timedelta):
        if value < timedelta(0):
            raise ConfigurationError(f"{name} must not be negative, got {format_duration(value)}")
        return value
    text = value.strip() if isinstance(value, str) else str(value)
    if _BARE_NUMBER.fullmatch(text):
        raise ConfigurationError(f"{name} needs a unit: say {text}s for seconds, {text}m for minutes")
    found = _SHAPE.fullmatch(text) if isinstance(value, str) and text else None
    if found is None:
        shown = repr(value)
        shown = shown if len(shown) <= _SHOWN_MAX else f"{shown[:_SHOWN_MAX]}..."
        raise ConfigurationError(f"{name} must be a duration such as 250ms, 30s, 5m, 1h30m or 2d, not {shown}")
    parts = (Fraction(count) * _MICROSECONDS[unit] for unit, count in found.groupdict().items() if count)
    try:
        return timedelta(microseconds=ceil(sum(parts)))
    except OverflowError as error:
        longest = format_duration(timedelta.max)
        raise ConfigurationError(f"{name} is longer than can be counted: the longest is {longest}") from error


def format_duration(duration: timedelta) -> str:
    """The shortest text that `parse_duration` reads as the same duration; a minus stands before a negative one."""
    rest = duration // timedelta(microseconds=1)
    sign, rest = ("-", -rest) if rest < 0 else ("", rest)
    if 0 < rest < _MICROSECONDS["s"]:
        return f"{sign}{_decimal(rest, 'ms')}"
    parts = []
    for unit in ("d", "h", "m"):
        count, rest = divmod(rest, _MICROSECONDS[unit])
        if count:
            parts.append(f"{count}{unit}")
    if rest or not parts:
        parts.append(_decimal(rest, "s"))
    return sign + "".join(parts)


def _decimal(microseconds: int, unit: str) -> str:
    whole, rest = divmod(microseconds, _MICROSECONDS[unit])
    digits = len(str(_MICROSECONDS[unit])) - 1
    return f"{whole}.{rest:0{digits}d}".rstrip("0").rstrip(".") + unit


def to_ms(duration: timedelta) -> int:
    """Whole milliseconds, rounded up: what waits for them is never early."""
    return -(-duration // _MILLISECOND)
