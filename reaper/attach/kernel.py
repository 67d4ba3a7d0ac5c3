"""Asking the kernel: dumps filtered by listening port, looks at single connections by cookie, aborts.

One rule: *one look, one answer*. A connection that is gone, or whose addresses another one has taken, is None: the
kernel compares the cookie. Two netlink sockets, so that a look may happen in the middle of a dump.

`Kernel` is what the rest of this room needs; `Linux` is the real one.
"""

from __future__ import annotations

import ctypes
import errno
import ipaddress
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from ..errors import ReaperError
from . import netlink
from .looks import Looks
from .netlink import Address, Answer, addresses_of
from .tcpinfo import CLOSE_WAIT, ESTABLISHED, LISTEN, Snapshot, parse, snapshot

NETLINK_SOCK_DIAG = 4
OPEN_STATES = 1 << ESTABLISHED | 1 << CLOSE_WAIT
BATCH = 32
"""Looks per system call: their answers must fit the socket's buffer, or the kernel drops some."""
MAPPED = bytes(10) + b"\xff\xff"
"""Before an IPv4 address in a dual-stack socket."""
PATIENCE = 10
"""Seconds that the kernel may take to answer; it never does."""
MOST_BYTES = 65536
"""Of one datagram of the kernel's."""
CLONE_NEWNET = 0x40000000
CLOCK_MONOTONIC_COARSE = 6


class Refusal(ReaperError):
    """This cannot be done here: a missing right, a missing kernel feature, nothing to attach to. One line says what."""


class Listener(NamedTuple):
    """A listening TCP socket: its connections have its port, its family, and its address unless that is a wildcard."""

    address: Address
    family: int
    inode: int = 0
    uid: int = 0

    @property
    def local(self) -> bytes:
        """The local address of its connections as their idents have it; nothing if it serves each."""
        host = ipaddress.ip_address(self.address.host.partition("%")[0])
        if host.is_unspecified:
            return b""
        return host.packed if self.family == socket.AF_INET or host.version == 6 else MAPPED + host.packed


class Found(NamedTuple):
    """A connection in a dump."""

    ident: bytes
    inode: int
    """0: not accepted yet."""
    queued: int
    snapshot: Snapshot | None
    """Where it was asked for."""


class Kernel(Protocol):
    """What is asked of the kernel."""

    def listeners(self) -> list[Listener]:
        """Every listening TCP socket of the network namespace."""

    def dump(self, listeners: Sequence[Listener], info: bool) -> Iterator[Found]:
        """The open connections of *listeners*. Not one instant's: one that opens meanwhile may be missing."""

    def look(self, idents: Sequence[bytes]) -> list[Snapshot | None]:
        """The connections with *idents* now, in that order; None: no longer open."""

    def destroy(self, ident: bytes) -> bool:
        """Abort the connection. False: no longer open."""

    def close(self) -> None:
        """Let go of everything."""


def jiffy() -> float:
    """Seconds per jiffy of this kernel: the grain of its coarse clock, which the same timer interrupt drives."""
    return time.clock_getres(CLOCK_MONOTONIC_COARSE)


