"""What all rooms of tests share: real servers, started once, and waiting without guessing how long."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings

from marq.stack.kafka import KafkaServer

# What CI says of a commit must not depend on luck; elsewhere hypothesis looks further each time.
settings.register_profile("ci", derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[KafkaServer]:
    """A real broker for the whole session. Tests keep apart by the names of their topics."""
    with KafkaServer() as server:
        yield server


@pytest.fixture(scope="session")
def eventually() -> Callable[..., Any]:
    """Wait until something is true, and fail with what it was instead."""

    def wait(look: Callable[[], Any], timeout: float = 10.0) -> Any:
        until = time.monotonic() + timeout
        pause = threading.Event()
        while True:
            found = look()
            if found:
                return found
            if time.monotonic() > until:
                pytest.fail(f"not within {timeout} s; the last look saw {found!r}")
            pause.wait(0.01)

    return wait
