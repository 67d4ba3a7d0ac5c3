"""Says whose connections are meant, and which process holds them.

They are those of a process and its children, or those of a listening address.

One rule: *never more than was asked for*. Only connections that came in through a
listening TCP socket are meant: never a listening socket itself, never an outgoing
connection, never a UNIX socket, never our own process.

The answer changes while we watch: servers restart, workers come and go, listening
sockets and connections are handed over. So `listeners` is asked again at each
discovery, and what processes hold is read again now and then, whether or not anything
looks new: every `READ_EVERY` seconds, or as often as `READ_SHARE` of a core allows.
Even so it is a hint, because descriptors are closed and reused behind our back. Whoever
takes one compares the socket's cookie, and has the descriptors read again when it
differs.

Reading all descriptors of a process takes time, and other users may have as many as
they like. So only the processes that are known to serve the target, and those that come
from them, are read by the thread that closes; `holders` looks for others beside it.
Strangers may come from them, too: where systemd holds the listening socket, everybody
does. So who is known to serve is read first, then who has few, and a loop that closes
reads no more than `AT_ONCE` before it does something else (`in_slices`).
"""

from __future__ import annotations

import ipaddress
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

import psutil

from ..config.options import host_and_port
from .holders import (
    MOST_READ,
    PAUSE,
    SLICE,
    Holders,
    descriptors,
    processes,
    size_of,
    socket_inodes,
)
from .kernel import Found, Linux, Listener, Refusal, Sighted, not_shown
from .netlink import Address, Network, addresses_of

READ_EVERY = 10.0
"""Seconds between two readings of all descriptors while nothing looks new, at least."""
READ_SHARE = 0.01
"""The most of a core that these readings take: of 100,000 descriptors, about one a
minute.
"""
AT_ONCE = 5 * SLICE
"""The descriptors that a reading in slices takes at once, some 15 ms: of most servers
all.
"""
AT_START = 50 * SLICE
"""Those that the first search for holders takes at once there."""
STAYS = 1.0
"""Seconds for which a process may not be looked into before that is said: one that
ends, or becomes another program, may not be for a moment.
"""


