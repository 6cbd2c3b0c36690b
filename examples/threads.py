"""Eight threads share one consumer: python threads.py [memory:// | kafka://localhost:9092]."""

import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from marq import App, Message

URL = sys.argv[1] if len(sys.argv) > 1 else "memory://"
COUNT = 200
THREADS = 8

done: Counter[str] = Counter()
lock = threading.Lock()


def fetch(message: Message[int]) -> None:
    """Whatever happens, the message is settled: an error in a pool's thread is seen by nobody."""
    try:
        time.sleep(0.005)
    except OSError:
        message.nack()
    else:
        message.ack()
    with lock:
        done[threading.current_thread().name] += 1


def main() -> None:
    with App(URL) as app:
        pages = app.queue("example-pages", int)
        pages.send_many(range(COUNT))

        # The pool ends first: the consumer must not give back what it still works on.
        with pages.consume(max_in_flight=4 * THREADS) as messages, ThreadPoolExecutor(THREADS) as pool:
            for message in islice(messages, COUNT):
                pool.submit(fetch, message)
        print("acked", done.total(), "messages in", len(done), "threads")


if __name__ == "__main__":
    main()
