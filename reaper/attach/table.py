"""What is remembered of each watched connection, in columns: about 180 bytes each, the index and its slot included.

One rule: *a row is a number, and a number may be reused*. Whatever refers to a row from outside (a slot of the wheel)
carries the row's generation too, and a reference whose generation has passed refers to nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from .judge import NONE, Memory
from .netlink import cookie_of

GENERATIONS = 1 << 8
FAR_BYTES = 26
"""What differs from one connection of a server to the next: the peer's port and address, and the cookie."""


class Table:
    """Rows of connections, found by the socket's cookie.

    Args:
        write, rate, age: Whether the columns for stalled writes, slow senders and the age are needed.
    """

    def __init__(self, write: bool = False, rate: bool = False, age: bool = False) -> None:
        self._rows: dict[int, int] = {}
        self._free: array[int] = array("I")
        self._far = bytearray()
        self._near: array[int] = array("I")
        self._nears: list[bytes] = []
        self._near_ids: dict[bytes, int] = {}
        self.inode: array[int] = array("I")
        self.generation = bytearray()
        self.mark = bytearray()
        """The serial number of the last dump that showed it."""
        self.told = bytearray()
        """Flags of the watch."""
        self._opened: array[float] | None = array("d") if age else None
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
        near, far = self._nears[self._near[row]], self._far[row * FAR_BYTES : (row + 1) * FAR_BYTES]
        return b"".join((near[:2], far[:2], near[2:18], far[2:18], near[18:], far[18:]))

    def add(self, ident: bytes, inode: int, memory: Memory, mark: int) -> int:
        """Watch one more connection; its row. O(1) amortised."""
        near = ident[:2] + ident[4:20] + ident[36:40]
        far = ident[2:4] + ident[20:36] + ident[40:]
        number = self._near_ids.setdefault(near, len(self._nears))
        if number == len(self._nears):
            self._nears.append(near)
        if self._free:
            row = self._free.pop()
            self._far[row * FAR_BYTES : (row + 1) * FAR_BYTES] = far
            self._near[row] = number
            self.inode[row] = inode
            self.mark[row] = mark
            self.told[row] = 0
        else:
            row = len(self.inode)
            self._far += far
            self._near.append(number)
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
        if self._opened is not None:
            self._opened[row] = memory.opened
        self._received[row] = max(memory.received, 0)
        self._turn[row] = memory.turn
        self._acked[row] = max(memory.acked, 0)
        if self._stalled is not None:
            self._stalled[row] = memory.stalled
        if self._slow is not None and self._slow_received is not None:
            self._slow[row] = memory.slow
            self._slow_received[row] = memory.slow_received
