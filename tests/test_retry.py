from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marq.errors import ConfigurationError
from marq.retry import ATTEMPTS_MAX, DELAY_MAX, Retry


def middle() -> float:
    """A random number that spreads nothing."""
    return 0.5


@st.composite
def policies(draw):
    delay, max_delay = sorted(draw(st.tuples(*[st.timedeltas(timedelta(0), DELAY_MAX)] * 2)))
    return Retry(
        draw(st.none() | st.integers(1, ATTEMPTS_MAX)),
        delay=delay,
        max_delay=max_delay,
        factor=draw(st.floats(1, 1000) | st.integers(1, 1000)),
        jitter=draw(st.floats(0, 1)),
    )


numbers = st.floats(0, 1, exclude_max=True)
attempts = st.integers(1, ATTEMPTS_MAX)


def test_each_wait_is_longer_until_the_longest():
    retry = Retry(delay=timedelta(seconds=1), factor=2, max_delay=timedelta(seconds=10))
    waits = [retry.delay_after(attempt, middle) for attempt in range(1, 7)]
    assert waits == [timedelta(seconds=n) for n in (1, 2, 4, 8, 10, 10)]


def test_jitter_spreads_in_both_directions():
    retry = Retry(delay=timedelta(seconds=10), jitter=0.1)
    assert retry.delay_after(1, lambda: 0.0) == timedelta(seconds=9)
    assert retry.delay_after(1, middle) == timedelta(seconds=10)
    assert timedelta(seconds=10.99) < retry.delay_after(1, lambda: 0.9999) < timedelta(seconds=11)


def test_fixed_waits_the_same_after_every_attempt():
    retry = Retry.fixed(timedelta(minutes=5), attempts=3)
    assert {retry.delay_after(attempt, lambda: 0.9) for attempt in (1, 2, 50, ATTEMPTS_MAX)} == {timedelta(minutes=5)}
    assert retry.attempts == 3


def test_without_delay_there_is_no_wait():
    retry = Retry(delay=timedelta(0), jitter=1.0)
    assert retry.delay_after(ATTEMPTS_MAX, lambda: 0.9) == timedelta(0)


def test_no_limit_is_zero_on_the_wire():
    assert Retry(None).max_attempts == 0
    assert Retry(7).max_attempts == 7


@given(policies(), attempts, numbers)
def test_a_wait_stays_within_the_jitter_around_the_bounds(retry, attempt, number):
    wait = retry.delay_after(attempt, lambda: number)
    slack = timedelta(microseconds=1)
    assert retry.delay * (1 - retry.jitter) - slack <= wait <= retry.max_delay * (1 + retry.jitter) + slack


@given(policies(), st.integers(1, ATTEMPTS_MAX - 1))
def test_no_wait_is_shorter_than_the_one_before(retry, attempt):
    assert retry.delay_after(attempt, middle) <= retry.delay_after(attempt + 1, middle)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"attempts": 0}, "attempts must be from 1 to 2147483647, not 0"),
        ({"attempts": 2**31}, "attempts must be from 1 to 2147483647, not 2147483648"),
        ({"attempts": "5"}, "attempts must be a whole number from 1 to 2147483647, not '5'"),
        ({"delay": timedelta(seconds=-1)}, "delay must be from 0s to 365d, not -1s"),
        ({"delay": 5}, "delay must be a timedelta from 0s to 365d, not 5"),
        ({"max_delay": timedelta(days=366)}, "max_delay must be from 0s to 365d, not 366d"),
        ({"factor": 0.5}, "factor must be a number from 1 to 1000, not 0.5"),
        ({"factor": float("nan")}, "factor must be a number from 1 to 1000, not nan"),
        ({"jitter": 1.5}, "jitter must be a number from 0 to 1, not 1.5"),
        ({"jitter": True}, "jitter must be a number from 0 to 1, not True"),
        ({"jitter": "0.1"}, "jitter must be a number from 0 to 1, not '0.1'"),
        ({"delay": timedelta(minutes=5)}, "delay (5m) is longer than max_delay (1m): give max_delay too"),
    ],
)
def test_a_wrong_policy_is_refused_with_a_sentence(options, sentence):
    with pytest.raises(ConfigurationError) as caught:
        Retry(**options)
    assert str(caught.value) == sentence


def test_a_policy_is_a_value():
    assert Retry(3) == Retry(attempts=3)
    assert len({Retry(3), Retry(3), Retry(4)}) == 2
    with pytest.raises(TypeError):
        Retry(3, timedelta(seconds=1))