class Target(ABC):
    """A choice of connections, and a map of the sockets of the processes that hold
    them.

    Attributes:
        kernel: Where the connections are asked for.
        only: If not empty, only clients of these networks are meant.
        never: Clients of these networks are never meant.
        meant: Whether a listening socket is meant; at first, each is.
        served: Whether anything listened at the last dump.
        read_at: When the descriptors were read last; -inf: never.
        tells_gaps: Whether it is news for people when nothing listens for a while.
        in_slices: Whether a `scan` that takes longer returns early; whoever sets it
            calls `read_on` again and again.
    Cost: about 200 bytes per socket of these processes, once their descriptors were
    read.
    """

    restricted: bool = True
    """Whether a connection counts only if one of `pids` holds it."""

    def __init__(self, kernel: Linux, clock: Callable[[], float] = time.monotonic) -> None:
        self.kernel: Linux = kernel
        self.only: Sequence[Network] = ()
        self.never: Sequence[Network] = ()
        self.meant: Callable[[Listener], bool] = lambda listener: True
        self.served: bool = True
        self.tells_gaps: bool = True
        self.in_slices: bool = False
        self.read_at: float = float("-inf")
        self._clock = clock
        # Time that this thread works: what it waits for a processor costs nobody
        # anything.
        self._worked: Callable[[], float] = time.thread_time
        self._read_took = 0.0
        self._near: dict[int, tuple[int, int]] = {}
        """What the last `scan` found by itself."""
        self._places: dict[int, tuple[int, int]] = {}
        """What the last reading of the rest found; `_fresh`: the one under way."""
        self._fresh: dict[int, tuple[int, int]] = {}
        self._reading: Iterator[float] | None = None
        self._read_first: frozenset[int] = frozenset()
        self._known: frozenset[int] = frozenset()
        self._may_scan = True
        self._refused: dict[int, float] = {}
        """Since when which process may not be looked into."""
        self._named: set[int] = set()

    @abstractmethod
    def listeners(self) -> list[Listener]:
        """The listening sockets whose connections are meant now; none while the server
        restarts.

        Raises:
            Refusal: the target is gone for good.
        """

    @abstractmethod
    def pids(self) -> list[int]:
        """The processes that may hold the connections now."""

    def dump(self, info: bool) -> Iterator[Found]:
        """The connections of all listening sockets that are meant; ask `wanted` about
        each.

        Raises:
            Refusal: the target is gone for good.
        """
        return self.kernel.dump(self._served_now(), info)

    def anybody(self) -> bool:
        """Whether somebody is connected now, or waits to be accepted.

        Raises:
            Refusal: the target is gone for good.
        Cost: that of `dump`.
        """
        somebody = False
        for found in self.dump(False):  # to its end: the kernel refuses two at once
            somebody = somebody or not found.inode or self.wanted(found)
        return somebody

    def survey(self, sighted: Sighted) -> Iterator[Found | None]:
        """As `dump`, but for the connections that *sighted* knows: see `Linux.survey`.

        Raises:
            Refusal: the target is gone for good.
        """
        return self.kernel.survey(self._served_now(), sighted)

    def _served_now(self) -> list[Listener]:
        """The listening sockets that are meant, at the beginning of a dump."""
        listeners = [one for one in self.listeners() if self.meant(one)]
        self.served, self._may_scan = bool(listeners), True
        return listeners

    def wanted(self, found: Found) -> bool:
        """Whether a connection that is not known yet is meant.

        One that the server has not accepted yet is not meant now, and may be at the
        next dump.
        """
        if not found.inode or not self._allowed(found.ident):
            return False
        if self.restricted and found.inode not in self and self._may_scan:
            self._may_scan = False  # At most once per dump, because others may share the port.
            self.scan()
        return not self.restricted or found.inode in self

    def scan(self) -> None:
        """Read all descriptors of `pids` anew, without those that may not be read.

        If `in_slices` is set, at most `AT_ONCE` of them are read now: of those that
        serve the target first, then of those with few. `read_on` reads the rest; until
        it has, what was read of them before counts. That goes on as it is, however
        often this is called.

        Cost: about 3 us per descriptor.
        """
        before = self._worked()
        self.read_at = self._clock()
        pids = self._in_order()
        self._near, read = {}, 0
        while pids and (read < AT_ONCE or not self.in_slices):
            pid = pids.pop(0)
            for inode, fd in self._held_by(pid):
                if inode:
                    self._near.setdefault(inode, (pid, fd))
                read += 1
                if read >= AT_ONCE and self.in_slices:
                    pids.insert(0, pid)
                    break
        took = self._worked() - before
        if self._reading is None:
            self._read_took = took
            self._places = self._places if pids else {}
            self._reading = self._rest(pids) if pids else None

    def read_on(self) -> float | None:
        """Read one slice more of what `scan` has left. Returns for how many seconds it
        can wait with the next; None: there is no more.
        """
        if self._reading is None:
            return None
        before = self._worked()
        pause = next(self._reading, None)
        self._read_took += self._worked() - before
        if pause is None:
            self._reading = None
        return pause

    def _rest(self, pids: list[int]) -> Iterator[float]:
        """Read the descriptors of *pids*. Each step reads at most `SLICE`, and says how
        long the next can wait.
        """
        fresh = self._fresh = {}
        read = 0
        for pid in pids:
            pause = 0.0 if pid in self._read_first else PAUSE
            for inode, fd in self._held_by(pid):
                if inode:
                    fresh.setdefault(inode, (pid, fd))
                read += 1
                if read % SLICE == 0:
                    yield pause
        self._places, self._fresh = fresh, {}

    def _held_by(self, pid: int) -> Iterator[tuple[int, int]]:
        try:
            yield from descriptors(pid)
        except PermissionError:
            self._refused.setdefault(pid, self._clock())
        else:
            self._refused.pop(pid, None)

    def unread(self) -> Iterator[str]:
        """A line for each process that may not be looked into, once: what it holds is
        not meant.
        """
        for pid, since in self._refused.items() if self.restricted else ():
            if self.read_at - since >= STAYS and pid not in self._named and not has_ended(pid):
                self._named.add(pid)
                yield (
                    f"process {pid} comes from {self}, and its descriptors may not be read: its "
                    "clients are not watched; run as its user or as root"
                )

    def _in_order(self) -> list[int]:
        """`pids`, those first that are likely to hold its connections."""
        pids = self.pids()
        self._refused = {pid: self._refused[pid] for pid in pids if pid in self._refused}
        self._read_first = frozenset(self._serving())
        owners = frozenset(self._owners())
        sizes = {pid: size_of(pid) for pid in pids}

        def unlikely(pid: int) -> tuple[bool, bool, int]:
            owner, count = sizes[pid]
            return pid not in self._read_first, owner not in owners, count

        return sorted(pids, key=unlikely)

    def _serving(self) -> Iterable[int]:
        """The processes that are known to serve it, of which the others come."""
        return ()

    def _owners(self) -> Iterable[int]:
        """The users whose processes are likely to."""
        return ()

    @property
    def knows_more(self) -> bool:
        """Whether more processes are known to serve it than at the last `scan`."""
        return not self._read_first.issuperset(self._serving())

    @property
    def searching(self) -> bool:
        """Whether more of its sockets may soon be found."""
        return self._reading is not None

    def find(self, inode: int) -> tuple[int, int] | None:
        """(pid, descriptor) of the first holder of the socket, by the last scan; None
        if none is known.
        """
        for places in (self._near, self._fresh, self._places):
            if inode in places:
                return places[inode]
        return None

    def __contains__(self, inode: int) -> bool:
        return self.find(inode) is not None

    def _allowed(self, ident: bytes) -> bool:
        if not self.only and not self.never:
            return True
        remote = ipaddress.ip_address(addresses_of(ident)[1].host)
        if self.only and not any(remote in network for network in self.only):
            return False
        return not any(remote in network for network in self.never)

    def _news(self, listeners: list[Listener], read_at: float, took: float = 0.0) -> bool:
        """Whether it is time to read again what was read at *read_at*, in *took*
        seconds of work.

        It is if another socket listens than at the last call, or after `READ_EVERY`
        seconds; after more, if a reading would take more than `READ_SHARE` of a core.
        """
        before, self._known = self._known, frozenset(listener.inode for listener in listeners)
        pause = max(READ_EVERY, took / READ_SHARE)
        return bool(self._known - before) or self._clock() - read_at >= pause


