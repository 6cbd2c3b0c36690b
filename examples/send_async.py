"""Send from asyncio, a hundred at a time: python send_async.py [memory:// | kafka://localhost:9092]."""

import asyncio
import sys
from itertools import islice

from marq import App, Queue

URL = sys.argv[1] if len(sys.argv) > 1 else "memory://"
COUNT = 100


async def send_all(events: Queue[dict[str, int]]) -> None:
    receipts = await asyncio.gather(*(events.send_async({"number": number}) for number in range(COUNT)))
    print("sent", len(receipts), "events, all durable, in", len({receipt.partition for receipt in receipts}), "places")


def main() -> None:
    with App(URL) as app:
        events = app.queue("example-events", dict[str, int])
        asyncio.run(send_all(events))
        with events.consume() as messages:
            numbers = []
            for message in islice(messages, COUNT):
                numbers.append(message.value["number"])
                message.ack()
        print("acked", len(numbers), "events, the highest is", max(numbers))


if __name__ == "__main__":
    main()
