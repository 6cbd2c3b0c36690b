"""A queue of dataclasses: python typed.py [memory:// | kafka://localhost:9092]."""

import sys
from dataclasses import dataclass, field
from datetime import date, timedelta

from marq import App

URL = sys.argv[1] if len(sys.argv) > 1 else "memory://"


@dataclass
class Order:
    """A field that was added later has a default, so that older messages can still be read."""

    number: int
    due: date
    items: list[str] = field(default_factory=list)


def main() -> None:
    with App(URL) as app:
        orders = app.queue("example-orders", Order)
        orders.send(Order(1, date(2030, 1, 1), ["apples", "pears"]), key="customer-7").result()
        try:
            orders.send("two apples")  # type: ignore[arg-type]  # the point of this example
        except TypeError as error:
            print("refused:", error)

        with orders.consume() as messages:
            for message in messages.receive(timeout=timedelta(seconds=10)):
                print("key", message.key, "value", message.value)
                message.ack()


if __name__ == "__main__":
    main()
