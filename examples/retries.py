"""A message that fails twice, and one that always fails: python retries.py [memory:// | kafka://localhost:9092]."""

import sys
from datetime import timedelta

from marq import App, Retry

URL = sys.argv[1] if len(sys.argv) > 1 else "memory://"
POLICY = Retry(attempts=3, delay=timedelta(milliseconds=100), factor=2)


def deliver(text: str, attempt: int) -> None:
    """Stands for work that depends on somebody else."""
    if "nobody" in text or attempt < 3:
        raise ConnectionError(f"no answer to {text!r}")


def main() -> None:
    with App(URL) as app:
        letters = app.queue("example-letters", str, retry=POLICY)
        letters.send_many(["to Ada", "to nobody"])

        settled = 0
        with letters.consume() as messages:
            for message in messages:
                try:
                    deliver(message.value, message.attempt)
                except ConnectionError as error:
                    message.nack()
                    is_last = message.attempt == POLICY.attempts
                    print(f"attempt {message.attempt}: {error},", "a dead letter" if is_last else "again later")
                    settled += is_last
                else:
                    message.ack()
                    print(f"attempt {message.attempt}: {message.value!r} is delivered")
                    settled += 1
                if settled == 2:
                    break


if __name__ == "__main__":
    main()
