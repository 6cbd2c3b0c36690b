"""What the stack costs while nothing happens: the CPU of broker, Redis and pipeline, without and with pending leases.

    python benchmarks/idle.py [--settle 120] [--seconds 60] [--leases 1000]

Prints one JSON object per line. CPU is the user and system time of each server's processes, children included, as a
share of one core; ticks, batches and batch times are what the pipeline itself reports.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import psutil

from marq import App
from marq.stack.kafka import KafkaServer
from marq.stack.process import ManagedProcess
from marq.stack.redis import RedisServer

READY_WITHIN = 120


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and of all it has started, the ended ones included."""
    total = 0.0
    for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total


class Stack:
    """The three servers of `marq dev`, as child processes."""

    def __init__(self, folder: Path) -> None:
        self.kafka = KafkaServer().start()
        self.redis = RedisServer().start()
        self.log = folder / "pipeline.log"
        command = [sys.executable, "-m", "marq.cli", "pipeline", "--json", "--bootstrap", self.kafka.bootstrap]
        command += ["--checkpoint", str(folder / "checkpoint"), "--spark-log", str(folder / "spark.log")]
        self.pipeline = ManagedProcess(command, log=self.log, environment=dict(os.environ))
        self.pipeline.start()
        until = time.monotonic() + READY_WITHIN
        while '"ready"' not in self.log.read_text():
            if time.monotonic() > until:
                sys.exit(f"the pipeline did not get ready:\n{self.log.read_text()}")
            time.sleep(0.2)

    def status(self) -> dict[str, float]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return lines[-1] if lines else {}

    def pids(self) -> dict[str, int]:
        return {"kafka": self.kafka.pid, "redis": self.redis.pid, "pipeline": self.pipeline.pid}

    def stop(self) -> None:
        self.pipeline.stop()
        self.redis.stop()
        self.kafka.stop()


def measure(stack: Stack, phase: str, seconds: float) -> None:
    before = {name: cpu_seconds(pid) for name, pid in stack.pids().items()}
    began = time.monotonic()
    time.sleep(seconds)
    elapsed = time.monotonic() - began
    shares = {name: round((cpu_seconds(pid) - before[name]) / elapsed, 4) for name, pid in stack.pids().items()}
    line = {"bench": "idle", "phase": phase, "seconds": round(elapsed, 1), "cores": shares}
    line["total"] = round(sum(shares.values()), 4)
    line["pipeline_status"] = stack.status()
    print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settle", type=float, default=120.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--leases", type=int, default=1000)
    said = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        stack = Stack(Path(folder))
        try:
            with App(f"kafka://{stack.kafka.bootstrap}") as app:
                time.sleep(max(0.0, said.settle - (time.monotonic() - began)))
                measure(stack, "nothing in flight", said.seconds)
                queue = app.queue("idle")
                queue.send_many([b"pending"] * said.leases)
                with queue.consume(max_in_flight=2 * said.leases) as consumer:
                    held: list[object] = []
                    while len(held) < said.leases:
                        held += consumer.receive(said.leases, timeout=timedelta(seconds=5))
                    time.sleep(5)
                    leased = consumer.counts["leased"]
                    if leased < said.leases:
                        sys.exit(f"only {leased} of {said.leases} messages are leased")
                    measure(stack, f"{leased} leases pending, none due", said.seconds)
        finally:
            stack.stop()


if __name__ == "__main__":
    main()
