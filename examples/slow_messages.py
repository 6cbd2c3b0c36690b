"""A handler that takes longer than its lease: python slow_messages.py [memory:// | kafka://localhost:9092]."""

import sys
import time
from datetime import timedelta
from itertools import islice

from marq import App

URL = sys.argv[1] if len(sys.argv) > 1 else "memory://"
LEASE = timedelta(seconds=1)


def main() -> None:
    with App(URL) as app:
        films = app.queue("example-films", str)
        films.send_many(["a short one", "a long one"])

        with films.consume(lease=LEASE, mark_after=timedelta(milliseconds=100)) as messages:
            for message in islice(messages, 2):
                print("working on", message.value)
                if "long" in message.value:
                    time.sleep(2 * LEASE.total_seconds())  # kept alive meanwhile, by a thread of the consumer
                message.ack()
            counts = messages.counts
        print("leases written:", counts.get("leased", 0) > 0, "- leases that ran out:", counts.get("expired", 0))


if __name__ == "__main__":
    main()
