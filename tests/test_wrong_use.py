"""Wrong values get a sentence at once, where they are given."""

from datetime import timedelta

import pytest

from marq import App, Retry
from marq.errors import ConfigurationError


@pytest.fixture
def app():
    with App("memory://") as app:
        yield app


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"key": 5}, "key must be str or bytes, not int"),
        ({"headers": {"a": 1}}, "the header a must be str or bytes, not int"),
        ({"headers": [("a", 1)]}, "the header a must be str or bytes, not int"),
        ({"headers": "x"}, "headers must be a mapping or a list of pairs"),
    ],
)
def test_keys_and_headers_of_a_wrong_type(app, options, sentence):
    queue = app.queue("mail", str)
    with pytest.raises(TypeError, match=sentence):
        queue.send("a", **options)
    with pytest.raises(TypeError, match=sentence):
        queue.send_many(["a"], **options)


def test_one_value_is_not_many(app):
    with pytest.raises(TypeError, match="send_many takes several values"):
        app.queue("mail", str).send_many("abc")


def test_a_retry_policy_is_a_retry(app):
    with pytest.raises(ConfigurationError, match=r"retry must be a Retry, such as Retry\(attempts=5\), not 5"):
        app.queue("mail", str, retry=5)


def test_two_declarations_that_differ_name_both(app):
    app.queue("mail", str)
    with pytest.raises(
        ConfigurationError, match=r"The queue mail was declared before, as <class 'str'>.*<class 'int'>"
    ):
        app.queue("mail", int)
    with pytest.raises(ConfigurationError, match=r"attempts=5.*attempts=2.*Declare it in one place"):
        app.queue("mail", str, retry=Retry(2))


def test_numbers_are_no_durations(app):
    queue = app.queue("mail", str)
    with pytest.raises(ConfigurationError, match="result: timeout must be a timedelta"):
        queue.send("a").result(5)
    with queue.consume() as messages:
        with pytest.raises(ConfigurationError, match="receive: timeout must be a timedelta"):
            messages.receive(timeout=5)
        [message] = messages.receive(timeout=timedelta(seconds=5))
        with pytest.raises(ConfigurationError, match="nack: delay must be a timedelta"):
            message.nack(5)
        with pytest.raises(ConfigurationError, match="extend: lease must be a timedelta"):
            message.extend(5)
        with pytest.raises(TypeError, match="the reason must be str, not int"):
            message.dead_letter(5)
        message.ack()


def test_a_settings_file_may_be_named_by_text(tmp_path):
    file = tmp_path / "marq.toml"
    file.write_text('url = "memory://"\n[consumer]\nlease = "45s"\n')
    with App(settings_file=str(file)) as app:
        assert app.settings.consumer.lease == timedelta(seconds=45)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        App("memory://", settings_file=str(tmp_path / "nothing.toml"))


def test_a_misspelt_setting_of_librdkafka_is_named():
    with (
        App("kafka://127.0.0.1:1", kafka={"linger.mss": "5"}) as app,
        pytest.raises(ConfigurationError, match=r"linger\.mss"),
    ):
        app.queue("mail").send(b"x")
