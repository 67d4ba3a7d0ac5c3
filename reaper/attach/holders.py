"""Finds the processes that hold a listening socket, among all processes of the machine.

One rule: *strangers delay nobody*. The kernel does not say who holds a socket; one has
to read the descriptors of every process, those of other users included, who may have as
many as they like. So a search is worked off in slices of `SLICE` descriptors, with
pauses between them, in a thread of its own, and gives up after `MOST_READ`. The thread
that closes connections never waits for it: it reads the processes that are known, and
asks `searching` whether more may become known soon.

Only the very first search is made at once, since there is nothing yet that it could
delay; it stops as soon as every socket has a holder.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress

import psutil

SLICE = 1000
"""The descriptors that a search reads without a pause, about 3 ms."""
PAUSE = 0.01
"""Seconds between two slices: a search takes at most a quarter of a core."""
MOST_READ = 2_000_000
"""The descriptors after which a search gives up; what it has found by then counts."""


def descriptors(pid: int) -> Iterator[tuple[int, int]]:
    """(inode, descriptor) of all that *pid* has open; inode 0: it is no socket.

    Ends early when the process does.

    Raises:
        PermissionError: its descriptors may not be read.
    Cost: 2 to 5 us per descriptor, most of it the kernel's.
    """
    with suppress(FileNotFoundError, ProcessLookupError), ExitStack() as stack:
        # By names within the directory, the kernel does not walk its whole path for
        # each.
        folder = os.open(f"/proc/{pid}/fd", os.O_RDONLY | os.O_DIRECTORY)
        stack.callback(os.close, folder)
        for entry in stack.enter_context(os.scandir(folder)):
            try:
                link = os.readlink(entry.name, dir_fd=folder)
            except (FileNotFoundError, ProcessLookupError):
                continue
            yield int(link[8:-1]) if link.startswith("socket:[") else 0, int(entry.name)


def socket_inodes(pid: int) -> Iterator[tuple[int, int]]:
    """(inode, descriptor) of every socket that *pid* holds; otherwise as
    `descriptors`.
    """
    return (found for found in descriptors(pid) if found[0])


class Holders:
    """The processes that hold sockets, as of the latest search.

    Args:
        pids: Lists the processes of the machine.
        read: Lists (inode, descriptor) of all that a process has open, see
            `descriptors`.
        pause: Sleeps so many seconds; called between two slices.
    Attributes:
        count: How many descriptors all searches have read so far.
    """

    def __init__(
        self,
        pids: Callable[[], Iterable[int]] = psutil.pids,
        read: Callable[[int], Iterator[tuple[int, int]]] = descriptors,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._pids = pids
        self._read = read
        self._pause = pause
        self._found: tuple[int, ...] | None = None
        self._thread: threading.Thread | None = None
        self.count: int = 0

    @property
    def searching(self) -> bool:
        """Whether a search is under way, so that `known` may soon be more."""
        return self._thread is not None and self._thread.is_alive()

    def known(self) -> tuple[int, ...]:
        """The processes that held one of the sockets at the latest search, in its
        order.
        """
        return self._found or ()

    def search(self, inodes: frozenset[int]) -> None:
        """Search all processes for holders of *inodes*: the first time at once, later
        in a thread.

        Does nothing while a search is under way.
        """
        if self._found is None:
            for _ in self.steps(inodes, until_each_is_found=True):
                pass
        elif not self.searching:
            self._thread = threading.Thread(
                target=self._run, args=(inodes,), name="reaper.attach.holders", daemon=True
            )
            self._thread.start()

    def steps(self, inodes: frozenset[int], until_each_is_found: bool = False) -> Iterator[None]:
        """One search; each step reads at most `SLICE` descriptors, and the last sets
        what is known.

        The processes that are known come first, so that whatever ends the search early,
        they stay.
        """
        found: list[int] = []
        missing = set(inodes)
        read = 0
        known = self.known()
        for pid in dict.fromkeys((*known, *self._pids())):
            if pid == os.getpid():
                continue
            holds = False
            with suppress(PermissionError):
                for inode, _ in self._read(pid):
                    read += 1
                    self.count += 1
                    if inode in inodes:
                        missing.discard(inode)
                        holds = True
                        break
                    if read % SLICE == 0:
                        yield
                    if read >= MOST_READ:
                        break
            if holds:
                found.append(pid)
            if read >= MOST_READ or (until_each_is_found and not missing):
                break
        self._found = tuple(found)

    def _run(self, inodes: frozenset[int]) -> None:
        for _ in self.steps(inodes):
            self._pause(PAUSE)
