"""Message-queue semantics on Apache Kafka: every message leased, acknowledged, retried and dead-lettered on its own."""

from marq.app import App
from marq.consumer import Consumer
from marq.errors import MarqError
from marq.message import Message, Receipt
from marq.queue import Queue
from marq.retry import Retry
from marq.settings import AppSettings, ConsumerSettings, TopicSettings

__version__ = "0.1.0"

__all__ = [
    "App",
    "AppSettings",
    "Consumer",
    "ConsumerSettings",
    "MarqError",
    "Message",
    "Queue",
    "Receipt",
    "Retry",
    "TopicSettings",
]
