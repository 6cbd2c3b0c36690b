import dataclasses
import pickle
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marq.durations import format_duration
from marq.errors import ConfigurationError
from marq.settings import (
    RESERVED_KAFKA_KEYS,
    SECTIONS,
    AppSettings,
    ConsumerSettings,
    PipelineSettings,
    TopicSettings,
    load_settings,
    masked,
    queue_name,
    require_between,
    suggestion,
    variable_of,
)

URL = "kafka://localhost:9092"


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def sentence_of(kind, **options) -> str:
    with pytest.raises(ConfigurationError) as caught:
        kind(**options)
    return str(caught.value)


# The values


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"lease": seconds(0.5)}, "lease must be from 1s to 12h, not 500ms"),
        ({"lease": timedelta(hours=13)}, "lease must be from 1s to 12h, not 13h"),
        ({"lease": 30}, "lease must be a timedelta from 1s to 12h, not 30"),
        ({"mark_after": seconds(16)}, "mark_after must be from 0s to 15s (half of the lease), not 16s"),
        ({"mark_after": seconds(-1)}, "mark_after must be from 0s to 15s (half of the lease), not -1s"),
        ({"hold_max": timedelta(hours=2)}, "hold_max must be from 0s to 1h, not 2h"),
        ({"hold_bytes": -1}, "hold_bytes must be from 0 to 1099511627776, not -1"),
        ({"max_in_flight": 0}, "max_in_flight must be from 1 to 1000000, not 0"),
        ({"max_in_flight": True}, "max_in_flight must be a whole number from 1 to 1000000, not True"),
        ({"commit_interval": seconds(0.001)}, "commit_interval must be from 10ms to 1m, not 1ms"),
        ({"session_timeout": seconds(5)}, "session_timeout must be from 6s to 30m, not 5s"),
        ({"poll_batch": 10_001}, "poll_batch must be from 1 to 10000, not 10001"),
        ({"poll_batch": "x" * 500}, f"poll_batch must be a whole number from 1 to 10000, not '{'x' * 59}..."),
    ],
)
def test_consumer_settings_are_bounded(options, sentence):
    assert sentence_of(ConsumerSettings, **options) == sentence


def test_the_default_of_mark_after_gives_way_to_a_short_lease():
    assert ConsumerSettings(lease=seconds(1)).mark_after == seconds(0.5)
    assert ConsumerSettings(lease=seconds(2)).mark_after == seconds(1)


def test_a_poll_never_takes_more_than_may_be_in_flight():
    assert ConsumerSettings(max_in_flight=20).poll_batch == 20
    assert ConsumerSettings(max_in_flight=20, poll_batch=5).poll_batch == 5


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"prefix": ""}, "prefix must be 1 to 100 of A-Z a-z 0-9 . _ -, not ''"),
        ({"prefix": "a/b"}, "prefix must be 1 to 100 of A-Z a-z 0-9 . _ -, not 'a/b'"),
        ({"prefix": 5}, "prefix must be 1 to 100 of A-Z a-z 0-9 . _ -, not 5"),
        ({"shards": 0}, "shards must be from 1 to 1000, not 0"),
        ({"partitions": 1.5}, "partitions must be a whole number from 1 to 10000, not 1.5"),
        ({"markers_partitions": 0}, "markers_partitions must be from 1 to 1000, not 0"),
        ({"replication": 0}, "replication must be from 1 to 100, not 0"),
        ({"retention": seconds(5)}, "retention must be from 1h to 3650d, not 5s"),
    ],
)
def test_topic_settings_are_bounded(options, sentence):
    assert sentence_of(TopicSettings, **options) == sentence


