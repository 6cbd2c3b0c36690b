"""The batch from which the application takes its messages, and how far it has got."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from itertools import compress
from typing import Generic, TypeVar

from marq.core.frontier import IN_FLIGHT, Place, Sheet
from marq.message import Message

T = TypeVar("T")


class Hand(Generic[T]):
    """What is being handed out. Taking a message costs nothing here: the list's own iterator knows what is left.

    Everything but the iteration itself is called under the consumer's lock.
    """

    def __init__(self) -> None:
        self._messages: list[Message[T]] = []
        self._sheets: Sequence[Sheet] = ()
        self._wanted = bytearray()  # cleared for what is taken away before it is handed out
        self._unhanded: Iterator[Message[T]] = iter(())
        self.rest: Iterator[Message[T]] = iter(())

    def deal(self, messages: list[Message[T]], sheets: Sequence[Sheet]) -> None:
        """A new batch, when the last one is used up."""
        self._messages, self._sheets = messages, sheets
        self._wanted = bytearray(b"\1") * len(messages)
        self._unhanded = iter(messages)
        self.rest = compress(self._unhanded, self._wanted)

    @property
    def left(self) -> int:
        """How many messages of the batch the application has not taken."""
        return operator.length_hint(self._unhanded)

    def note(self) -> None:
        """Tell the sheets how far the application has got."""
        handed = len(self._messages) - self.left
        last = self._messages[handed - 1] if 0 < handed < len(self._messages) else None
        for sheet in self._sheets if handed else ():
            if last is not None and sheet is last._sheet:  # noqa: SLF001 - a message is a handle on its sheet
                sheet.handed = last._index + 1  # noqa: SLF001
                break
            sheet.handed = sheet.count

    def withhold(self, places: Sequence[Place]) -> None:
        """What has not been taken of partitions that go stays here, unless it is leased."""
        self.note()
        for position in range(len(self._messages) - self.left, len(self._messages)):
            sheet, index = self._messages[position]._sheet, self._messages[position]._index  # noqa: SLF001
            if sheet.place in places and sheet.flags[index] == IN_FLIGHT:
                self._wanted[position] = 0

    def put_down(self) -> None:
        """Nothing more is handed out of this batch."""
        self.note()
        self._wanted[:] = bytes(len(self._wanted))
        self._messages, self._sheets, self._unhanded = [], (), iter(())
