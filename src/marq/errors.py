"""Every error that marq raises on purpose.

MarqError
├── ConfigurationError (ValueError)   a setting is wrong; the message names it and says what is allowed
├── SendError                         a message could not be made durable; it may be sent again
│   ├── QueueFullError                the local send buffer is full
│   └── MessageTooLargeError          the message could never be stored, on the topic or in a marker
├── SettlementError                   ack, nack, extend or dead_letter could not be done
│   ├── LeaseExpiredError             the lease was lost; somebody else has, or will get, the message
│   └── AlreadySettledError           the message was acked, nacked or dead-lettered before
├── DecodeError                       a payload is not what the queue's type says; .raw holds its bytes
├── QueueNotFoundError (LookupError)  no queue of that name; near names are suggested
├── TransportError                    the broker said no or did not answer; .retryable says whether to try again
├── MalformedMarkerError (ValueError) a record on the markers topic is no marker batch; readers skip and count it
├── PipelineError                     the Spark pipeline could not start or stopped
│   └── LedgerStateError              the stored state cannot be read; the message says how to rebuild it
├── BenchError                        a measurement could not be finished
└── StackError                        an embedded server could not be had
    ├── JavaNotFoundError             no Java, or one older than 17
    ├── DownloadError                 the jars are not in the cache and could not be fetched
    ├── ChecksumError                 a jar is not the one that was pinned
    ├── PortInUseError                somebody else listens on the port
    ├── DataFolderError               the data folder belongs to something else, or cannot be written
    └── ServerStartError              the server started and died, or did not become healthy in time
"""

from __future__ import annotations

from typing import Any


class MarqError(Exception):
    """Something went wrong in marq."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (self.__doc__ or type(self).__name__).strip())


class ConfigurationError(MarqError, ValueError):
    """A setting is wrong."""


class SendError(MarqError):
    """The message could not be sent. It is not in the queue; send it again."""

    def __init__(self, message: str | None = None, *, queue: str | None = None) -> None:
        super().__init__(message)
        self.queue = queue


class QueueFullError(SendError):
    """The local send buffer is full. Wait for receipts before sending more."""


class MessageTooLargeError(SendError):
    """The message is larger than the topics admit. Send a reference to the data, or raise max.message.bytes."""


class SettlementError(MarqError):
    """The message could not be settled."""

    def __init__(self, message: str | None = None, *, message_id: str | None = None) -> None:
        super().__init__(message)
        self.message_id = message_id


class LeaseExpiredError(SettlementError):
    """The lease on this message was lost: it will be, or was, delivered again to somebody else."""


class AlreadySettledError(SettlementError):
    """The message was already acked, nacked or dead-lettered."""


class DecodeError(MarqError):
    """The payload is not what the queue's type says."""

    def __init__(self, message: str | None = None, *, raw: bytes | None = None) -> None:
        super().__init__(message)
        self.raw = raw


class QueueNotFoundError(MarqError, LookupError):
    """There is no queue of that name."""


class TransportError(MarqError):
    """The broker refused, or did not answer."""

    def __init__(self, message: str | None = None, *, retryable: bool = True, code: Any = None) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.code = code


class MalformedMarkerError(MarqError, ValueError):
    """A record on the markers topic that is no marker batch. Readers skip it and count it."""


class PipelineError(MarqError):
    """The pipeline could not start, or stopped."""


class LedgerStateError(PipelineError):
    """The stored state cannot be read. Start with a new checkpoint folder: the state is rebuilt from the log."""


class StackError(MarqError):
    """An embedded server could not be had."""


class JavaNotFoundError(StackError):
    """marq's embedded Kafka and its pipeline need Java 17 or newer. Install one, or set JAVA_HOME to it."""


class DownloadError(StackError):
    """The jars are not in the cache and could not be fetched."""


class ChecksumError(StackError):
    """A downloaded jar is not the one that was pinned."""


class PortInUseError(StackError):
    """Another program listens on that port. Choose another, or leave the port out to get a free one."""


class DataFolderError(StackError):
    """The data folder cannot be used."""


class ServerStartError(StackError):
    """The server did not start. Its log says why."""


class BenchError(MarqError):
    """A measurement could not be finished."""