def test_topics_are_named_by_their_prefix():
    topics = TopicSettings(prefix="shop", replication=3)
    assert (topics.messages(2), topics.markers, topics.dead) == ("shop.messages-2", "shop.markers", "shop.dead")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"master": " "}, "master must name a Spark master such as local[2] or spark://host:7077, not ' '"),
        ({"master": None}, "master must name a Spark master such as local[2] or spark://host:7077, not None"),
        ({"checkpoint": ""}, "checkpoint must be a folder or a URL, not ''"),
        ({"checkpoint": 5}, "checkpoint must be a folder or a URL, not 5"),
        ({"trigger": seconds(61)}, "trigger must be from 10ms to 1m, not 1m1s"),
        ({"heartbeat": seconds(0)}, "heartbeat must be from 1s to 10m, not 0s"),
        ({"tick_margin": seconds(11)}, "tick_margin must be from 0s to 10s, not 11s"),
        ({"heap": "255m"}, "heap must be like 512m or 2g, and at least 256m, not '255m'"),
        ({"heap": "1GB"}, "heap must be like 512m or 2g, and at least 256m, not '1GB'"),
        ({"heap": 1024}, "heap must be like 512m or 2g, and at least 256m, not 1024"),
        ({"shuffle_partitions": 0}, "shuffle_partitions must be from 1 to 1000, not 0"),
    ],
)
def test_pipeline_settings_are_bounded(options, sentence):
    assert sentence_of(PipelineSettings, **options) == sentence


@pytest.mark.parametrize("checkpoint", [None, Path("state"), "state", "s3a://bucket/state"])
def test_a_checkpoint_is_a_folder_or_a_url(checkpoint):
    assert PipelineSettings(checkpoint=checkpoint, heap="256m").checkpoint == checkpoint


@pytest.mark.parametrize(
    ("url", "transport", "address"),
    [
        ("kafka://localhost:9092", "kafka", "localhost:9092"),
        ("kafka://a-1.example:1,10.0.0.7:65535", "kafka", "a-1.example:1,10.0.0.7:65535"),
        ("kafka://[::1]:9092", "kafka", "[::1]:9092"),
        ("memory://", "memory", ""),
        ("memory://orders", "memory", "orders"),
    ],
)
def test_a_url_says_where_the_broker_is(url, transport, address):
    app = AppSettings(url=url)
    assert (app.transport, app.address) == (transport, address)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:9092",
        "kafka://",
        "kafka://localhost",
        "kafka://localhost:0",
        "kafka://localhost:65536",
        "kafka://a:1,",
        "kafka://a:1/b",
        "memory:",
        "memory://a/b",
        "redis://localhost:6379",
        None,
        5,
    ],
)
def test_another_url_is_refused(url):
    sentence = sentence_of(AppSettings, url=url)
    assert sentence.startswith("url must be kafka://host:port, kafka://host:port,host:port or memory://name, not ")


def test_a_password_in_the_url_is_refused_and_not_repeated():
    sentence = sentence_of(AppSettings, url="kafka://user:hunter2@localhost:9092")
    assert sentence.startswith("url must not hold a user or a password: give them as kafka=")
    assert "hunter2" not in sentence


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"kafka": "acks=1"}, 'kafka must be a mapping such as {"security.protocol": "SSL"}'),
        ({"kafka": {"linger.ms": 5}}, "kafka maps text to text, but key 'linger.ms' or its value is something else"),
        ({"kafka": {5: "5"}}, "kafka maps text to text, but key 5 or its value is something else"),
        ({"kafka": {"acks": "1"}}, "kafka must not hold 'acks': a confirmed message is on all replicas"),
        ({"consumer": {}}, "consumer must be ConsumerSettings(...), not {}"),
        ({"topics": None}, "topics must be TopicSettings(...), not None"),
    ],
)
def test_app_settings_are_checked(options, sentence):
    assert sentence_of(AppSettings, url=URL, **options) == sentence


@pytest.mark.parametrize("key", RESERVED_KAFKA_KEYS)
def test_what_the_guarantees_rest_on_cannot_be_passed_through(key):
    assert repr(key) in sentence_of(AppSettings, url=URL, kafka={key: "x"})


def test_secrets_are_masked():
    secret = [
        "sasl.password",
        "ssl.key.password",
        "ssl.keystore.password",
        "ssl.key.pem",
        "ssl_key",
        "sasl.oauthbearer.config",
        "sasl.oauthbearer.client.secret",
        "some.TOKEN.file",
        "sasl.jaas.config",
    ]
    kafka = dict.fromkeys(secret, "hunter2") | {"sasl.username": "app", "ssl.ca.location": "ca.pem"}
    app = AppSettings(url=URL, kafka=kafka)
    assert "hunter2" not in repr(app)
    assert "hunter2" not in f"{app}"
    assert "'sasl.username': 'app'" in repr(app)
    assert "lease=" in repr(app)
    shown = masked(app.kafka)
    assert {key for key, value in shown.items() if value == "***"} == set(secret)
    assert app.kafka["sasl.password"] == "hunter2"


