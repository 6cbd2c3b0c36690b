import re
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marq.durations import format_duration, parse_duration, to_ms
from marq.errors import ConfigurationError

durations = st.timedeltas(min_value=timedelta(0), max_value=timedelta.max)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5m", timedelta(minutes=5)),
        ("250ms", timedelta(milliseconds=250)),
        ("1h30m", timedelta(hours=1, minutes=30)),
        ("2d", timedelta(days=2)),
        ("0s", timedelta(0)),
        ("1.5s", timedelta(milliseconds=1500)),
        ("0.25ms", timedelta(microseconds=250)),
        (" 1d 2h 3m 4s 5ms ", timedelta(days=1, hours=2, minutes=3, seconds=4, milliseconds=5)),
        ("90m", timedelta(minutes=90)),
        ("0.000000001s", timedelta(microseconds=1)),  # rounded up, so that nothing is early
        ("0.1s", timedelta(microseconds=100_000)),  # exact, although a tenth is no binary fraction
    ],
)
def test_text_is_read_as_a_duration(text, expected):
    assert parse_duration(text) == expected


def test_a_timedelta_is_passed_through():
    assert parse_duration(timedelta(seconds=7)) == timedelta(seconds=7)


@pytest.mark.parametrize("number", ["5", " 5 ", 5, 5.5])
def test_a_bare_number_is_refused_with_a_hint(number):
    text = str(number).strip()
    with pytest.raises(ConfigurationError, match=rf"^lease needs a unit: say {re.escape(text)}s for seconds"):
        parse_duration(number, name="lease")


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "  ",
        "s",
        "5 parsecs",
        "-5s",
        "5m1h",
        "5s5s",
        "1,5s",
        "5S",
        "\u0665s",
        "1e3s",
        "5\ns\ns",
        None,
        True,
        b"5s",
        [],
        "9" * 16 + "s",
    ],
)
def test_what_is_no_duration_is_refused_with_an_example(wrong):
    with pytest.raises(ConfigurationError, match=r"^lease must be a duration such as 250ms, 30s"):
        parse_duration(wrong, name="lease")


def test_a_long_wrong_text_is_not_repeated_whole():
    with pytest.raises(ConfigurationError) as caught:
        parse_duration("x" * 10_000)
    assert len(str(caught.value)) < 200


def test_a_negative_duration_is_refused():
    with pytest.raises(ConfigurationError, match=r"^hold_max must not be negative, got -1m30s$"):
        parse_duration(timedelta(seconds=-90), name="hold_max")


def test_a_duration_beyond_counting_is_refused():
    with pytest.raises(ConfigurationError, match=r"^lease is longer than can be counted: the longest is 999999999d"):
        parse_duration("999999999999999d", name="lease")


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        (timedelta(0), "0s"),
        (timedelta(seconds=90), "1m30s"),
        (timedelta(milliseconds=250), "250ms"),
        (timedelta(milliseconds=1500), "1.5s"),
        (timedelta(microseconds=1500), "1.5ms"),
        (timedelta(days=2), "2d"),
        (timedelta(seconds=10), "10s"),
        (timedelta(milliseconds=100), "100ms"),
        (timedelta(days=1, milliseconds=10), "1d0.01s"),
        (timedelta(milliseconds=-250), "-250ms"),
        (timedelta(hours=-36), "-1d12h"),
    ],
)
def test_a_duration_is_written_as_briefly_as_it_is_read(duration, expected):
    assert format_duration(duration) == expected


@given(durations)
def test_what_is_written_is_read_as_the_same(duration):
    assert parse_duration(format_duration(duration)) == duration


@given(st.timedeltas())
def test_milliseconds_are_never_early_and_never_a_whole_one_late(duration):
    microseconds = duration // timedelta(microseconds=1)
    assert 0 <= to_ms(duration) * 1000 - microseconds < 1000


@given(st.text(max_size=30))
def test_any_text_gives_a_duration_or_a_sentence(text):
    try:
        sentence, duration = "lease ", parse_duration(text, name="lease")
    except ConfigurationError as error:
        sentence, duration = str(error), timedelta(0)
    assert sentence.startswith("lease ")
    assert duration >= timedelta(0)
