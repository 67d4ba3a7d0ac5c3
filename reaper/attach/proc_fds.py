"""Which process holds a socket, and as which descriptor: read from /proc, remembered in eight bytes per socket.

One rule: *what is remembered is a hint*. Descriptors are closed and reused behind our back; who takes one compares the
socket's cookie, and asks again after a new scan when it differs.
"""

from __future__ import annotations

import os
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from heapq import merge

FD_BITS, PID_BITS = 20, 12
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
    """The sockets of some processes, as of the last scan. 4,096 processes and a million descriptors each at most.

    Args:
        pids: Those processes, asked for at each scan.
        clock: Seconds, monotonic.
    Attributes:
        read_at: When the last scan was; -inf: never.
    """

    def __init__(self, pids: Callable[[], Sequence[int]], clock: Callable[[], float] = time.monotonic) -> None:
        self._asked = pids
        self._clock = clock
        self._pids: Sequence[int] = ()
        self._packed: array[int] = array("Q")
        self.scans: int = 0
        self.read_at: float = float("-inf")

    def scan(self) -> None:
        """Read all their descriptors anew. Those that may not be read are left out.

        Cost: about 3 us per descriptor.
        """
        self.scans += 1
        self.read_at = self._clock()
        self._pids = self._asked()[: 1 << PID_BITS]
        each: list[array[int]] = []
        for number, pid in enumerate(self._pids):
            with suppress(PermissionError):
                found = [
                    (inode << PID_BITS | number) << FD_BITS | fd
                    for inode, fd in socket_inodes(pid)
                    if fd < 1 << FD_BITS
                ]
                found.sort()
                each.append(array("Q", found))
        # Merged, not sorted as a whole: a list of all would take forty bytes per socket, and the process keeps them.
        self._packed = array("Q", merge(*each))

    def find(self, inode: int) -> tuple[int, int] | None:
        """(pid, descriptor) of the first holder of the socket; None: none of them held it."""
        at = bisect_left(self._packed, inode << (PID_BITS + FD_BITS))
        if at == len(self._packed) or self._packed[at] >> (PID_BITS + FD_BITS) != inode:
            return None
        packed = self._packed[at]
        return self._pids[packed >> FD_BITS & ((1 << PID_BITS) - 1)], packed & ((1 << FD_BITS) - 1)

    def __contains__(self, inode: int) -> bool:
        return self.find(inode) is not None