def test_settings_are_frozen_values():
    given = {"linger.ms": "5"}
    app = AppSettings(url=URL, kafka=given)
    given["linger.ms"] = "6"
    assert app == AppSettings(url=URL, kafka={"linger.ms": "5"})
    assert hash(app) == hash(AppSettings(url=URL, kafka={"linger.ms": "5"}))
    assert pickle.loads(pickle.dumps(app)) == app  # noqa: S301  # our own bytes
    with pytest.raises(dataclasses.FrozenInstanceError):
        app.url = "memory://"


@given(st.text(st.sampled_from("abcXYZ019._-"), min_size=1, max_size=200))
def test_a_queue_may_have_this_name(name):
    assert queue_name(name) == name


@pytest.mark.parametrize("name", ["", "a" * 201, "a b", "a/b", "ä", "a\n", None, 5, b"a"])
def test_a_queue_may_not_have_this_name(name):
    with pytest.raises(ConfigurationError, match=r"^a queue's name is 1 to 200 of A-Z a-z 0-9 \. _ -, not "):
        queue_name(name)


def test_a_near_name_is_suggested():
    assert suggestion("leese", ["lease", "url"]) == " Did you mean 'lease'?"
    assert suggestion("zzz", ["lease", "url"]) == ""


@given(st.integers(), st.integers(), st.integers())
def test_bounds_are_inclusive(value, low, high):
    try:
        require_between("it", value, low, high)
    except ConfigurationError:
        assert value < low or value > high
    else:
        assert low <= value <= high


# Loading

# For each setting a value for each source, so that precedence is tried for every field.
TRIES = {
    timedelta: [timedelta(seconds=9), timedelta(seconds=8), timedelta(seconds=7)],
    int: [9, 8, 7],
    str: ["a9", "a8", "a7"],
}
SPECIAL = {
    "url": ["memory://a", "memory://b", "memory://c"],
    "topics.retention": [timedelta(hours=9), timedelta(hours=8), timedelta(hours=7)],
    "pipeline.heap": ["9g", "8g", "7g"],
}


def settings_by_label():
    for section, kind in SECTIONS.items():
        for each in fields(kind):
            label = f"{section}.{each.name}" if section else each.name
            if not is_dataclass(each.type) and label != "kafka":
                kinds = getattr(each.type, "__args__", (each.type,))
                tries = next(TRIES[each] for each in (timedelta, int, str) if each in kinds)
                yield pytest.param(kind, label, SPECIAL.get(label, tries), id=label)


def as_text(value) -> str:
    return format_duration(value) if isinstance(value, timedelta) else str(value)


@pytest.mark.parametrize(("kind", "label", "values"), [*settings_by_label()])
def test_keywords_win_over_the_environment_over_the_file_over_the_default(kind, label, values):
    section, _, name = label.rpartition(".")
    variable = variable_of(*label.split("."))
    in_file = values[2] if isinstance(values[2], int) else as_text(values[2])
    table = {name: in_file}
    keywords = {name: values[0]}
    environment = {variable: as_text(values[1])}
    toml = {section: table} if section else table
    required = {} if kind is not AppSettings or name == "url" else {"url": URL}

    def load(*sources):
        keywords, environment, toml = sources
        settings, told = load_settings(kind, required | keywords, environment, toml)
        return getattr(settings, name), told[label]

    assert load(keywords, environment, toml) == (values[0], "keyword")
    assert load({}, environment, toml) == (values[1], f"environment {variable}")
    assert load({}, environment | {variable: ""}, toml) == (values[2], "the TOML file")
    if name == "url":
        with pytest.raises(ConfigurationError, match=r"^url is not given: pass it, or set MARQ_URL, or write it into"):
            load({}, {}, {})
    else:
        default = next(each.default for each in fields(kind) if each.name == name)
        assert load({}, {}, {}) == (default, "default")


