"""Which process holds a socket, and as which descriptor: read from /proc, and remembered.

One rule: *what is remembered is a hint*. Descriptors are closed and reused behind our back; who takes one compares the
socket's cookie, and asks again after a new scan when it differs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

_PREFIX = "socket:["


def socket_inodes(pid: int) -> Iterator[tuple[int, int]]:
    """(inode, descriptor) of every socket that *pid* holds. Ends early when the process does.

    Raises:
        PermissionError: its descriptors may not be read.
    Cost: about 2 us per descriptor.
    """
    folder = f"/proc/{pid}/fd"
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    link = os.readlink(entry.path)
                except (FileNotFoundError, ProcessLookupError):
                    continue
                if link.startswith(_PREFIX):
                    yield int(link[len(_PREFIX) : -1]), int(entry.name)
    except (FileNotFoundError, ProcessLookupError):
        return


class Owners:
    """The sockets of some processes, as of the last scan. About 200 bytes each.

    Args:
        pids: Those processes, asked for at each scan.
        clock: Seconds, monotonic.
    Attributes:
        scans: How many there were.
        read_at: When the last one was; -inf: never.
    """

    def __init__(self, pids: Callable[[], Sequence[int]], clock: Callable[[], float] = time.monotonic) -> None:
        self._pids = pids
        self._clock = clock
        self._places: dict[int, tuple[int, int]] = {}
        self.scans: int = 0
        self.read_at: float = float("-inf")

    def scan(self) -> None:
        """Read all their descriptors anew. Those that may not be read are left out.

        Cost: about 3 us per descriptor.
        """
        self.scans += 1
        self.read_at = self._clock()
        self._places = {}
        for pid in self._pids():
            with suppress(PermissionError):
                for inode, fd in socket_inodes(pid):
                    self._places.setdefault(inode, (pid, fd))

    def find(self, inode: int) -> tuple[int, int] | None:
        """(pid, descriptor) of the first holder of the socket; None: none of them held it."""
        return self._places.get(inode)

    def __contains__(self, inode: int) -> bool:
        return inode in self._places
