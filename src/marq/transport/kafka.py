"""Apache Kafka, through confluent-kafka (librdkafka): the client whose loops run in C."""

from __future__ import annotations

import logging
import operator
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec

from marq.errors import ConfigurationError, MarqError, MessageTooLargeError, QueueFullError, TransportError
from marq.transport.base import (
    DEFAULT_TIMEOUT,
    Assigned,
    Commit,
    Headers,
    Listener,
    Place,
    Publisher,
    Report,
    Run,
    Subscription,
    TopicSpec,
)

log = logging.getLogger("marq.kafka")
# librdkafka says so at every fresh broker, tries again by itself, and is then content.
log.addFilter(lambda record: "Coordinator load in progress: retrying" not in record.getMessage())

_ERROR, _KEY, _VALUE = Message.error, Message.key, Message.value
_PARTITION, _TOPIC = Message.partition, Message.topic
_HEADERS = Message.headers

# What marq's guarantees rest on: a user's own Kafka settings may not change these.
_FIXED = frozenset({"acks", "request.required.acks", "enable.idempotence", "enable.auto.commit", "group.id"})

BROKER_MESSAGE_BYTES = 1_048_588  # what a topic takes by default
SERVE_EVERY = 0.1
COMMITS_KNOWN_WITHIN = 5.0
COMMITTED_WITHIN = 5.0
COMMIT_AGAIN_AFTER = 0.05
# While a group takes in or lets go a member, its generation changes under a commit: a moment later it is right again.
_COMMIT_AGAIN = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
    }
)
FULL_WAIT = 0.05
FULL_WAITS = 600
LEADER_WITHIN = 2.0


def _error_of(error: KafkaError, doing: str) -> MarqError:
    """What librdkafka says, as one of marq's errors with what to do about it."""
    code, text = error.code(), error.str()
    if code in {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}:
        return MessageTooLargeError()
    if code == KafkaError._QUEUE_FULL:  # noqa: SLF001 - librdkafka's own codes begin with an underscore
        return QueueFullError()
    if code in {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}:  # noqa: SLF001
        advice = "Create the topic, or correct its name."
    elif code in {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE}:  # noqa: SLF001
        advice = "Check that the broker runs and that its address is right."
    elif code in {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED}:
        advice = "Grant this client the missing right."
    else:
        advice = "The broker's log may say more."
    return TransportError(f"{doing}: {text}. {advice}", retryable=error.retriable() or not error.fatal(), code=code)


def _made(client: Callable[..., Any], settings: Mapping[str, Any]) -> Any:
    """A client of librdkafka, or what is wrong with its settings."""
    try:
        return client(dict(settings), logger=log)
    except KafkaException as error:
        text = error.args[0].str()
        raise ConfigurationError(
            f"kafka: {text}. The names and values are librdkafka's, in its CONFIGURATION.md."
        ) from error