class ByPid(Target):
    """The connections of a process and its descendants, by the listening sockets that
    they hold.

    Args:
        pid: The process.
        kernel: The kernel of its network namespace.
        waits: Whether the process may listen later, if it does not listen now.
    Raises:
        Refusal: there is no such process, its descriptors may not be read, or it
            listens nowhere.
    """

    def __init__(self, pid: int, kernel: Linux, waits: bool = False) -> None:
        super().__init__(kernel)
        self.pid: int = pid
        if pid == os.getpid():
            raise Refusal(f"--pid {pid} is this very process")
        try:
            self._process = psutil.Process(pid)
            os.listdir(f"/proc/{pid}/fd")
        except (psutil.NoSuchProcess, ValueError, FileNotFoundError):
            raise not_shown(pid) from None
        except PermissionError:
            raise Refusal(
                f"--pid {pid}: its descriptors may not be read: run as its user or with "
                "CAP_SYS_PTRACE; --listen HOST:PORT needs no right to watch"
            ) from None
        if not self.listeners() and not waits:
            raise Refusal(f"--pid {pid}: neither it nor a child of it listens on a TCP port")

    def listeners(self) -> list[Listener]:
        if not self._process.is_running():  # This compares the time at which it was started, too.
            raise Refusal(f"process {self.pid} has ended")
        found = self.kernel.listeners()
        if self._news(found, self.read_at, self._read_took):
            self.scan()
        return [listener for listener in found if listener.inode in self]

    def pids(self) -> list[int]:
        return descendants([self.pid])

    def __str__(self) -> str:
        return f"process {self.pid}"


