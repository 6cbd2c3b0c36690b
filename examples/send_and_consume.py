"""Send ten messages and handle them: python send_and_consume.py [memory:// | kafka://localhost:9092]."""

import sys
from itertools import islice

from marq import App

URL = sys.argv[1] if len(sys.argv) > 1 else "memory://"
COUNT = 10


def main() -> None:
    with App(URL) as app:
        greetings = app.queue("example-greetings", str)
        sent = greetings.send_many([f"hello {number}" for number in range(COUNT)], headers={"lang": "en"})
        print("sent", sent, "messages, all durable")

        with greetings.consume() as messages:
            for message in islice(messages, COUNT):
                print(message.value, dict(message.headers))
                message.ack()
        print("acked", COUNT)


if __name__ == "__main__":
    main()
