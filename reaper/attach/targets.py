"""Whose connections: those of a process and its children, or of a listening address.

One rule: *never more than was asked for*. Only connections that came in through a listening TCP socket; never a
listening socket itself, never an outgoing connection, never a UNIX socket, never our own process.

The answer changes while we watch: servers restart, workers come and go, listening sockets and connections are handed
over. So `listeners` is asked again at each discovery, and what processes hold is read again every few seconds, whether
or not anything looks new.
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

from .kernel import Found, Linux, Listener, Refusal
from .netlink import Address, addresses_of
from .proc_fds import Owners, socket_inodes

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

READ_EVERY = 10.0
"""Seconds: what was handed over is noticed after so long at the latest."""


class Target(ABC):
    """Whose connections."""

    restricted: bool = True
    """Whether a connection counts only if `owners` has it."""

    def __init__(self, kernel: Linux, clock: Callable[[], float] = time.monotonic) -> None:
        self.kernel: Linux = kernel
        self.owners: Owners = Owners(self.pids, clock)
        self._clock = clock
        self._known: frozenset[int] = frozenset()

    @abstractmethod
    def listeners(self) -> list[Listener]:
        """The listening sockets whose connections are meant, now; none while the server restarts.

        Raises:
            Refusal: the target is gone for good.
        """

    @abstractmethod
    def pids(self) -> list[int]:
        """The processes that may hold them, now."""

    def _news(self, listeners: list[Listener], read_at: float) -> bool:
        """Whether it is time to read again what was read at *read_at*: another socket listens, or it is long ago."""
        before, self._known = self._known, frozenset(listener.inode for listener in listeners)
        return bool(self._known - before) or self._clock() - read_at >= READ_EVERY


class ByPid(Target):
    """A process and its descendants, by the listening sockets that they hold.

    Args:
        waits: Whether it may be that nothing listens yet.
    Raises:
        Refusal: there is no such process, its descriptors may not be read, or it listens nowhere.
    """

    def __init__(self, pid: int, kernel: Linux, waits: bool = False) -> None:
        super().__init__(kernel)
        self.pid: int = pid
        if pid == os.getpid():
            raise Refusal(f"--pid {pid} is this very process")
        try:
            self._process = psutil.Process(pid)
        except (psutil.NoSuchProcess, ValueError):
            raise Refusal(f"--pid {pid}: there is no such process") from None
        _readable(pid)
        if not self.listeners() and not waits:
            raise Refusal(f"--pid {pid}: neither it nor a child of it listens on a TCP port")

    def listeners(self) -> list[Listener]:
        if not self._process.is_running():  # compares the time it was started, too
            raise Refusal(f"process {self.pid} has ended")
        found = self.kernel.listeners()
        if self._news(found, self.owners.read_at):
            self.owners.scan()
        return [listener for listener in found if listener.inode in self.owners]

    def pids(self) -> list[int]:
        return descendants([self.pid])

    def __str__(self) -> str:
        return f"process {self.pid}"


class ByListen(Target):
    """A listening address, whichever process serves it: after a restart, the new one.

    Raises:
        Refusal: nothing listens there.
    """

    restricted: bool = False

    def __init__(self, address: Address, kernel: Linux) -> None:
        super().__init__(kernel)
        self.address: Address = address
        self._host = ipaddress.ip_address(address.host.partition("%")[0])
        self._holders: list[int] = []
        self._read_at = float("-inf")
        if not self.listeners():
            raise Refusal(f"--listen {address}: nothing listens there")
        mine = {inode for inode, _ in socket_inodes(os.getpid())}
        if all(listener.inode in mine for listener in self.listeners()):
            raise Refusal(f"--listen {address}: that is this very process")

    def listeners(self) -> list[Listener]:
        found = [listener for listener in self.kernel.listeners() if self._means(listener)]
        if self._host.is_unspecified:
            return found
        # Of a server that listens everywhere, only the connections to the address that was asked for.
        return [listener._replace(address=self.address) for listener in found]

    def pids(self) -> list[int]:
        """The processes that may hold its connections, now.

        Cost: if the server has restarted, and after `READ_EVERY` seconds, it reads every process's descriptors.
        """
        listeners = self.listeners()
        if self._news(listeners, self._read_at):
            self._read_at = self._clock()
            self._holders = [pid for pid in psutil.pids() if pid != os.getpid() and _holds(pid, self._known)]
        return descendants(self._holders)

    def _means(self, listener: Listener) -> bool:
        asked, found = self._host, listener.host
        if self.address.port != listener.address.port:
            return False
        if asked == found or asked.is_unspecified:  # who asks for any asks for each
            return True
        # A wildcard serves each address of the machine; one of IPv6 those of IPv4, too.
        return found.is_unspecified and (listener.family == socket.AF_INET6 or asked.version == 4)

    def __str__(self) -> str:
        return str(self.address)


class Selection:
    """Which connections of *target* are meant.

    Args:
        only, never: Networks of clients that are meant alone, and that are never meant.
        meant: Whether a listening socket is; None: each of the target's.
        clock: Seconds, monotonic.
    Attributes:
        served: Whether anything listened at the last dump.
    """

    def __init__(
        self,
        target: Target,
        only: Sequence[Network] = (),
        never: Sequence[Network] = (),
        meant: Callable[[Listener], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.served: bool = True
        self._target = target
        self._only, self._never, self._meant = only, never, meant
        self._clock = clock
        self._strangers: dict[bytes, int] = {}  # how often the descriptors had been read when it was first seen
        self._strangers_at = float("-inf")
        self._scans_left = 0

    def dump(self, info: bool) -> Iterator[Found]:
        """The connections of all listening sockets that are meant; each may then be `wanted`, or not.

        Raises:
            Refusal: the target is gone for good.
        """
        listeners = [one for one in self._target.listeners() if self._meant is None or self._meant(one)]
        self.served = bool(listeners)
        if self._clock() - self._strangers_at >= READ_EVERY:  # one may have been handed over meanwhile
            self._strangers.clear()
            self._strangers_at = self._clock()
        self._scans_left = 1
        return self._target.kernel.dump(listeners, info)

    def wanted(self, found: Found) -> bool:
        """Whether a connection that is not known yet is meant. One that is not accepted yet may be, next time."""
        if not found.inode or not self._allowed(found.ident):
            return False
        owners = self._target.owners
        if not self._target.restricted or found.inode in owners:
            return True
        since = self._strangers.setdefault(found.ident, owners.scans)
        if self._scans_left and owners.scans < since + 2:
            self._scans_left = 0  # twice: it may be accepted, and its descriptor not be there yet
            owners.scan()
        return found.inode in owners

    def _allowed(self, ident: bytes) -> bool:
        if not self._only and not self._never:
            return True
        remote = ipaddress.ip_address(addresses_of(ident)[1].host)
        if self._only and not any(remote in network for network in self._only):
            return False
        return not any(remote in network for network in self._never)


def parse_address(text: str) -> Address:
    """`HOST:PORT`, `[::1]:PORT`; a name is resolved, an empty host means any.

    Raises:
        Refusal: none of these.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isascii() or not port.isdecimal() or not 0 < int(port) < 65536:
        raise Refusal(f"{text!r} is not HOST:PORT, for example 127.0.0.1:6379 or [::1]:6379")
    if host in ("", "*"):
        return Address("0.0.0.0", int(port))
    try:
        resolved = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise Refusal(f"{text!r}: {host} is no address: {error.strerror}") from None
    found = str(resolved[0][4][0])
    mapped = getattr(ipaddress.ip_address(found.partition("%")[0]), "ipv4_mapped", None)
    return Address(str(mapped or found), int(port))


