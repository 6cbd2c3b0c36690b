"""What the cluster says of the markers topic, asked through Spark's own Kafka client, as Spark will connect."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError

from marq.errors import PipelineError, TransportError
from marq.pipeline.checkpoint import Identity

LOG_APPEND_TIME = "LogAppendTime"
ANSWER_WITHIN_MS = "30000"


@dataclass(frozen=True)
class MarkersTopic:
    """The topic as it is."""

    identity: Identity
    partitions: int
    timestamp_type: str


def look_up(session: Any, bootstrap: str, topic: str, options: Mapping[str, str]) -> MarkersTopic:
    """Ask; `PipelineError` when there is no such topic, `TransportError` when there is no answer."""
    jvm = session._jvm  # noqa: SLF001 - the Kafka client lives there
    properties = jvm.java.util.Properties()
    for name, value in {**options, "bootstrap.servers": bootstrap, "default.api.timeout.ms": ANSWER_WITHIN_MS}.items():
        properties.setProperty(name, value)
    try:
        admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)
        try:
            return _ask(jvm, admin, topic)
        finally:
            admin.close()
    except Py4JJavaError as error:
        cause = error.java_exception.getCause() or error.java_exception
        if "UnknownTopicOrPartition" in cause.getClass().getName():
            raise PipelineError(
                f"There is no topic {topic}. Create marq's topics with `App(...).ensure_topics()`, or start a producer "
                "or a worker first."
            ) from error
        said = str(cause.getMessage()).rstrip(".")
        raise TransportError(
            f"Spark got no answer from Kafka at {bootstrap}: {said}. Check the address and the broker."
        ) from error


def _ask(jvm: Any, admin: Any, topic: str) -> MarkersTopic:
    names = jvm.java.util.Collections.singletonList(topic)
    description = admin.describeTopics(names).allTopicNames().get().get(topic)
    kinds = getattr(jvm.org.apache.kafka.common.config, "ConfigResource$Type")
    resource = jvm.org.apache.kafka.common.config.ConfigResource(kinds.TOPIC, topic)
    config = admin.describeConfigs(jvm.java.util.Collections.singletonList(resource)).all().get().get(resource)
    identity = Identity(
        cluster=str(admin.describeCluster().clusterId().get()), topic=topic, topic_id=str(description.topicId())
    )
    return MarkersTopic(identity, description.partitions().size(), str(config.get("message.timestamp.type").value()))


def require_broker_time(topic: MarkersTopic) -> None:
    """Deadlines are counted on the broker's clock, so each marker must carry it."""
    if topic.timestamp_type != LOG_APPEND_TIME:
        raise PipelineError(
            f"Topic {topic.identity.topic} has message.timestamp.type={topic.timestamp_type}, so its timestamps are "
            f"the producers', and deadlines would hang on their clocks. Mend it with: kafka-configs.sh --alter "
            f"--entity-type topics --entity-name {topic.identity.topic} "
            f"--add-config message.timestamp.type={LOG_APPEND_TIME}"
        )