class KafkaTransport:
    """A Kafka cluster."""

    def __init__(self, bootstrap: str, kafka: Mapping[str, str] | None = None, *, client_id: str = "marq") -> None:
        refused = sorted(_FIXED & set(kafka or ()))
        if refused:
            raise ConfigurationError(
                f"kafka: {', '.join(refused)} cannot be set; marq's guarantees rest on its own value."
            )
        self._common: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "log_level": 4,
            "allow.auto.create.topics": False,
            **(kafka or {}),
        }
        self._lock = threading.Lock()
        self._publisher: KafkaPublisher | None = None
        self._admin: AdminClient | None = None
        self._partitions: dict[str, int] = {}

    def publisher(self) -> Publisher:
        with self._lock:
            if self._publisher is None:
                self._publisher = KafkaPublisher(self._common)
            return self._publisher

    def subscription(
        self, group: str, topics: Sequence[str], listener: Listener, *, session_timeout: float
    ) -> Subscription:
        return KafkaSubscription(self._common, group, topics, listener, session_timeout)

    def _administrator(self) -> AdminClient:
        if self._admin is None:
            unwanted = {"allow.auto.create.topics"}
            self._admin = _made(AdminClient, {k: v for k, v in self._common.items() if k not in unwanted})
        return self._admin

    def ensure_topics(self, specs: Sequence[TopicSpec]) -> None:
        missing = [spec for spec in specs if not self.partitions(spec.name)]
        if not missing:
            return
        wanted = [NewTopic(spec.name, spec.partitions, spec.replication, config=dict(spec.config)) for spec in missing]
        for name, future in self._administrator().create_topics(wanted, request_timeout=DEFAULT_TIMEOUT).items():
            try:
                future.result()
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise _error_of(error.args[0], f"Topic {name} could not be created") from error
        self._await_leaders([spec.name for spec in missing])

    def _await_leaders(self, names: Sequence[str]) -> None:
        """A topic just created has no leaders for a moment, and a send in that moment would wait for a retry."""
        deadline = time.monotonic() + DEFAULT_TIMEOUT
        for name in names:
            while time.monotonic() < deadline:
                topic = self._metadata(name)
                if topic is not None and all(p.leader >= 0 for p in topic.partitions.values()):
                    break
                time.sleep(0.02)

    def _metadata(self, topic: str) -> Any:
        try:
            found = self._administrator().list_topics(topic, timeout=DEFAULT_TIMEOUT).topics.get(topic)
        except KafkaException as error:
            where = self._common["bootstrap.servers"]
            raise _error_of(error.args[0], f"No broker answers at {where}") from error
        return found if found is not None and found.error is None and found.partitions else None

    def partitions(self, topic: str) -> int:
        known = self._partitions.get(topic)
        if known is None:
            found = self._metadata(topic)
            if found is None:
                return 0
            known = self._partitions[topic] = len(found.partitions)
        return known

    def bytes_max(self, topic: str) -> int | None:
        """How large a batch of records this topic takes; None when this client may not know."""
        asked = ConfigResource(ConfigResource.Type.TOPIC, topic)
        try:
            answer = self._administrator().describe_configs([asked], request_timeout=DEFAULT_TIMEOUT)[asked].result()
            return int(answer["max.message.bytes"].value)
        except (KafkaException, KeyError):
            return None

    def end_offsets(self, topic: str) -> dict[int, int]:
        asked = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in range(self.partitions(topic))}
        if not asked:
            return {}
        answers = self._administrator().list_offsets(asked, request_timeout=DEFAULT_TIMEOUT)
        try:
            return {place.partition: future.result().offset for place, future in answers.items()}
        except KafkaException as error:
            raise _error_of(error.args[0], f"The end of {topic} could not be read") from error

    def close(self) -> None:
        if self._publisher is not None:
            self._publisher.close(DEFAULT_TIMEOUT)


class KafkaPublisher:
    """An idempotent producer with acks=all.

    librdkafka calls one report per record and takes the GIL for each. When the sending thread serves them itself that
    is free; from a second thread every report would wait for the first one's time slice. So senders serve as they go,
    and a quiet thread serves only what nobody has served for a while.
    """

    def __init__(self, common: Mapping[str, Any]) -> None:
        self._settings = {
            "linger.ms": 5,
            "partitioner": "random",
            "sticky.partitioning.linger.ms": 0,
            "delivery.timeout.ms": 60_000,
            "queue.buffering.max.messages": 200_000,
            "message.max.bytes": BROKER_MESSAGE_BYTES,  # more than `send` takes: a letter has headers besides
            **common,
            "acks": "all",
            "enable.idempotence": True,
        }
        self._producer = _made(Producer, self._settings)
        self._lock = threading.Lock()
        self._fast: Any = None
        self._produce = self._producer.produce
        self._served_at = 0.0
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._serve_quietly, name="marq-reports", daemon=True)
        self._thread.start()

    def publish(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        headers: Headers | None = None,
        *,
        partition: int = -1,
        timestamp: int = 0,
        report: Report | None = None,
    ) -> None:
        waited = 0
        while True:
            try:
                if headers is None and not timestamp:
                    self._produce(topic, value, key, partition, on_delivery=report)
                else:
                    self._produce(
                        topic, value, key, partition, on_delivery=report, timestamp=timestamp, headers=headers or []
                    )
            except BufferError:
                if waited > FULL_WAITS:
                    raise QueueFullError from None
                waited += 1
                self.serve(FULL_WAIT)
            except KafkaException as error:
                raise _error_of(error.args[0], f"Sending to {topic}") from error
            else:
                return

    def _fast_lane(self) -> Any:
        """A producer that makes no report of what went well: a report is most of what a message costs here."""
        with self._lock:
            if self._fast is None:
                self._fast = _made(Producer, {**self._settings, "delivery.report.only.error": True})
            return self._fast

    def publish_many(self, topic: str, values: Sequence[bytes | None], key: bytes | None, refused: Report) -> None:
        producer = self._fast_lane()
        batch: list[dict[str, Any]] = [{"value": value, "key": key} for value in values]
        waited = 0
        while batch:
            queued = producer.produce_batch(topic, batch, on_delivery=refused)
            producer.poll(0)
            if queued == len(batch):
                return
            waited = 0 if queued else waited + 1
            batch = [item for item in batch if "_error" in item]
            for item in batch:
                error = item.pop("_error")
                if error.code() != KafkaError._QUEUE_FULL or waited > FULL_WAITS:  # noqa: SLF001 - librdkafka's own code
                    raise _error_of(error, f"Sending to {topic}")
            producer.poll(FULL_WAIT)

    def flush_many(self, timeout: float) -> int:
        return int(self._fast_lane().flush(timeout))

    def serve(self, timeout: float) -> int:
        self._served_at = time.monotonic()
        return int(self._producer.poll(timeout))

    def flush(self, timeout: float) -> int:
        return int(self._producer.flush(timeout))

    def error(self, raw: Any) -> MarqError:
        return _error_of(raw, "The broker did not take the message")

    def _serve_quietly(self) -> None:
        while not self._closed.wait(SERVE_EVERY):
            if len(self._producer) and time.monotonic() - self._served_at > SERVE_EVERY:
                self._producer.poll(0)

    def close(self, timeout: float) -> None:
        if not self._closed.is_set():
            self._producer.flush(timeout)
            if self._fast is not None:
                self._fast.flush(timeout)
            self._closed.set()
            self._thread.join(timeout=5)


