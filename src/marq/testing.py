"""What tests of programs on marq need: a broker without a broker, time that waits, and sudden death.

app = App("memory://")                                   # a broker of its own, with its pipeline
broker = MemoryTransport.named("mine", clock=ManualClock())
app = App("memory://mine")                               # the same, and now its time stands still
broker.advance(timedelta(minutes=5))                     # redeliveries of these five minutes happen now
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from marq.errors import ConfigurationError
from marq.transport.memory import MemorySubscription, MemoryTransport
from marq.transport.memory_broker import ManualClock, MemoryRecord

if TYPE_CHECKING:
    from marq.consumer import Consumer


def kill(consumer: Consumer[Any]) -> None:
    """End a consumer of `memory://` as `kill -9` would: nothing more is committed, marked, kept alive or given back.

    Its partitions go to the group's other members at once; what it had leased comes back when the lease has run out.
    """
    subscription = consumer._subscription  # noqa: SLF001 - no public verb kills
    if not isinstance(subscription, MemorySubscription):
        raise ConfigurationError("kill is for consumers of memory://. Kill the process of any other.")
    subscription.kill()
    consumer._closing = consumer._closed = True  # noqa: SLF001 - the keeper looks at it
    consumer._wake.set()  # noqa: SLF001
    consumer._keeper.join(timeout=5)  # noqa: SLF001


__all__ = ["ManualClock", "MemoryRecord", "MemoryTransport", "kill"]
