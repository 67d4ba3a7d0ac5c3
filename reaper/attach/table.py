"""What is remembered of each watched connection, in columns: about 100 bytes each, the index and its slot included.

One rule: *a row is a number, and a number may be reused*. Whatever refers to a row from outside (a slot of the wheel)
carries the row's generation too, and a reference whose generation has passed refers to nothing.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator

from .index import Index
from .judge import NONE, Memory
from .netlink import IDENT_BYTES, cookie_of

GENERATIONS = 1 << 8
MARKS = 255
"""Marks are 1 to this."""
_UNUSED = 0
WORDS = IDENT_BYTES // 8
"""Of an ident; the last is the cookie."""


class Table:
    """Rows of connections, found by the socket's cookie.

    Args:
        write, rate, age: Whether the columns for stalled writes, slow senders and the age are needed.
    """

    def __init__(self, write: bool = False, rate: bool = False, age: bool = False) -> None:
        self._idents: array[int] = array("Q")
        self._index = Index(self._idents, WORDS)
        self._free: array[int] = array("I")
        self.inode: array[int] = array("I")
        self.generation: bytearray = bytearray()
        self.mark: bytearray = bytearray()
        """The mark of the last dump that showed it; 0: the row is not in use."""
        self.told: bytearray = bytearray()
        """Flags of the watch."""
        self._opened: array[float] | None = array("d") if age else None
        self._received: array[int] = array("Q")
        self._acked: array[int] = array("Q")
        self._turn: array[float] = array("d")
        self._stalled: array[float] | None = array("d") if write else None
        self._slow: array[float] | None = array("d") if rate else None
        self._slow_received: array[int] | None = array("Q") if rate else None
        self.find: Callable[[int], int | None] = self._index.find
        """The row of the socket with a cookie; None: not watched. O(1)."""

    def __len__(self) -> int:
        return len(self._index)

    def unmarked(self, mark: int) -> Iterator[int]:
        """Every row in use whose mark is another one, as of now. Cost: 10 ns per row."""
        other = re.compile(b"[^\\x00\\x%02x]" % mark)
        return iter(array("I", [found.start() for found in other.finditer(self.mark)]))

    def rows(self) -> Iterator[int]:
        """Every row in use, as of now."""
        return self.unmarked(_UNUSED)

    def ident(self, row: int) -> bytes:
        """The kernel's name of the connection."""
        return self._idents[row * WORDS : (row + 1) * WORDS].tobytes()

    def cookie(self, row: int) -> int:
        """Its cookie."""
        return self._idents[row * WORDS + WORDS - 1]

    def add(self, ident: bytes, inode: int, memory: Memory, mark: int) -> int:
        """Watch one more connection; its row. O(1) amortised."""
        if self._free:
            row = self._free.pop()
            self._idents[row * WORDS : (row + 1) * WORDS] = array("Q", ident)
            self.inode[row] = inode
            self.mark[row] = mark
            self.told[row] = 0
        else:
            row = len(self.inode)
            self._idents.frombytes(ident)
            self.inode.append(inode)
            self.generation.append(0)
            self.mark.append(mark)
            self.told.append(0)
            for column in (self._opened, self._turn, self._stalled, self._slow):
                if column is not None:
                    column.append(NONE)
            for count in (self._received, self._acked, self._slow_received):
                if count is not None:
                    count.append(0)
        self.remember(row, memory)
        self._index.add(cookie_of(ident), row)
        return row

    def remove(self, row: int) -> None:
        """Forget the connection; references to the row by its generation so far mean nothing any more. O(1)."""
        self._index.remove(self.cookie(row))
        self.mark[row] = _UNUSED
        self.renew(row)
        self._free.append(row)

    def renew(self, row: int) -> int:
        """Give the row its next generation: references by an earlier one mean nothing any more. O(1)."""
        self.generation[row] = generation = (self.generation[row] + 1) % GENERATIONS
        return generation

    def memory(self, row: int) -> Memory:
        """What the previous check left."""
        return Memory(
            float("inf") if self._opened is None else self._opened[row],
            self._received[row],
            self._turn[row],
            self._acked[row],
            NONE if self._stalled is None else self._stalled[row],
            0 if self._slow_received is None else self._slow_received[row],
            NONE if self._slow is None else self._slow[row],
        )

    def remember(self, row: int, memory: Memory) -> None:
        """Keep what this look left."""
        opened, received, turn, acked, stalled, slow_received, slow = memory
        if self._opened is not None:
            self._opened[row] = opened
        self._received[row] = max(0, received)
        self._turn[row] = turn
        self._acked[row] = max(0, acked)
        if self._stalled is not None:
            self._stalled[row] = stalled
        if self._slow is not None and self._slow_received is not None:
            self._slow[row] = slow
            self._slow_received[row] = slow_received
