"""What is sent, and what will happen to each message. The same seed gives the same plan."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Literal

from marq.retry import Retry
from marq.settings import ConsumerSettings

QUEUE = "orders"
ATTEMPTS = 4
# The last of the three waits is longer than a worker holds a message itself, so Spark has to give it back.
RETRY = Retry(ATTEMPTS, delay=timedelta(milliseconds=300), factor=2, jitter=0.1)
# A dead worker's partitions go to another before its leases run out. So a message that was leased just before the
# kill, and whose offset was not committed any more, is leased again and not redelivered besides.
CONSUMER = ConsumerSettings(
    lease=timedelta(seconds=10),
    mark_after=timedelta(milliseconds=200),
    hold_max=timedelta(seconds=1),
    commit_interval=timedelta(milliseconds=100),
    session_timeout=timedelta(seconds=6),
    max_in_flight=200,
    poll_batch=50,
)
REASON_FAILED = "failed"  # a dead letter's reason begins so when its handler failed, and not its worker

SLOW_EVERY = 100
FLAKY_EVERY = 50
POISON_EVERY = 500
FAILURES_MAX = 2  # of a message that gets through in the end; a killed worker may cost it one attempt more
LONG_COUNT = 8
LONG_SECONDS = 4.0

Kind = Literal["plain", "slow", "flaky", "poison"]


@dataclass(frozen=True)
class Order:
    """The payload. It tells the handler how to behave."""

    number: int
    kind: Kind = "plain"
    failures: int = 0  # how many attempts fail before one succeeds
    seconds: float = 0.0  # how long the handler takes


def plan(messages: int, seed: int) -> list[Order]:
    """So many orders: most are plain, some are slow, some fail at first, a few always fail.

    The slow ones are spread evenly, and some that take longest come before the middle, so that whichever worker is
    killed there has leases in its hands.
    """
    random = Random(seed)
    orders = [Order(number) for number in range(messages)]
    long_from = int(messages * 0.42)
    taken = set(range(long_from, long_from + LONG_COUNT))
    for number in taken:
        orders[number] = Order(number, "slow", seconds=LONG_SECONDS)
    for number in _spread(messages, SLOW_EVERY, taken, random):
        orders[number] = Order(number, "slow", seconds=round(random.uniform(1.0, 2.5), 2))
    for number in _spread(messages, FLAKY_EVERY, taken, random):
        orders[number] = Order(number, "flaky", failures=random.randint(1, FAILURES_MAX))
    for number in _spread(messages, POISON_EVERY, taken, random, least=2):
        orders[number] = Order(number, "poison")
    return orders


def _spread(messages: int, every: int, taken: set[int], random: Random, least: int = 1) -> list[int]:
    """One number in each stretch of this length that is not taken yet."""
    stretches = max(least, messages // every)
    chosen = []
    for index in range(stretches):
        stretch = range(index * messages // stretches, (index + 1) * messages // stretches)
        number = random.choice([each for each in stretch if each not in taken])
        taken.add(number)
        chosen.append(number)
    return chosen


def key_of(order: Order) -> str:
    """Whose order it is."""
    return f"customer-{order.number % 97}"


def headers_of(order: Order) -> list[tuple[str, bytes | None]]:
    """A header of the sender's own, which must survive everything."""
    return [("order-number", str(order.number).encode())]


def fails(order: Order, attempt: int) -> bool:
    """Whether this attempt fails."""
    return order.kind == "poison" or attempt <= order.failures