def test_all_sources_are_merged_into_nested_settings():
    settings, sources = load_settings(
        AppSettings,
        {"url": URL, "consumer": {"poll_batch": 7}},
        {"MARQ_CONSUMER_LEASE": "45s", "MARQ_TOPICS_REPLICATION": "3"},
        {"consumer": {"lease": "1m", "hold_max": "5s"}, "topics": {"shards": 2}, "pipeline": {"heap": "2g"}},
    )
    assert settings == AppSettings(
        url=URL,
        consumer=ConsumerSettings(lease=seconds(45), hold_max=seconds(5), poll_batch=7),
        topics=TopicSettings(shards=2, replication=3),
    )
    assert sources["consumer.lease"] == "environment MARQ_CONSUMER_LEASE"
    assert sources["consumer.hold_max"] == "the TOML file"
    assert sources["consumer.poll_batch"] == "keyword"
    assert sources["consumer.mark_after"] == "default"
    assert sources["kafka"] == "default"
    labels = {f"{name}.{each.name}" for name in ("consumer", "topics") for each in fields(SECTIONS[name])}
    assert set(sources) == labels | {"url", "kafka"}


def test_a_settings_object_is_taken_whole():
    settings, sources = load_settings(
        AppSettings,
        {"url": URL, "consumer": ConsumerSettings(lease=seconds(9))},
        {"MARQ_CONSUMER_HOLD_MAX": "5s", "MARQ_CONSUMER_LEASE": "45s"},
    )
    assert settings.consumer == ConsumerSettings(lease=seconds(9))
    assert {sources[f"consumer.{each.name}"] for each in fields(ConsumerSettings)} == {"keyword"}


def test_kafka_settings_are_merged_key_by_key():
    settings, sources = load_settings(
        AppSettings,
        {"url": URL, "kafka": {"client.id": "code"}},
        {"MARQ_KAFKA_CLIENT_ID": "env", "MARQ_KAFKA_SASL_PASSWORD": "hunter2"},
        {
            "kafka": {
                "client": {"id": "file"},
                "sasl": {"username": "app"},
                "linger.ms": 5,
                "socket": {"keepalive": True},
            }
        },
    )
    assert settings.kafka == {
        "client.id": "code",
        "sasl.password": "hunter2",
        "sasl.username": "app",
        "linger.ms": "5",
        "socket.keepalive": "true",
    }
    assert sources["kafka.client.id"] == "keyword"
    assert sources["kafka.sasl.password"] == "environment MARQ_KAFKA_SASL_PASSWORD"
    assert sources["kafka.linger.ms"] == "the TOML file"
    assert "kafka" not in sources


def test_the_environment_of_the_process_is_read_when_none_is_given(monkeypatch):
    monkeypatch.setenv("MARQ_PIPELINE_HEAP", "3g")
    assert load_settings(PipelineSettings)[0].heap == "3g"
    assert load_settings(PipelineSettings, environment={})[0].heap == "1g"


def test_a_file_is_read_and_named(tmp_path):
    file = tmp_path / "marq.toml"
    file.write_text('url = "memory://"\n[consumer]\nlease = "45s"\n', encoding="utf-8")
    settings, sources = load_settings(AppSettings, {}, {}, file)
    assert settings.consumer.lease == seconds(45)
    assert sources["consumer.lease"] == str(file)


@pytest.mark.parametrize("content", [b"url = ", b"\xff"])
def test_a_file_that_is_no_toml_is_refused(tmp_path, content):
    file = tmp_path / "marq.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"marq\.toml is not a TOML file: "):
        load_settings(AppSettings, {}, {}, file)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"marq\.toml cannot be read: No such file or directory$"):
        load_settings(AppSettings, {}, {}, tmp_path / "marq.toml")


