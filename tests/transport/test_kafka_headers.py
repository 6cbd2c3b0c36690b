"""Header names that are no text make the client raise: they count as absent, and nobody else is hurt."""

from confluent_kafka import Message

from marq.transport.kafka import KafkaSubscription


class Unreadable(Message):
    """As confluent-kafka behaves for a header name that is not UTF-8."""

    broken = True

    def headers(self):
        if self.broken:
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
        return super().headers()

    def set_headers(self, headers):
        self.broken = False
        super().set_headers(headers)


def test_unreadable_headers_count_as_absent(monkeypatch):
    monkeypatch.setattr("marq.transport.kafka._HEADERS", lambda message: message.headers())
    good, bad = Message(headers=[("trace", b"abc")]), Unreadable()
    bad.broken = True
    KafkaSubscription._make_readable([good, bad])
    assert good.headers() == [("trace", b"abc")]
    assert not bad.headers()