class Linux:
    """inet_diag of one network namespace.

    Args:
        pid: Of a process in that namespace; None: our own.
        clock: Seconds, monotonic.
    Raises:
        Refusal: the kernel has no inet_diag, or the namespace may not be entered.
    """

    def __init__(self, pid: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sequence = 0
        self._known = Looks()
        self._buffer = bytearray(MOST_BYTES)  # of looks alone: a dump is read on while they come between
        if pid is None or _namespace(pid) == _namespace(os.getpid()):
            self._dumps, self._looks = _open(), _open()
        else:
            self._dumps, self._looks = _open_within(pid)
        try:
            self.listeners()
        except OSError as error:
            self.close()
            raise Refusal(
                f"this kernel does not answer inet_diag ({error.strerror}): it needs CONFIG_INET_DIAG and "
                "CONFIG_INET_TCP_DIAG (try: modprobe tcp_diag)"
            ) from None

    def close(self) -> None:
        """Close both sockets."""
        self._dumps.close()
        self._looks.close()

    def listeners(self) -> list[Listener]:
        """See `Kernel`."""
        return [
            Listener(addresses_of(answer.ident)[0], answer.family, answer.inode, answer.uid)
            for family in (socket.AF_INET, socket.AF_INET6)
            for answer in self._dump(family, 1 << LISTEN, (), False)
        ]

    def dump(self, listeners: Sequence[Listener], info: bool) -> Iterator[Found]:
        """See `Kernel`. Cost: the kernel walks all its connections, about 0.1 us each; what it finds costs 2 us, 5 us
        with *info*."""
        for family in (netlink.AF_INET, netlink.AF_INET6):
            places = list(dict.fromkeys((one.address.port, one.local) for one in listeners if one.family == family))
            for start in range(0, len(places), netlink.MOST_PLACES):
                some = places[start : start + netlink.MOST_PLACES]
                yield from self._found_with_info(family, some) if info else self._found(family, some)

    def _found(self, family: int, places: Sequence[tuple[int, bytes]]) -> Iterator[Found]:
        sequence = self._ask(family, OPEN_STATES, places, False)
        while True:
            for found in netlink.parse_dump(memoryview(self._dumps.recv(MOST_BYTES)), sequence, family):
                if not isinstance(found, Answer):
                    yield Found(*found, None)
                elif found.sequence == sequence:
                    if _over(found):
                        return
                    yield Found(found.ident, found.inode, found.queued, None)

    def _found_with_info(self, family: int, places: Sequence[tuple[int, bytes]]) -> Iterator[Found]:
        before = self._clock()
        for answer in self._dump(family, OPEN_STATES, places, True):
            snapshot = self._snapshot(answer, before) if answer.info else None
            yield Found(answer.ident, answer.inode, answer.queued, snapshot)

    def look(self, idents: Sequence[bytes]) -> list[Snapshot | None]:
        """See `Kernel`. Cost: about 6 us each.

        Raises:
            OSError: the kernel refuses to answer at all.
        """
        found: list[Snapshot | None] = []
        for start in range(0, len(idents), BATCH):
            found += self._look(idents[start : start + BATCH])
        return found

    def destroy(self, ident: bytes) -> bool:
        """See `Kernel`.

        Raises:
            PermissionError: CAP_NET_ADMIN is missing.
            OSError: the kernel has no CONFIG_INET_DIAG_DESTROY.
        """
        self._sequence += 1
        self._looks.send(netlink.destroy_request(self._sequence, ident))
        answer = self._acknowledged(self._sequence)
        if answer.error in (errno.ENOENT, errno.ESTALE):
            return False
        if answer.error:
            raise OSError(answer.error, os.strerror(answer.error))
        return True

    def _look(self, idents: Sequence[bytes]) -> list[Snapshot | None]:
        first = self._sequence + 1
        self._sequence += len(idents)
        before = self._clock()
        self._looks.send(b"".join([netlink.look_request(first + n, ident) for n, ident in enumerate(idents)]))
        found: dict[int, Snapshot | None] = {}
        while len(found) < len(idents):
            size = self._looks.recv_into(self._buffer)
            read = self._known.read(self._buffer, size)
            if read is None:
                self._read_at_length(size, first, before, found)
            elif read[0] >= first:
                found[read[0]] = snapshot(*read[1:], before, self._clock()) if _is_open(read[1]) else None
        return [found[first + n] for n in range(len(idents))]

    def _read_at_length(self, size: int, first: int, before: float, found: dict[int, Snapshot | None]) -> None:
        """What an interrupted call left behind is passed over."""
        for answer in netlink.parse(memoryview(self._buffer)[:size]):
            if answer.sequence < first:
                continue
            if answer.error and answer.error not in (errno.ENOENT, errno.ESTALE):
                raise OSError(answer.error, os.strerror(answer.error))
            gone = answer.error or not _is_open(answer.state)
            found[answer.sequence] = None if gone else self._snapshot(answer, before)
            if answer.info:
                self._known.learn(self._buffer, size)

    def _snapshot(self, answer: Answer, before: float) -> Snapshot:
        return parse(answer.info, answer.state, answer.unread, answer.queued, before, self._clock())

    def _acknowledged(self, sequence: int) -> Answer:
        while True:
            for answer in netlink.parse(self._looks.recv(MOST_BYTES)):
                if answer.sequence == sequence:
                    return answer

    def _ask(self, family: int, states: int, places: Sequence[tuple[int, bytes]], info: bool) -> int:
        self._sequence += 1
        self._dumps.send(netlink.dump_request(self._sequence, family, states, places, info))
        return self._sequence

    def _dump(self, family: int, states: int, places: Sequence[tuple[int, bytes]], info: bool) -> Iterator[Answer]:
        sequence = self._ask(family, states, places, info)
        while True:
            for answer in netlink.parse(self._dumps.recv(MOST_BYTES), info):
                if answer.sequence != sequence:
                    continue
                if _over(answer):
                    return
                yield answer


def _is_open(state: int) -> bool:
    return bool(OPEN_STATES >> state & 1)


def _over(answer: Answer) -> bool:
    """Whether it is the end of a dump.

    Raises:
        OSError: the kernel refuses it.
    """
    if answer.error:
        raise OSError(answer.error, os.strerror(answer.error))
    return answer.done


def _open() -> socket.socket:
    try:
        sock = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, NETLINK_SOCK_DIAG)
    except OSError as error:
        raise Refusal(f"this kernel has no sock_diag netlink ({error.strerror}): it needs CONFIG_INET_DIAG") from None
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    # Not `settimeout`: that would poll before every call.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", PATIENCE, 0))
    return sock


def _namespace(pid: int) -> tuple[int, int]:
    try:
        status = os.stat(f"/proc/{pid}/ns/net")
    except FileNotFoundError:
        raise Refusal(f"--pid {pid}: there is no such process") from None
    except PermissionError:
        raise Refusal(
            f"the network namespace of process {pid} may not be looked at: run as its user, or with CAP_SYS_PTRACE"
        ) from None
    return status.st_dev, status.st_ino


def _open_within(pid: int) -> tuple[socket.socket, socket.socket]:
    """Two sockets in the network namespace of *pid*, opened by a thread of their own: the rest of us stays outside."""
    made: list[socket.socket] = []
    failed: list[int] = []

    def enter() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        with suppress(OSError):
            namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            try:
                if libc.setns(namespace, CLONE_NEWNET):
                    failed.append(ctypes.get_errno())
                    return
                made.extend((_open(), _open()))
            finally:
                os.close(namespace)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if len(made) != 2:
        why = os.strerror(failed[0]) if failed else "it cannot be opened"
        raise Refusal(
            f"process {pid} is in another network namespace, which may not be entered ({why}): run with CAP_SYS_ADMIN, "
            "or attach from inside its container or pod"
        )
    return made[0], made[1]
