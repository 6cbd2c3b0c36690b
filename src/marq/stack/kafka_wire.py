"""Just enough of Kafka's protocol to ask a broker whether it is up. The server side needs no client library."""

from __future__ import annotations

import socket
import struct

from marq.stack.process import LOOPBACK

METADATA, METADATA_VERSION = 3, 2
CORRELATION = 1
ANSWER_SECONDS = 2.0
LARGEST_ANSWER = 1 << 20


def broker_is_up(port: int, cluster: str) -> bool:
    """Whether the broker on this port belongs to the cluster, is registered with its controller and takes requests.

    An open port says none of that: Kafka listens long before it answers, and answers before it is part of its own
    cluster.
    """
    try:
        with socket.create_connection((LOOPBACK, port), ANSWER_SECONDS) as connection:
            connection.settimeout(ANSWER_SECONDS)
            connection.sendall(_metadata_request())
            (size,) = struct.unpack(">i", _receive(connection, 4))
            if not 0 < size < LARGEST_ANSWER:
                return False
            found_cluster, ports = _metadata_answer(_receive(connection, size))
    except (OSError, struct.error, UnicodeDecodeError):
        return False
    return found_cluster == cluster and port in ports


def _metadata_request() -> bytes:
    client = b"marq"
    header = struct.pack(">hhih", METADATA, METADATA_VERSION, CORRELATION, len(client)) + client
    body = struct.pack(">i", 0)  # no topics, only the cluster
    return struct.pack(">i", len(header) + len(body)) + header + body


def _receive(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        part = connection.recv(size - len(received))
        if not part:
            raise ConnectionResetError("the broker closed the connection")
        received += part
    return received


def _metadata_answer(answer: bytes) -> tuple[str | None, list[int]]:
    """The cluster's id and the ports of its brokers."""
    reader = _Reader(answer)
    reader.number(">i")  # the correlation id
    ports = []
    for _ in range(reader.number(">i")):
        reader.number(">i")  # the node's id
        reader.text()
        ports.append(reader.number(">i"))
        reader.text()  # the rack
    return reader.text(), ports


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return int(value)

    def text(self) -> str | None:
        length = self.number(">h")
        if length < 0:
            return None
        self._at += length
        return self._data[self._at - length : self._at].decode()
