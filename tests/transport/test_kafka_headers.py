"""Header names that are no text make the client raise: they count as absent, and nobody else is hurt."""

from confluent_kafka import Message

from marq.transport.kafka import KafkaSubscription


class Unreadable(Message):
    """As confluent-kafka behaves for a header name that is not UTF-8: it raises once, and then returns what must not be
    touched."""

    state = "unread"

    def headers(self):
        if self.state == "unread":
            self.state = "raised"
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
        assert self.state == "mended"
        return super().headers()

    def set_headers(self, headers):
        self.state = "mended"
        super().set_headers(headers)


def test_unreadable_headers_count_as_absent(monkeypatch):
    monkeypatch.setattr("marq.transport.kafka._HEADERS", lambda message: message.headers())
    good, plain = Message(headers=[("trace", b"abc")]), Message()
    bad = [Unreadable() for _ in range(3)]
    KafkaSubscription._make_readable([bad[0], good, bad[1], plain, bad[2]])
    assert good.headers() == [("trace", b"abc")]
    assert not any(message.headers() for message in bad)
