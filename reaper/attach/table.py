"""What is remembered of each watched connection, in columns: about 130 bytes each, however many there are.

One rule: *a row is a number, and a number may be reused*. Whatever refers to a row from outside (a slot of the wheel)
carries the row's generation too, and a reference whose generation has passed refers to nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from .judge import NONE, Memory
from .netlink import IDENT_BYTES, cookie_of

GENERATIONS = 1 << 8


class Table:
    """Rows of connections, found by the socket's cookie.

    Args:
        write, rate: Whether the columns for stalled writes and slow senders are needed.
    """

    def __init__(self, write: bool = False, rate: bool = False) -> None:
        self._rows: dict[int, int] = {}
        self._free: array[int] = array("I")
        self._idents = bytearray()
        self.inode: array[int] = array("I")
        self.generation = bytearray()
        self.mark = bytearray()
        """The serial number of the last dump that showed it."""
        self.told = bytearray()
        """Flags of the watch."""
        self._opened: array[float] = array("d")
        self._received: array[int] = array("Q")
        self._acked: array[int] = array("Q")
        self._turn: array[float] = array("d")
        self._stalled: array[float] | None = array("d") if write else None
        self._slow: array[float] | None = array("d") if rate else None
        self._slow_received: array[int] | None = array("Q") if rate else None

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, cookie: int) -> int | None:
        """The row of the socket with *cookie*; None: not watched. O(1)."""
        return self._rows.get(cookie)

    def rows(self) -> Iterator[int]:
        """Every row in use. The table must not change meanwhile."""
        return iter(self._rows.values())

    def ident(self, row: int) -> bytes:
        """The kernel's name of the connection."""
        return bytes(self._idents[row * IDENT_BYTES : (row + 1) * IDENT_BYTES])

    def add(self, ident: bytes, inode: int, memory: Memory, mark: int) -> int:
        """Watch one more connection; its row. O(1) amortised."""
        if self._free:
            row = self._free.pop()
            self._idents[row * IDENT_BYTES : (row + 1) * IDENT_BYTES] = ident
            self.inode[row] = inode
            self.mark[row] = mark
            self.told[row] = 0
        else:
            row = len(self.inode)
            self._idents += ident
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
        self._rows[cookie_of(ident)] = row
        return row

    def remove(self, row: int) -> None:
        """Forget the connection; references to the row by its generation so far mean nothing any more. O(1)."""
        del self._rows[cookie_of(self.ident(row))]
        self.renew(row)
        self._free.append(row)

    def renew(self, row: int) -> int:
        """Give the row its next generation: references by an earlier one mean nothing any more. O(1)."""
        self.generation[row] = generation = (self.generation[row] + 1) % GENERATIONS
        return generation

    def memory(self, row: int) -> Memory:
        """What the last look left."""
        return Memory(
            self._opened[row],
            self._received[row],
            self._turn[row],
            self._acked[row],
            NONE if self._stalled is None else self._stalled[row],
            0 if self._slow_received is None else self._slow_received[row],
            NONE if self._slow is None else self._slow[row],
        )

    def remember(self, row: int, memory: Memory) -> None:
        """Keep what this look left."""
        self._opened[row] = memory.opened
        self._received[row] = max(memory.received, 0)
        self._turn[row] = memory.turn
        self._acked[row] = max(memory.acked, 0)
        if self._stalled is not None:
            self._stalled[row] = memory.stalled
        if self._slow is not None and self._slow_received is not None:
            self._slow[row] = memory.slow
            self._slow_received[row] = memory.slow_received
