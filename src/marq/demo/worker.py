"""One worker of the demo, in an interpreter of its own: `python -m marq.demo.worker JOB`, the job as JSON."""

from __future__ import annotations

import logging
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from marq.app import App
from marq.demo import plan
from marq.demo.plan import Order
from marq.demo.reports import ACKED, BEGUN, FAILED, HERE, ReportFile
from marq.errors import SettlementError
from marq.message import Message

log = logging.getLogger("marq.demo.worker")

HANDS = 12  # slow messages at a time


@dataclass(frozen=True)
class Job:
    """What a worker has to know."""

    bootstrap: str
    report: str
    pace: float  # seconds for a plain message


def handle(message: Message[Order], reports: ReportFile, pace: float) -> None:
    """Do what the order says. What is done is reported before it is acked: after a kill in between it is done again."""
    order, attempt = message.value, message.attempt
    reports.write(BEGUN, message.id, order.number, attempt)
    time.sleep(order.seconds or pace)
    failed = plan.fails(order, attempt)
    reports.write(FAILED if failed else ACKED, message.id, order.number, attempt)
    try:
        if failed:
            message.nack()
        else:
            message.ack()
    except SettlementError as error:
        log.warning("%r went to somebody else meanwhile: %s", message, error)


def work(job: Job) -> None:
    """Until SIGTERM. Plain messages one after the other; slow ones on threads, so that the others go on."""
    reports = ReportFile(Path(job.report))
    with App(f"kafka://{job.bootstrap}", consumer=plan.CONSUMER) as app:
        queue = app.queue(plan.QUEUE, Order, retry=plan.RETRY)
        with queue.consume() as messages, ThreadPoolExecutor(HANDS) as hands:
            signal.signal(signal.SIGTERM, lambda *_: messages.stop())
            reports.write(HERE, messages.id)
            do = partial(handle, reports=reports, pace=job.pace)
            for message in messages:
                if message.value.kind == "slow":
                    hands.submit(do, message)
                else:
                    do(message)


if __name__ == "__main__":
    work(msgspec.json.decode(sys.argv[1], type=Job))
