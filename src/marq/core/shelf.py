"""How the ledger keeps its state: a few blobs on a shelf, whatever the shelf is made of.

On Spark a shelf is one MapState in RocksDB, in `memory://` and in tests a dict. Each call on Spark costs a round
trip, so there are few blobs, each is read and written whole, and only when it is needed or has changed:

    meta                    clock, directories of segments, buckets and pages (JSON)
    names                   streams and owners by number (JSON)
    hot                     what is leased and what falls due soon: columns, one row a message
    cold/<width>/<n>/<part> delays that are far off, by the time they fall due; append-only
    given/<page>            which messages of a topic lie in the cold buckets, because their consumers gave them up
    seg/<n>                 START records as they came: payloads and policy
    confirm                 REDELIVERED and DEAD markers that wait until their letters are durable
"""

from __future__ import annotations

import struct
from array import array
from sys import byteorder
from typing import TYPE_CHECKING, Protocol

from marq.core.records import OFFSET_MAX
from marq.errors import LedgerStateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

FORMAT = 1
META = "meta"
NAMES = "names"
HOT = "hot"
CONFIRM = "confirm"

OFFSET_BITS = OFFSET_MAX.bit_length() - 1
OFFSET_MASK = OFFSET_MAX - 1

# One message in flight: (deadline, attempt, owner number << 1 | waiting, place). A plain tuple, because a batch makes
# and reads hundreds of thousands of them. `place` says where the payload lies (see segments.py). The key of a row is
# stream number << OFFSET_BITS | offset. Rows compare by deadline first: the smallest row falls due first.
Row = tuple[int, int, int, int]

_HEADER = struct.Struct("<I")
_ROW_COLUMNS = "iqqiiq"  # stream, offset, deadline, attempt, owner and waiting, place
_ROW_BYTES = sum(array(code).itemsize for code in _ROW_COLUMNS)


class Shelf(Protocol):
    """Where blobs are kept between batches."""

    def get(self, key: str, /) -> bytes | None: ...

    def put(self, key: str, value: bytes, /) -> None: ...

    def delete(self, key: str, /) -> None: ...


class DictShelf(dict[str, bytes]):
    """A shelf in memory."""

    def put(self, key: str, value: bytes, /) -> None:
        self[key] = value

    def delete(self, key: str, /) -> None:
        self.pop(key, None)


def row_key(stream: int, offset: int) -> int:
    return stream << OFFSET_BITS | offset


def stream_of(key: int) -> int:
    return key >> OFFSET_BITS


def offset_of(key: int) -> int:
    return key & OFFSET_MASK


def pack_rows(keys: Sequence[int], rows: Sequence[Row]) -> bytes:
    """Rows as columns: rows of one kind lie side by side and are converted at C speed."""
    columns: Iterable[Iterable[int]] = zip(*rows, strict=True) if rows else [()] * 4
    both_keys = ([key >> OFFSET_BITS for key in keys], [key & OFFSET_MASK for key in keys])
    arrays = [array(code, column) for code, column in zip(_ROW_COLUMNS, (*both_keys, *columns), strict=True)]
    return _HEADER.pack(len(rows)) + b"".join(_little_endian(each).tobytes() for each in arrays)


def unpack_rows(blob: bytes | None) -> Iterator[tuple[int, Row]]:
    """Keys and rows, in the order in which they were packed."""
    if blob is None:
        return iter(())
    count = _HEADER.unpack_from(blob)[0] if len(blob) >= _HEADER.size else -1
    if len(blob) != _HEADER.size + count * _ROW_BYTES:
        raise LedgerStateError
    columns: list[array[int]] = []
    start = _HEADER.size
    for code in _ROW_COLUMNS:
        column = array(code)
        end = start + count * column.itemsize
        column.frombytes(blob[start:end])
        columns.append(_little_endian(column))
        start = end
    streams, offsets, *rest = columns
    keys = [stream << OFFSET_BITS | offset for stream, offset in zip(streams, offsets, strict=True)]
    deadlines, attempts, owned, places = rest
    return zip(keys, zip(deadlines, attempts, owned, places, strict=True), strict=True)


def _little_endian(column: array[int]) -> array[int]:
    if byteorder == "big":  # pragma: no cover - the format is little-endian, and so is every machine at hand
        column.byteswap()
    return column


def pack_blobs(blobs: Iterable[bytes]) -> bytes:
    """Several blobs as one."""
    return b"".join(_HEADER.pack(len(blob)) + blob for blob in blobs)


def unpack_blobs(packed: bytes | None) -> list[bytes]:
    blobs = []
    rest = packed or b""
    position = 0
    while position < len(rest):
        (length,) = _HEADER.unpack_from(rest, position)
        position += _HEADER.size
        blobs.append(rest[position : position + length])
        position += length
    return blobs
