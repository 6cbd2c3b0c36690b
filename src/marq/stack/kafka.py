"""A real Apache Kafka broker in one child process, for demos, development and tests."""

from __future__ import annotations

import base64
import shutil
import uuid
from typing import TYPE_CHECKING, ClassVar

from marq.stack.folder import speaking_of_folder
from marq.stack.jars import KAFKA_VERSION, broker_jars
from marq.stack.java import clean_environment, find_java
from marq.stack.kafka_wire import broker_is_up
from marq.stack.process import LOOPBACK, ManagedProcess, free_port
from marq.stack.server import Server

if TYPE_CHECKING:
    from pathlib import Path

# One compiler and one collector thread: less to start, and next to nothing when idle.
JVM_FLAGS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Djava.awt.headless=true")


class KafkaServer(Server):
    """One broker, which is its own controller, on loopback.

    with KafkaServer() as kafka:
        print(kafka.bootstrap)
    """

    name: ClassVar[str] = "Kafka"

    def __init__(self, data_dir: Path | None = None, port: int | None = None, heap: str = "512m") -> None:
        super().__init__(f"Kafka {KAFKA_VERSION}", data_dir, port)
        self._heap = heap

    @property
    def bootstrap(self) -> str:
        """What clients connect to."""
        return f"{LOOPBACK}:{self.port}"

    @property
    def log(self) -> Path:
        """The broker's log; beside it stands what the JVM itself printed (kafka.out)."""
        return self.data_dir / "logs" / "kafka.log"

    def _launch(self, port: int, held: int) -> ManagedProcess:
        # First, because this may take a download, and its errors are not about the data folder.
        java: list[str | Path] = [find_java().path, *JVM_FLAGS, f"-Xmx{self._heap}"]
        java += ["-Dlog4j2.configurationFile=log4j2.properties", "-cp", ":".join(map(str, broker_jars()))]
        folder = self.data_dir
        with speaking_of_folder(folder):
            self.log.parent.mkdir(exist_ok=True)
            self.log.unlink(missing_ok=True)
            (folder / "server.properties").write_text(server_properties(port, free_port(avoid=[port])))
            (folder / "log4j2.properties").write_text(LOG_CONFIGURATION)
            if "formatted" not in self._folder.facts:
                self._format(java, held)
            return self._run([*java, "kafka.Kafka", "server.properties"], "kafka.out", held)

    def _is_ready(self, port: int) -> bool:
        return broker_is_up(port, self._folder.facts["cluster"])

    def _format(self, java: list[str | Path], held: int) -> None:
        """Kafka's own tool lays out the folder: it alone knows which features a version switches on."""
        shutil.rmtree(self.data_dir / "data", ignore_errors=True)  # what a broken-off attempt may have left
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # With "=", because one id in 64 begins with a "-".
        command = [*java, "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "--config=server.properties"]
        tool = self._process = self._run(command, "format.out", held)
        if tool.wait(self.start_seconds) != 0:
            raise self.start_error("Kafka's data folder could not be laid out")
        tool.stop()
        self._folder.remember(cluster=cluster, formatted="yes")

    def _run(self, command: list[str | Path], output: str, held: int) -> ManagedProcess:
        """In the data folder, so that all its settings are relative and the folder may be moved."""
        return ManagedProcess(
            command,
            log=self.log.with_name(output),
            environment=clean_environment(),
            folder=self.data_dir,
            hold=[held],
            temporary=self.data_dir if self._folder.is_temporary else None,
        ).start()


def server_properties(port: int, controller_port: int) -> str:
    """The broker's settings: one node, everything on loopback, internal topics as small as one node needs them."""
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{LOOPBACK}:{controller_port}",
        "listeners": f"PLAINTEXT://{LOOPBACK}:{port},CONTROLLER://{LOOPBACK}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": "data",
        "auto.create.topics.enable": "false",
        "num.partitions": "4",
        "default.replication.factor": "1",
        "min.insync.replicas": "1",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "4",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "4",
        # After a kill the broker may come back only when its last session has run out, so the session is short.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "1000",
        # A lone developer's group should not wait for members that will never come.
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.min.heartbeat.interval.ms": "200",
        "num.network.threads": "2",
        "num.io.threads": "4",
        "num.recovery.threads.per.data.dir": "1",
        "background.threads": "2",
        "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
        "log.retention.hours": str(7 * 24),
        "log.segment.bytes": str(256 * 1024 * 1024),
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


LOG_CONFIGURATION = """\
status = error
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = logs/kafka.log
appender.file.filePattern = logs/kafka.log.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = [%d] %p %m (%c)%n
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 2
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
logger.server.name = kafka.server
logger.server.level = info
"""