class KafkaSubscription:
    """A member of a consumer group."""

    def __init__(
        self, common: Mapping[str, Any], group: str, topics: Sequence[str], listener: Listener, session_timeout: float
    ) -> None:
        self._listener = listener
        self._one_topic = len(topics) == 1
        self._warned: dict[int, float] = {}
        session_ms = int(session_timeout * 1000)
        self._consumer = _made(
            Consumer,
            {
                "heartbeat.interval.ms": max(200, min(1_000, session_ms // 6)),
                "auto.offset.reset": "earliest",
                "partition.assignment.strategy": "cooperative-sticky",
                "fetch.queue.backoff.ms": 5,
                "fetch.wait.max.ms": 100,
                "max.poll.interval.ms": max(300_000, session_ms),
                **common,
                "group.id": group,
                "session.timeout.ms": session_ms,
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "on_commit": self._committed,
            },
        )
        try:
            self._consumer.subscribe(
                list(topics), on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
            )
        except KafkaException as error:
            raise _error_of(error.args[0], f"Subscribing to {', '.join(topics)}") from error

    # Reading

    def poll(self, max_records: int, timeout: float) -> list[Run]:
        """What has been fetched; else the first that comes. `consume` alone would wait for a full batch."""
        try:
            messages = self._consumer.consume(max_records, 0)
            if not messages and timeout > 0:
                first = self._consumer.poll(timeout)
                if first is not None:
                    messages = [first, *self._consumer.consume(max_records - 1, 0)] if max_records > 1 else [first]
        except KafkaException as error:
            raise _error_of(error.args[0], "Reading") from error
        if not messages:
            return []
        keys = list(map(_KEY, messages))
        if None in keys:  # only a record without a key can be an error in disguise
            messages = self._without_errors(messages)
            keys = list(map(_KEY, messages))
        self._make_readable(messages)
        return self._runs(messages, keys) if messages else []

    def _runs(self, messages: list[Any], keys: list[Any]) -> list[Run]:
        partitions = list(map(_PARTITION, messages))
        if self._one_topic and partitions.count(partitions[0]) == len(messages):
            return [Run(messages[0].topic(), partitions[0], messages, keys, list(map(_VALUE, messages)))]
        groups: dict[Place, list[Any]] = {}
        for place, message in zip(zip(map(_TOPIC, messages), partitions, strict=True), messages, strict=True):
            try:
                groups[place].append(message)
            except KeyError:
                groups[place] = [message]
        return [self._run(topic, partition, group) for (topic, partition), group in groups.items()]

    @staticmethod
    def _run(topic: str, partition: int, messages: list[Any]) -> Run:
        return Run(topic, partition, messages, list(map(_KEY, messages)), list(map(_VALUE, messages)))

    @staticmethod
    def _make_readable(messages: list[Any]) -> None:
        """Kafka admits header names that are no text, and the client then raises. Such headers count as absent."""
        reading = iter(messages)
        while True:
            try:
                for _ in filter(None, map(_HEADERS, reading)):  # the loop runs in C where there are none
                    pass
            except Exception as error:  # noqa: BLE001 - the client raises UnicodeDecodeError, and SystemError for it
                # Only the first call raises; the next would return a list with holes, and iterating that is a crash.
                message = messages[len(messages) - operator.length_hint(reading) - 1]
                message.set_headers([])
                place = f"{message.topic()}/{message.partition()}/{message.offset()}"
                log.warning("the headers of %s cannot be read and are taken as absent: %s", place, error)
            else:
                return

    def _without_errors(self, messages: list[Any]) -> list[Any]:
        if not any(map(_ERROR, messages)):
            return messages
        good: list[Any] = []
        for message in messages:
            error = message.error()
            if error is None:
                good.append(message)
            elif error.fatal() or error.code() in {
                KafkaError.TOPIC_AUTHORIZATION_FAILED,
                KafkaError.GROUP_AUTHORIZATION_FAILED,
            }:
                raise _error_of(error, "Reading")
            elif time.monotonic() - self._warned.get(error.code(), -60.0) > 60:
                self._warned[error.code()] = time.monotonic()
                log.warning("reading goes on after: %s", _error_of(error, "Reading"))
        return good

    # Assignments

    def _assigned(self, consumer: Any, partitions: list[Any]) -> None:
        known: dict[Place, Any] = {}
        try:
            known = {(p.topic, p.partition): p for p in consumer.committed(partitions, timeout=COMMITS_KNOWN_WITHIN)}
        except KafkaException as error:
            log.warning("the group's last commits are not known, so they count as unclean: %s", error)
        assigned: list[Assigned] = []
        for partition in partitions:
            commit = known.get((partition.topic, partition.partition))
            if commit is None:  # where reading begins is for the client to find out, and not for us to commit
                assigned.append(Assigned(partition.topic, partition.partition, -1, None))
            elif commit.offset != OFFSET_INVALID and commit.offset >= 0:
                assigned.append(Assigned(partition.topic, partition.partition, commit.offset, commit.metadata or ""))
            else:
                assigned.append(
                    Assigned(partition.topic, partition.partition, self._beginning(consumer, partition), None)
                )
        self._listener.on_assigned(assigned)

    @staticmethod
    def _beginning(consumer: Any, partition: Any) -> int:
        """A leader that was elected a moment ago says for another moment that it is none."""
        until = time.monotonic() + LEADER_WITHIN
        while True:
            try:
                return int(consumer.get_watermark_offsets(partition, timeout=5)[0])
            except KafkaException as error:
                if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION or time.monotonic() > until:
                    return -1
                time.sleep(0.02)

    def _revoked(self, _: Any, partitions: list[Any]) -> None:
        self._listener.on_revoked([(p.topic, p.partition) for p in partitions])

    def _lost(self, _: Any, partitions: list[Any]) -> None:
        self._listener.on_lost([(p.topic, p.partition) for p in partitions])

    # Committing

    def commit(self, positions: Mapping[Place, Commit], *, wait: bool) -> None:
        offsets = [
            TopicPartition(topic, partition, commit.offset, commit.metadata)
            for (topic, partition), commit in positions.items()
        ]
        if not offsets:
            return
        until = time.monotonic() + COMMITTED_WITHIN
        while True:
            error = self._try_commit(offsets, wait=wait)
            if error is None:
                return
            if not wait or error.code() not in _COMMIT_AGAIN or time.monotonic() > until:
                raise _error_of(error, "Committing")
            time.sleep(COMMIT_AGAIN_AFTER)

    def _try_commit(self, offsets: list[Any], *, wait: bool) -> Any:
        try:
            done = self._consumer.commit(offsets=offsets, asynchronous=not wait)
        except KafkaException as error:
            return error.args[0]
        return next((partition.error for partition in done or () if partition.error is not None), None)

    def _committed(self, error: Any, _: Any) -> None:
        if error is not None:
            log.debug("a commit was refused and will be made again: %s", error)
            self._listener.on_commit_failed()

    def end(self, place: Place) -> int:
        try:
            return int(self._consumer.get_watermark_offsets(TopicPartition(*place), timeout=COMMITS_KNOWN_WITHIN)[1])
        except KafkaException:
            return -1

    def pause(self, places: Sequence[Place]) -> None:
        self._consumer.pause([TopicPartition(*place) for place in places])

    def resume(self, places: Sequence[Place]) -> None:
        self._consumer.resume([TopicPartition(*place) for place in places])

    def close(self) -> None:
        self._consumer.close()