class ByListen(Target):
    """The connections to a listening address, whichever process serves it, also after a
    restart.

    Raises:
        Refusal: nothing listens there.
    """

    restricted: bool = False

    def __init__(self, address: Address, kernel: Linux) -> None:
        super().__init__(kernel)
        self.address: Address = address
        self._host = ipaddress.ip_address(address.host.partition("%")[0])
        self._holders = Holders()
        self._made_by: set[int] = set()
        self._searched_at = float("-inf")
        if not self.listeners():
            raise Refusal(f"--listen {address}: nothing listens there")
        mine = {inode for inode, _ in socket_inodes(os.getpid())}
        if all(listener.inode in mine for listener in self.listeners()):
            raise Refusal(f"--listen {address}: that is this very process")

    def listeners(self) -> list[Listener]:
        found = [listener for listener in self.kernel.listeners() if self._means(listener)]
        if self._host.is_unspecified:
            return found
        # If the server listens everywhere, only connections to the address that was
        # asked for are meant.
        return [listener._replace(address=self.address) for listener in found]

    def pids(self) -> list[int]:
        """The processes that may hold its connections now, as far as they are known.

        If the server has restarted, and after `READ_EVERY` seconds, others are looked
        for: see `searching`, and ask again.

        Cost: the first call reads the descriptors of processes, those of the sockets'
        owner first, until it has found a holder of each listening socket.
        """
        listeners, before = self.listeners(), self._known
        news = self._news(listeners, self._searched_at, self._holders.took)
        self._made_by = {listener.owner for listener in listeners}
        if news and (self._known - before or not self._holders.searching):
            self._searched_at = self._clock()
            at_once = AT_START if self.in_slices else MOST_READ
            self._holders.search(self._known, self._made_by, at_once)
        return descendants(self._holders.known())

    def _serving(self) -> Iterable[int]:
        return self._holders.known()

    def _owners(self) -> Iterable[int]:
        return self._made_by

    @property
    def searching(self) -> bool:
        """Whether more of its sockets, or who holds them, may soon be found."""
        return super().searching or self._holders.searching

    def _means(self, listener: Listener) -> bool:
        asked, found = self._host, listener.host
        if self.address.port != listener.address.port:
            return False
        if asked == found or asked.is_unspecified:  # Any address means each of them.
            return True
        # A wildcard serves each address of the machine; one of IPv6 serves those of
        # IPv4, too.
        return found.is_unspecified and (listener.family == socket.AF_INET6 or asked.version == 4)

    def __str__(self) -> str:
        return str(self.address)


def parse_address(text: str) -> Address:
    """The address in *text*: `HOST:PORT` or `[::1]:PORT`.

    A name is resolved; an empty host means any.

    Raises:
        Refusal: *text* is none of these, or the name cannot be resolved.
    """
    try:
        host, port = host_and_port(text, least=1)
        if host in ("", "*"):
            return Address("0.0.0.0", port)
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except ValueError as error:
        raise Refusal(str(error)) from None
    except OSError as error:
        raise Refusal(f"{text!r}: {host} is no address: {error.strerror}") from None
    found = str(resolved[0][4][0])
    mapped = getattr(ipaddress.ip_address(found.partition("%")[0]), "ipv4_mapped", None)
    return Address(str(mapped or found), port)


def descendants(pids: Iterable[int]) -> list[int]:
    """*pids* and all processes that come from them, but never this one nor any that has
    ended.

    What cannot be read of others, as where /proc is mounted with `hidepid`, hides
    nobody else. psutil gives up at the first process that it may not read.
    """
    parents = _parents()
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    waiting = [pid for pid in pids if pid in parents]
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, [])
    return sorted(found - {os.getpid()})


def has_ended(pid: int) -> bool:
    """Whether process *pid* has ended, also if nobody has waited for it yet."""
    fields = _stat(pid)
    return not fields or fields[0] in b"ZX"


def _parents() -> dict[int, int]:
    """The parent of each process that can be read."""
    found = {}
    for pid in processes():
        if fields := _stat(pid):
            found[pid] = int(fields[1])
    return found


def _stat(pid: int) -> list[bytes]:
    """The state of process *pid*, its parent and so on; empty: that cannot be read."""
    with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        # The name of the program may hold anything, a closing bracket too.
        return file.read().rpartition(b")")[2].split()
    return []
