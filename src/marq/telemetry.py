"""Every counter and every log event, each with its meaning. `docs/reference/metrics.md` holds the same tables.

Counters are plain numbers in the process. They are raised per batch or per rare event, never once per message on the
hot path. Log records carry their event as `record.event`, so that a filter need not read sentences.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Self


def _counter(meaning: str) -> int:
    return field(default=0, metadata={"meaning": meaning})


@dataclass(slots=True)
class Counters:
    """What one consumer has counted since it was made. Raised under the consumer's own lock."""

    received: int = _counter("messages handed out, first deliveries and later ones")
    acked: int = _counter("acked messages that the commit position has passed")
    acked_leased: int = _counter("acks of messages whose lease was in the log, each told to the pipeline with an END")
    acked_unmarked: int = _counter("acks that came while the lease waited to be written, so that it never was")
    nacked: int = _counter("messages given back with nack, or because their handler failed")
    leased: int = _counter("leases made durable with a START marker")
    expired: int = _counter("leases that ran out before their message was settled")
    lost: int = _counter("unsettled messages whose partition went to another consumer")
    redelivered_seen: int = _counter("messages received for their second or a later attempt")
    repeats: int = _counter("messages received again with an id and attempt seen before, after a crash elsewhere")
    dead_lettered: int = _counter("dead letters written")
    stale: int = _counter("acks, nacks and extensions that came too late: the lease was lost")
    decode_failed: int = _counter("messages whose payload was not what the queue's type says")
    foreign_skipped: int = _counter("records of other queues skipped on a shared topic")
    commits: int = _counter("offset commits sent to the broker")
    commit_failed: int = _counter("offset commits that failed; the next one covers them")
    markers_sent: int = _counter("marker batches confirmed by the broker")
    markers_failed: int = _counter("marker batches that could not be made durable")
    held: int = _counter("retries that waited in the consumer that nacked them")
    given_up: int = _counter("waiting retries handed to the pipeline: too long, too large, or the consumer closed")

    def snapshot(self) -> dict[str, int]:
        """The numbers as they are now, by name."""
        return asdict(self)


COUNTERS: dict[str, str] = {each.name: each.metadata["meaning"] for each in fields(Counters)}

PIPELINE_COUNTERS: dict[str, str] = {
    "batches": "micro-batches that Spark has run",
    "ticks": "ticks written to the markers topic",
    "redelivered": "messages put on their topic again, delayed ones and retries included",
    "dead": "dead letters written by the pipeline",
    "orphans": "letters that their topic could not take; they went to the dead-letter topic",
    "unwritable": "letters that no topic could take; the log names them",
    "restarts": "restarts of the query after a failure",
    "malformed": "records on the markers topic that are no marker batch, or make no sense as one",
    "odd_timestamp": "records on the markers topic whose timestamp no broker gives",
    "unknown_kind": "marker batches of a kind that this version does not know",
    "newer_version": "marker batches written by a newer marq; what this version knows of them counts",
    "unknown_end": "ENDs of messages that had no lease, as after a duplicate",
    "stale": "KEEPALIVEs and RETRYs for a lease that had expired, or was another consumer's",
    "missing_payload": "due messages whose payload was not in the pipeline's state",
    "undeliverable": "due messages that named no possible topic; they became dead letters",
}


class Event(StrEnum):
    """What `record.event` of a log record may be: `logger.warning(text, ..., extra={"event": Event.COMMIT_FAILED})`."""

    meaning: str

    def __new__(cls, name: str, meaning: str) -> Self:
        event = str.__new__(cls, name)
        event._value_ = name
        event.meaning = meaning
        return event

    CONSUMER_ASSIGNED = "consumer.assigned", "a partition has become this consumer's"
    CONSUMER_REVOKED = "consumer.revoked", "a partition has gone to another consumer"
    CONSUMER_LOST = "consumer.lost", "a partition was taken away without notice; its unleased messages come back"
    UNCLEAN_TAKEOVER = (
        "consumer.unclean_takeover",
        "the partition's last consumer died; its messages are leased at once",
    )
    COMMIT_FAILED = "commit.failed", "an offset commit failed; the next one covers it"
    MARKERS_FAILED = (
        "markers.failed",
        "markers could not be made durable; their messages stay protected by their offset",
    )
    DECODE_FAILED = (
        "message.decode_failed",
        "a payload was not what the queue's type says; the message is dead-lettered",
    )
    DEAD_LETTERED = "message.dead_lettered", "a message has become a dead letter"
    LEASE_LOST = "message.lease_lost", "a lease ran out before its message was settled"
    PIPELINE_STARTED = "pipeline.started", "the tracker's query runs"
    PIPELINE_CAUGHT_UP = "pipeline.caught_up", "the markers written before the start are read; redelivery begins"
    PIPELINE_STOPPED = "pipeline.stopped", "the tracker's query has ended"
    TICK_FAILED = "pipeline.tick_failed", "a tick could not be written; redelivery is late until one is"
