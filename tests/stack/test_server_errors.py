"""What the servers say when they do not start, from logs alone."""

from types import SimpleNamespace

import pytest

from marq.errors import DataFolderError, PortInUseError, ServerStartError
from marq.stack import server
from marq.stack.kafka import KafkaServer, server_properties
from marq.stack.process import LOOPBACK
from marq.stack.server import PORT_ATTEMPTS


@pytest.fixture
def kafka(tmp_path):
    broker = KafkaServer(tmp_path / "data")
    broker.log.parent.mkdir(parents=True)
    return broker


@pytest.mark.parametrize(
    ("log", "error", "words"),
    [
        ("java.io.IOException: No space left on device", DataFolderError, "is full. Free some space"),
        ("java.net.BindException: Address already in use", PortInUseError, "Choose another port"),
        ("Invalid value 7 for configuration x", ServerStartError, "Invalid value 7"),
    ],
)
def test_the_log_decides_which_error_it_is(kafka, log, error, words):
    kafka.log.write_text(log)
    caught = kafka.start_error("Kafka ended while starting")
    assert type(caught) is error
    assert str(caught).startswith("Kafka ended while starting")
    assert words in str(caught)


def test_a_full_disk_is_noticed_even_when_the_log_could_not_be_written(kafka, monkeypatch):
    monkeypatch.setattr(server.shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    assert "is full" in str(kafka.start_error("Kafka ended"))


class Unlucky(KafkaServer):
    """Every port it chooses is taken by somebody else in the last moment."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.tried = []

    def _start_on(self, port, timeout):
        self.tried.append(port)
        raise PortInUseError


def test_a_free_port_that_was_snatched_away_is_replaced_by_another(tmp_path):
    broker = Unlucky(tmp_path)
    with pytest.raises(PortInUseError):
        broker.start()
    assert len(set(broker.tried)) == PORT_ATTEMPTS


def test_a_port_that_was_asked_for_is_tried_once(tmp_path):
    broker = Unlucky(tmp_path, port=server.free_port())
    with pytest.raises(PortInUseError):
        broker.start()
    assert len(broker.tried) == 1


def test_the_broker_is_told_to_listen_on_loopback_only():
    settings = dict(line.split("=", 1) for line in server_properties(1111, 2222).splitlines())
    assert settings["listeners"] == f"PLAINTEXT://{LOOPBACK}:1111,CONTROLLER://{LOOPBACK}:2222"
    assert settings["advertised.listeners"] == f"PLAINTEXT://{LOOPBACK}:1111"
    assert settings["controller.quorum.voters"] == f"1@{LOOPBACK}:2222"
    assert settings["auto.create.topics.enable"] == "false"
