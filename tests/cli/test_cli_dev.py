"""`marq dev` starts everything, keeps it, and leaves nothing behind."""

import time
from datetime import timedelta

import psutil
import pytest

from marq import App
from marq.stack.process import free_port

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(300)]

READY_SECONDS = 120
STOP_SECONDS = 15


def test_it_keeps_its_data_and_one_ctrl_c_stops_everything(marq_process, tmp_path):
    port = free_port()
    arguments = ["dev", "--data-dir", str(tmp_path / "data"), "--kafka-port", str(port), "--no-redis"]
    first = marq_process(*arguments)
    first.await_line("ready after", READY_SECONDS)
    assert f'App("kafka://127.0.0.1:{port}")' in first.await_line("ready after", 1)
    with App(f"kafka://127.0.0.1:{port}") as app:
        app.queue("kept").send(b"still there").result()
    first.interrupt()
    began = time.monotonic()
    assert first.end(STOP_SECONDS) == 0, first.said
    assert time.monotonic() - began < STOP_SECONDS
    assert first.said[-2:] == ["stopping; Ctrl-C again kills", "stopped"]
    assert len(first.family) >= 4  # two guards, the broker, the pipeline and its JVM
    assert first.survivors() == []

    second = marq_process(*arguments)
    second.await_line("ready after", READY_SECONDS)
    with App(f"kafka://127.0.0.1:{port}") as app, app.queue("kept").consume() as messages:
        [message] = messages.receive(1, timedelta(seconds=30))
        assert message.value == b"still there"
        message.ack()
    second.look_at_family()
    pipeline = int(second.await_line("pipeline  up: process", 1).split()[3].rstrip(","))
    psutil.Process(pipeline).kill()
    assert second.end(STOP_SECONDS) == 1
    assert any("The pipeline ended by itself (exit code 137)" in line for line in second.said)
    assert second.survivors() == []


def test_ctrl_c_while_it_starts_stops_it_too(marq_process):
    dev = marq_process("dev", "--kafka-port", "0", "--no-redis")
    dev.await_line("Kafka ", READY_SECONDS)
    dev.interrupt()
    assert dev.end(STOP_SECONDS) == 0, dev.said
    assert dev.survivors() == []
    assert [path.name for path in dev.temporary.iterdir() if path.name.startswith("marq-")] == []


def test_a_port_that_is_taken_is_a_sentence(marq_process, kafka_server):
    dev = marq_process("dev", "--kafka-port", str(kafka_server.port), "--no-redis")
    assert dev.end(60) == 1
    assert any(f"Port {kafka_server.port} on 127.0.0.1 is taken" in line for line in dev.said)
    assert dev.survivors() == []


def test_a_data_folder_that_is_none_is_named_before_anything_is_said(marq_process, tmp_path):
    file = tmp_path / "afile"
    file.touch()
    dev = marq_process("dev", "--data-dir", str(file), "--no-redis")
    assert dev.end(60) == 1
    assert dev.said == [f"marq: {file} is a file. Choose an empty or a new folder."]
