"""Finds the processes that hold a listening socket, among all processes of the machine.

One rule: *strangers delay nobody*. The kernel does not say who holds a socket; one has
to read the descriptors of every process, those of other users included, who may have as
many as they like. So a search is worked off in slices of `SLICE` descriptors, with
pauses between them, in a thread of its own, and gives up after `MOST_READ`. The thread
that closes connections never waits for it: it reads the processes that are known, and
asks `searching` whether more may become known soon.

A server listens before it has clients, so its listening socket has one of the lowest
descriptors. First, a search looks at those of every process, which costs as much of
someone with 20,000 as of someone with 64: of the user that made the socket first, which
the kernel says, and of them the youngest, because a server that has started anew is
one. Only then it reads the rest, those with the fewest first. A holder is known as soon
as it is found.

Only the very first search is made at once, since there is nothing yet that it could
delay; it stops as soon as every socket has a holder.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, suppress

SLICE = 1000
"""The descriptors that a search reads without a pause, about 3 ms."""
LOWEST = 64
"""The descriptors of a process, from 0 on, at which a search looks first."""
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


def processes() -> list[int]:
    """The processes of the machine that /proc shows; none where it is not mounted."""
    with suppress(OSError):
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    return []


def lowest(pid: int) -> Iterator[tuple[int, int]]:
    """As `descriptors`, of those below `LOWEST`; inode 0 also where nothing is open.

    Cost: 1 to 3 us each, however many the process has.
    """
    with suppress(FileNotFoundError, ProcessLookupError), ExitStack() as stack:
        folder = os.open(f"/proc/{pid}/fd", os.O_RDONLY | os.O_DIRECTORY)
        stack.callback(os.close, folder)
        for number in range(LOWEST):
            try:
                link = os.readlink(str(number), dir_fd=folder)
            except (FileNotFoundError, ProcessLookupError):
                link = ""
            yield int(link[8:-1]) if link.startswith("socket:[") else 0, number


def socket_inodes(pid: int) -> Iterator[tuple[int, int]]:
    """(inode, descriptor) of every socket that *pid* holds; otherwise as
    `descriptors`.
    """
    return (found for found in descriptors(pid) if found[0])


def size_of(pid: int) -> tuple[int, int]:
    """The user id of *pid*, and how many descriptors it has open; -1: it has ended.

    Cost: about 5 us. Linux counts descriptors since 6.2; before, they are 0 here.
    """
    try:
        owner = os.stat(f"/proc/{pid}").st_uid
        return owner, os.stat(f"/proc/{pid}/fd").st_size
    except OSError:
        return -1, 0


class Holders:
    """The processes that hold sockets, as of the latest search.

    Args:
        pids: Lists the processes of the machine.
        read: Lists (inode, descriptor) of all that a process has open, see
            `descriptors`.
        lowest: Lists those of them that are looked at first, see `lowest`.
        pause: Sleeps so many seconds; called between two slices.
        size: The user of a process, and how many descriptors it has, see `size_of`.
    Attributes:
        count: How many descriptors all searches have read so far.
        took: Seconds of work that the latest search that has ended took.
    """

    def __init__(
        self,
        pids: Callable[[], Iterable[int]] = processes,
        read: Callable[[int], Iterator[tuple[int, int]]] = descriptors,
        lowest: Callable[[int], Iterator[tuple[int, int]]] = lowest,
        pause: Callable[[float], object] = time.sleep,
        size: Callable[[int], tuple[int, int]] = size_of,
    ) -> None:
        self._pids = pids
        self._read = read
        self._lowest = lowest
        self._pause = pause
        self._size = size
        self._found: tuple[int, ...] | None = None
        self._lock = threading.Lock()
        self._asked: tuple[frozenset[int], Collection[int]] | None = None
        """What the thread searches for; None: there is no thread."""
        self.count: int = 0
        self.took: float = 0.0

    @property
    def searching(self) -> bool:
        """Whether a search is under way, so that `known` may soon be more."""
        return self._asked is not None

    def known(self) -> tuple[int, ...]:
        """The processes that hold one of the sockets, as far as the latest search has
        come; those that an earlier one has found count until it is over.
        """
        return self._found or ()

    def search(
        self, inodes: frozenset[int], owners: Collection[int] = (), at_once: int = MOST_READ
    ) -> None:
        """Search all processes for holders of *inodes*: the first time at once, later
        in a thread.

        A search that is under way ends if it is for other sockets: what it still had to
        read tells nothing of these.

        Args:
            owners: The users that made these sockets; their processes are read first.
            at_once: After so many descriptors the first search, too, goes on in a
                thread.
        """
        if self._found is None:
            until, began = self.count + at_once, time.thread_time()
            for _ in self.steps(inodes, owners, until_each_is_found=True):
                if self.count >= until:
                    break
            else:
                self.took = time.thread_time() - began
                return
        with self._lock:
            before, self._asked = self._asked, (inodes, owners)
            if before is not None and before[0] == inodes:
                self._asked = before
        if before is None:
            threading.Thread(target=self._run, name="reaper.attach.holders", daemon=True).start()

    def steps(
        self,
        inodes: frozenset[int],
        owners: Collection[int] = (),
        until_each_is_found: bool = False,
    ) -> Iterator[None]:
        """One search; each step reads at most `SLICE` descriptors. A process that holds
        one is known at once, and with the last step nobody else is.

        The processes that are known come first, so that whatever ends the search early,
        they stay.
        """
        found: dict[int, None] = {}
        missing = set(inodes)
        read = 0
        known = self.known()
        if self._found is None:
            self._found = ()
        for look, pid in self._in_order(known, owners):
            if pid in found:
                continue
            with suppress(PermissionError):
                for inode, _ in look(pid):
                    read += 1
                    self.count += 1
                    if inode in inodes:
                        missing.discard(inode)
                        found[pid] = None
                        self._found = tuple(dict.fromkeys((*found, *known)))
                        break
                    if read % SLICE == 0:
                        yield
                    if read >= MOST_READ:
                        break
            if read >= MOST_READ or (until_each_is_found and not missing):
                break
        self._found = tuple(found)

    def _in_order(
        self, known: Collection[int], owners: Collection[int]
    ) -> Iterator[tuple[Callable[[int], Iterator[tuple[int, int]]], int]]:
        """How to look at which process: the lowest descriptors of each, then all of
        each.
        """
        sizes = {pid: self._size(pid) for pid in self._pids() if pid != os.getpid()}
        near = sorted(sizes, key=lambda pid: (sizes[pid][0] not in owners, -pid))
        far = sorted(sizes, key=lambda pid: (sizes[pid][0] not in owners, sizes[pid][1]))
        for look, pids in ((self._lowest, near), (self._read, far)):
            yield from ((look, pid) for pid in dict.fromkeys((*known, *pids)))

    def _run(self) -> None:
        while (asked := self._asked) is not None:
            began = time.thread_time()
            try:
                for _ in self.steps(*asked):
                    self._pause(PAUSE)
                    if self._asked is not asked:
                        break
                else:
                    self.took = time.thread_time() - began
            finally:
                with self._lock:
                    if self._asked is asked:
                        self._asked = None
