"""The real servers: started, stopped, killed and started again."""

import socket
import struct
import time

import psutil
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from marq.errors import DataFolderError, PortInUseError, ServerStartError
from marq.stack import server
from marq.stack.folder import STAMP
from marq.stack.kafka import KafkaServer
from marq.stack.process import LOOPBACK
from marq.stack.redis import RedisServer

pytestmark = [pytest.mark.broker, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory):
    with KafkaServer(tmp_path_factory.mktemp("kafka") / "data") as broker:
        yield broker


@pytest.fixture
def redis(tmp_path):
    with RedisServer(tmp_path / "redis") as running:
        yield running


def quiet(**settings):
    return {**settings, "logger": _Silence(), "log_level": 0}


class _Silence:
    """The client tells of every lost connection; here they are lost on purpose."""

    def log(self, *_):
        pass


def send(broker, topic, values):
    producer = Producer(quiet(**{"bootstrap.servers": broker.bootstrap, "acks": "all"}))
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(30) == 0


def receive(broker, topic, count):
    consumer = Consumer(
        quiet(
            **{
                "bootstrap.servers": broker.bootstrap,
                "group.id": f"read-{topic}",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
            }
        )
    )
    try:
        consumer.subscribe([topic])
        got = []
        give_up = time.monotonic() + 30
        while len(got) < count and time.monotonic() < give_up:
            got += [message.value() for message in consumer.consume(count, 0.2) if not message.error()]
        return sorted(got)
    finally:
        consumer.close()


def create_topic(broker, name):
    admin = AdminClient(quiet(**{"bootstrap.servers": broker.bootstrap}))
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(30)


def test_what_was_confirmed_survives_stop_kill_and_start_on_the_same_port(kafka):
    create_topic(kafka, "survives")
    values = [b"%03d" % number for number in range(200)]
    bootstrap = kafka.bootstrap
    send(kafka, "survives", values[:100])
    kafka.kill()
    assert not kafka.is_alive
    kafka.start()
    send(kafka, "survives", values[100:])
    kafka.stop()
    assert kafka.start().bootstrap == bootstrap
    assert receive(kafka, "survives", len(values)) == values


def test_a_start_from_a_warm_cache_takes_less_than_ten_seconds(tmp_path):
    began = time.monotonic()
    with KafkaServer(tmp_path / "fresh"):
        assert time.monotonic() - began < 10


def test_everything_listens_on_loopback_only(kafka):
    listening = [
        connection.laddr.ip
        for connection in psutil.Process(kafka.pid).net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) == 2  # clients and controller
    assert {address.removeprefix("::ffff:") for address in listening} == {LOOPBACK}


def test_topics_appear_only_when_they_are_created(kafka):
    admin = AdminClient(quiet(**{"bootstrap.servers": kafka.bootstrap}))
    described = admin.list_topics("never-created", timeout=10).topics["never-created"]
    assert described.error is not None
    assert "never-created" not in admin.list_topics(timeout=10).topics


def test_share_groups_are_switched_on(kafka):
    """ShareGroupHeartbeat (key 76) is announced, and the feature is final."""
    with socket.create_connection((LOOPBACK, kafka.port), 5) as connection:
        connection.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))
        size = struct.unpack(">i", connection.recv(4))[0]
        answer = b""
        while len(answer) < size:
            answer += connection.recv(size - len(answer))
    keys = {struct.unpack_from(">h", answer, at)[0] for at in range(10, len(answer), 6)}
    assert 76 in keys
    assert "share.version has been updated to version 1" in "".join(
        log.read_text() for log in kafka.log.parent.glob("kafka.log*")
    )


def test_data_of_another_kafka_is_refused(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "marq-data.lock").touch()
    (data / STAMP).write_text('{"product": "Kafka 3.0.0", "facts": {}}')
    with pytest.raises(DataFolderError, match=r"Kafka 3\.0\.0.*Kafka 4\.3\.1"):
        KafkaServer(data).start()


def test_a_second_broker_on_the_same_data_is_refused(kafka, monkeypatch):
    monkeypatch.setattr("marq.stack.folder.LOCK_PATIENCE_SECONDS", 0.1)
    with pytest.raises(DataFolderError, match="Another server works in"):
        KafkaServer(kafka.data_dir).start()


def test_a_port_that_is_taken_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "PORT_PATIENCE_SECONDS", 0.1)
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUseError, match=rf"Port {port} on 127\.0\.0\.1 is taken"):
            KafkaServer(tmp_path / "data", port=port).start()


def test_a_broker_that_dies_at_its_start_says_why_in_its_error(tmp_path):
    broker = KafkaServer(tmp_path / "data", heap="1m")
    with pytest.raises(ServerStartError, match=r"(?s)The end of its log:\n.*heap"):
        broker.start()
    assert not broker.is_alive


def test_before_its_first_start_a_broker_has_no_address(tmp_path):
    with pytest.raises(ServerStartError, match="no port before its first start"):
        _ = KafkaServer(tmp_path / "data").bootstrap


def ask_redis(running, *words):
    request = b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
    with socket.create_connection((LOOPBACK, running.port), 5) as connection:
        connection.sendall(request)
        return connection.recv(1000)


def test_redis_keeps_every_confirmed_write_through_a_kill(redis):
    assert redis.url == f"redis://127.0.0.1:{redis.port}/0"
    assert ask_redis(redis, b"SET", b"key", b"value") == b"+OK\r\n"
    redis.kill()
    assert not redis.is_alive
    redis.start()
    assert ask_redis(redis, b"GET", b"key") == b"$5\r\nvalue\r\n"


def test_redis_writes_to_disk_before_it_answers(redis):
    assert ask_redis(redis, b"CONFIG", b"GET", b"appendonly").endswith(b"yes\r\n")
    assert ask_redis(redis, b"CONFIG", b"GET", b"appendfsync").endswith(b"always\r\n")
    assert ask_redis(redis, b"CONFIG", b"GET", b"bind").endswith(b"127.0.0.1\r\n")


def test_redis_refuses_the_brokers_data(kafka, redis, monkeypatch):
    redis.stop()
    broker_on_redis_data = KafkaServer(redis.data_dir)
    with pytest.raises(DataFolderError, match="holds data of Redis"):
        broker_on_redis_data.start()