@pytest.mark.parametrize(
    ("keywords", "environment", "toml", "sentence"),
    [
        ({"consumr": 1}, {}, {}, "there is no setting 'consumr'. Did you mean 'consumer'?"),
        ({"consumer": {"leese": 1}}, {}, {}, "there is no setting 'consumer.leese'. Did you mean 'lease'?"),
        ({"zzz": 1}, {}, {}, "there is no setting 'zzz'."),
        ({}, {}, {"topic": {}}, "the TOML file: there is no setting 'topic'. Did you mean 'topics'?"),
        ({}, {}, {"topics": {"shard": 2}}, "the TOML file: there is no setting 'topics.shard'. Did you mean 'shards'?"),
        ({}, {"MARQ_URLS": URL}, {}, "no setting has the variable MARQ_URLS. Did you mean 'MARQ_URL'?"),
        (
            {},
            {"MARQ_CONSUMR_LEASE": "5s"},
            {},
            "no setting has the variable MARQ_CONSUMR_LEASE. Did you mean 'MARQ_CONSUMER_LEASE'?",
        ),
        (
            {},
            {"MARQ_CONSUMER_LEESE": "5s"},
            {},
            "no setting has the variable MARQ_CONSUMER_LEESE. Did you mean 'MARQ_CONSUMER_LEASE'?",
        ),
        ({"consumer": 5}, {}, {}, "consumer (keywords) must be a table of settings, not 5"),
        ({}, {}, {"consumer": 5}, "consumer (the TOML file) must be a table of settings, not 5"),
        ({}, {}, {"kafka": 5}, "kafka (the TOML file) must be a table of settings, not 5"),
        ({}, {}, {"kafka": {"a": [1]}}, "kafka maps text to text, but key 'a' or its value is something else"),
        (
            {},
            {"MARQ_CONSUMER_LEASE": "45"},
            {},
            "consumer.lease (environment MARQ_CONSUMER_LEASE) needs a unit: say 45s for seconds, 45m for minutes",
        ),
        (
            {},
            {},
            {"consumer": {"lease": 45}},
            "consumer.lease (the TOML file) needs a unit: say 45s for seconds, 45m for minutes",
        ),
        (
            {},
            {"MARQ_TOPICS_SHARDS": "two"},
            {},
            "topics.shards (environment MARQ_TOPICS_SHARDS) must be a whole number, not 'two'",
        ),
        (
            {"consumer": {"mark_after": seconds(2)}},
            {"MARQ_CONSUMER_LEASE": "2s"},
            {},
            (
                "mark_after must be from 0s to 1s (half of the lease), not 2s"
                " (consumer.lease: environment MARQ_CONSUMER_LEASE)"
            ),
        ),
        ({"topics": {"shards": 0}}, {}, {}, "shards must be from 1 to 1000, not 0"),
        ({"topics": {"shards": "0x2"}}, {}, {}, "topics.shards (keyword) must be a whole number, not '0x2'"),
    ],
)
def test_what_is_wrong_is_named_with_its_source(keywords, environment, toml, sentence):
    keywords = {"url": URL} | keywords
    with pytest.raises(ConfigurationError) as caught:
        load_settings(AppSettings, keywords, environment, toml)
    assert str(caught.value) == sentence


def test_variables_of_others_are_left_alone():
    environment = {
        "MARQ_CACHE_DIR": "x",  # resembles no setting
        "MARQ_PIPELINE_HEAPS": "x",  # for whoever loads the pipeline's
        "LEASE": "x",
        "marq_url": "x",
    }
    assert load_settings(AppSettings, {"url": URL}, environment)[0] == AppSettings(url=URL)
    with pytest.raises(ConfigurationError, match=r"MARQ_PIPELINE_HEAPS\. Did you mean 'MARQ_PIPELINE_HEAP'\?$"):
        load_settings(PipelineSettings, {}, environment)


def test_loading_is_for_any_settings():
    @dataclass(frozen=True, kw_only=True)
    class Inner:
        width: int = 1

    @dataclass(frozen=True, kw_only=True)
    class Outer:
        inner: Inner = field(default_factory=Inner)

    settings, sources = load_settings(Outer, {}, {"MARQ_INNER_WIDTH": "5"})
    assert settings == Outer(inner=Inner(width=5))
    assert sources == {"inner.width": "environment MARQ_INNER_WIDTH"}