def descendants(pids: Iterable[int]) -> list[int]:
    """*pids* and all their children, without this process and those started by it that are not among them."""
    found: dict[int, None] = {}
    for pid in pids:
        try:
            family = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
        except psutil.Error:
            continue
        found.update(dict.fromkeys(family))
    found.pop(os.getpid(), None)
    return list(found)


def socket_of(target: Target, listeners: Sequence[Listener]) -> tuple[int, int] | None:
    """(pid, descriptor) of one of *listeners*, to try our rights on; None: no process that we may read holds one."""
    inodes = {listener.inode for listener in listeners}
    for pid in target.pids():
        with suppress(PermissionError):
            for inode, fd in socket_inodes(pid):
                if inode in inodes:
                    return pid, fd
    return None


def _holds(pid: int, inodes: frozenset[int]) -> bool:
    try:
        return any(inode in inodes for inode, _ in socket_inodes(pid))
    except PermissionError:
        return False


def _readable(pid: int) -> None:
    try:
        os.listdir(f"/proc/{pid}/fd")
    except PermissionError:
        raise Refusal(
            f"--pid {pid}: its descriptors may not be read: run as its user or with CAP_SYS_PTRACE; "
            "--listen HOST:PORT needs no right to watch"
        ) from None
    except FileNotFoundError:
        raise Refusal(f"--pid {pid}: there is no such process") from None
