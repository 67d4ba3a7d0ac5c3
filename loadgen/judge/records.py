"""What a client saw of one connection, and a compact table of many of them.

One rule: instants are bounds, not points. The server read a byte somewhere between
`sent` and `seen`; a close happened somewhere between `closed_after` and `closed_by`.
What follows from the bounds is proof, and no more is claimed.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, NamedTuple


class How(IntEnum):
    """How a connection ended, as the client saw it."""

    OPEN = 0  # still open when the client looked last
    FIN = 1
    RST = 2
    SELF = 3  # closed by the client, as planned
    FAILED = 4  # never established


class Record(NamedTuple):
    """One connection's story. Instants are seconds on CLOCK_MONOTONIC, which all
    processes of a machine share.

    Attributes:
        connection: the plan's number of the connection.
        incarnation: 0, and one more for each reconnection.
        how: how it ended.
        final: whether the plan had the client silent for good (a correct server then
            must reap).
        overslept: whether the client, by its own lag, sent its last byte so late that
            the timeout had passed since the one before. Or it sent an earlier byte so
            late, and did not know yet that the server had read that one when it sent
            the last.
        sends: steps done.
        began: connect() was called.
        established: the client knew it was connected.
        sent: taken before the last send call; the server cannot have read the bytes
            earlier.
        seen: the server had read them by then (its answer had come; without answers,
            the send call had returned).
        closed_after: it was not closed at this instant yet, as far as the event queue
            showed.
        closed_by: it was closed at this instant. For OPEN both are the latest check.
    """

    connection: int
    incarnation: int
    how: int
    final: int
    overslept: int
    sends: int
    began: float
    established: float
    sent: float
    seen: float
    closed_after: float
    closed_by: float


_TYPES = "qiBBBqdddddd"


class RecordTable:
    """Many records in columns, of about 70 bytes each.

    They are cheap to keep, to pickle and to send through a pipe.
    """

    def __init__(self) -> None:
        self.columns: tuple[array[Any], ...] = tuple(array(code) for code in _TYPES)

    def __len__(self) -> int:
        return len(self.columns[0])

    def __iter__(self) -> Iterator[Record]:
        return map(Record._make, zip(*self.columns, strict=True))

    def append(self, record: Record) -> None:
        """Add *record* at the end."""
        for column, value in zip(self.columns, record, strict=True):
            column.append(value)

    def extend(self, other: RecordTable) -> None:
        """Add all records of *other* at the end."""
        for column, more in zip(self.columns, other.columns, strict=True):
            column.extend(more)
