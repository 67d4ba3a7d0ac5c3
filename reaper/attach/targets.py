"""Whose connections: those of a process and its children, of a listening address, or of a user's servers.

One rule: *never more than was asked for*. Only connections that came in through a listening TCP socket; never a
listening socket itself, never an outgoing connection, never a UNIX socket, never our own process.

The answer changes while we watch: servers restart, workers come and go. `listeners` and `pids` are asked again at each
discovery.
"""

from __future__ import annotations

import os
import pwd
import socket
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

import psutil

from .kernel import Kernel, Listener, Refusal
from .netlink import Address
from .proc_fds import socket_inodes

READ_EVERY = 10.0
"""Seconds: a target that opens another port is noticed after so long at the latest."""


class Target(Protocol):
    """What is watched."""

    kernel: Kernel
    restricted: bool
    """Whether a connection counts only if one of `pids` holds it."""

    def listeners(self) -> list[Listener]:
        """The listening sockets whose connections are meant, now.

        Raises:
            Refusal: the target is gone for good.
        """

    def pids(self) -> list[int]:
        """The processes that may hold them, now."""

    def __str__(self) -> str:
        """As the user would say it."""


class _Held:
    """The listening sockets that the processes of *target* hold.

    To read all their descriptors costs more than to ask the kernel who listens: only when something new does, and then
    at most once per `READ_EVERY` seconds.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._known: frozenset[int] = frozenset()
        self._ours: frozenset[int] = frozenset()
        self._read_at = float("-inf")

    def among(self, listeners: list[Listener]) -> list[Listener]:
        """Those of *listeners*, which are all there are."""
        inodes = frozenset(listener.inode for listener in listeners)
        now = time.monotonic()
        if inodes - self._known and now - self._read_at >= READ_EVERY:
            self._ours = _held(self._target.pids()) & inodes
            self._known = inodes
            self._read_at = now
        return [listener for listener in listeners if listener.inode in self._ours]


class ByPid:
    """A process and its descendants, by the listening sockets that they hold.

    Raises:
        Refusal: there is no such process, its descriptors may not be read, or it listens nowhere.
    """

    restricted = True

    def __init__(self, pid: int, kernel: Kernel) -> None:
        self.pid = pid
        if pid == os.getpid():
            raise Refusal(f"--pid {pid} is this very process")
        try:
            self._process = psutil.Process(pid)
        except (psutil.NoSuchProcess, ValueError):
            raise Refusal(f"--pid {pid}: there is no such process") from None
        self.kernel = kernel
        self._held = _Held(self)
        _readable(pid)
        if not self.listeners():
            raise Refusal(f"--pid {pid}: neither it nor a child of it listens on a TCP port")

    def listeners(self) -> list[Listener]:
        """See `Target`."""
        if not self._process.is_running():  # compares the time it was started, too
            raise Refusal(f"process {self.pid} has ended")
        return self._held.among(self.kernel.listeners())

    def pids(self) -> list[int]:
        """See `Target`."""
        return descendants([self.pid])

    def __str__(self) -> str:
        return f"process {self.pid}"


class ByListen:
    """A listening address, whichever process serves it: after a restart, the new one.

    Raises:
        Refusal: nothing listens there.
    """

    restricted = False

    def __init__(self, address: Address, kernel: Kernel) -> None:
        self.address = address
        self.kernel = kernel
        self._holders: list[int] = []
        self._inodes: frozenset[int] = frozenset()
        if not self.listeners():
            raise Refusal(f"--listen {address}: nothing listens there")
        mine = _held([os.getpid()])
        if all(listener.inode in mine for listener in self.listeners()):
            raise Refusal(f"--listen {address}: that is this very process")

    def listeners(self) -> list[Listener]:
        """See `Target`. None while the server restarts."""
        found = [listener for listener in self.kernel.listeners() if self._means(listener)]
        if self.address.host in ("0.0.0.0", "::"):
            return found
        # Of a server that listens everywhere, only the connections to the address that was asked for.
        return [listener._replace(address=self.address) for listener in found]

    def pids(self) -> list[int]:
        """See `Target`. Cost: reads the descriptors of every process once per restart of the server."""
        inodes = frozenset(listener.inode for listener in self.listeners())
        if inodes != self._inodes or not any(psutil.pid_exists(pid) for pid in self._holders):
            self._inodes = inodes
            self._holders = [pid for pid in psutil.pids() if pid != os.getpid() and _holds(pid, inodes)]
        return descendants(self._holders)

    def _means(self, listener: Listener) -> bool:
        asked, found = self.address, listener.address
        if asked.port != found.port:
            return False
        if asked.host == found.host:
            return True
        # A wildcard serves each address of the machine, and who asks for any asks for each.
        everywhere = found.host == "::" or (found.host == "0.0.0.0" and ":" not in asked.host)
        return everywhere or asked.host in ("0.0.0.0", "::")

    def __str__(self) -> str:
        return str(self.address)


class ByUser:
    """Every process of a user that listens.

    Raises:
        Refusal: there is no such user, or none of its processes listens.
    """

    restricted = True

    def __init__(self, user: str, kernel: Kernel) -> None:
        try:
            self.uid: int = int(user) if user.isdecimal() else pwd.getpwnam(user).pw_uid
        except KeyError:
            raise Refusal(f"--all-listening-of {user}: there is no such user") from None
        self.user = user
        self.kernel = kernel
        self._held = _Held(self)
        if not self.listeners():
            raise Refusal(
                f"--all-listening-of {user}: no process of it listens on a TCP port (processes of other users can be "
                "read with CAP_SYS_PTRACE only)"
            )

    def listeners(self) -> list[Listener]:
        """See `Target`."""
        return self._held.among(self.kernel.listeners())

    def pids(self) -> list[int]:
        """See `Target`."""
        found = []
        for process in psutil.process_iter(["uids"]):
            uids = process.info["uids"]
            if uids is not None and uids.effective == self.uid and process.pid != os.getpid():
                found.append(process.pid)
        return found

    def __str__(self) -> str:
        return f"all servers of {self.user}"


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
    return Address(str(resolved[0][4][0]), int(port))


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
        try:
            for inode, fd in socket_inodes(pid):
                if inode in inodes:
                    return pid, fd
        except PermissionError:
            continue
    return None


def _held(pids: Iterable[int]) -> frozenset[int]:
    found: set[int] = set()
    for pid in pids:
        try:
            found.update(inode for inode, _ in socket_inodes(pid))
        except PermissionError:
            continue
    return frozenset(found)


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
