import socket
import struct
import threading

import pytest

from marq.stack.kafka_wire import broker_is_up
from marq.stack.process import LOOPBACK, free_port


def text(value):
    return struct.pack(">h", -1) if value is None else struct.pack(">h", len(value)) + value.encode()


def metadata(cluster, ports):
    """What a broker answers, framed."""
    nodes = b"".join(
        struct.pack(">i", node) + text(LOOPBACK) + struct.pack(">i", port) + text(None)
        for node, port in enumerate(ports)
    )
    body = struct.pack(">ii", 1, len(ports)) + nodes + text(cluster) + struct.pack(">ii", 1, 0)
    return struct.pack(">i", len(body)) + body


@pytest.fixture
def broker():
    """A broker that gives one prepared answer. Yields its port and the place for the answer."""
    answers, requests = [], []
    with socket.create_server((LOOPBACK, 0)) as server:

        def serve():
            connection, _ = server.accept()
            with connection:
                requests.append(connection.recv(1000))
                connection.sendall(answers[0])

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1], answers, requests
        thread.join(10)


def test_a_registered_broker_of_the_right_cluster_is_up(broker):
    port, answers, requests = broker
    answers.append(metadata("abc", [port]))
    assert broker_is_up(port, "abc")
    assert requests == [b"\0\0\0\x12\0\x03\0\x02\0\0\0\x01\0\x04marq\0\0\0\0"]


@pytest.mark.parametrize(
    "answer",
    [
        lambda port: metadata("other", [port]),  # somebody else's broker took the port
        lambda _: metadata("abc", []),  # it answers, but its controller does not know it yet
        lambda _: metadata(None, []),
        lambda _: b"",
        lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n",
        lambda port: metadata("abc", [port])[:20],
        lambda _: struct.pack(">ii", 4, 1),
        lambda _: struct.pack(">i", 0),
        lambda _: struct.pack(">iiihB", 11, 1, 0, 1, 255),
    ],
)
def test_any_other_answer_means_not_yet(broker, answer):
    port, answers, _ = broker
    answers.append(answer(port))
    assert not broker_is_up(port, "abc")


def test_nobody_there_means_not_yet():
    assert not broker_is_up(free_port(), "abc")
