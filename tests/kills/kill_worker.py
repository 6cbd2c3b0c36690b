"""A worker that a test can kill: does with each message what its value says, and tells it line by line."""

import json
import os
import sys
import time
from datetime import timedelta

from marq import App, Retry, TopicSettings

said = json.loads(sys.argv[1])
app = App(said["url"], topics=TopicSettings(prefix=said["prefix"]))
queue = app.queue(said["queue"], str, retry=Retry(said["attempts"], delay=timedelta(milliseconds=100), jitter=0.0))
options = {name: timedelta(seconds=seconds) for name, seconds in said["seconds"].items()}


def tell(event, message=None):
    line = {"event": event, "at": time.time()}
    if message is not None:
        line |= {
            "id": message.id,
            "value": message.value,
            "attempt": message.attempt,
            "key": (message.key or b"").decode(),
            "headers": [(name, value.decode()) for name, value in message.headers],
            "timestamp": message.timestamp.timestamp(),
        }
    print(json.dumps(line), flush=True)


tell("started")
held = []
with queue.consume(**options) as messages:
    for message in messages:
        verb = message.value.split()[0]
        tell("got", message)
        if verb == "hold" and (message.attempt == 1 or not said["acks_later"]):
            held.append(message)
        elif verb == "later" and message.attempt == 1:
            message.nack(delay=timedelta(seconds=2))
        elif verb == "fail":
            message.nack()
        elif verb == "poison":
            os._exit(9)
        else:
            message.ack()
