"""Asks the kernel: for all connections of a listening port (a dump), for single
connections by cookie (a look), and to abort one.

One rule: *one look, one answer*. A connection that is gone, or whose addresses another
one has taken, is None: the kernel compares the cookie. There are two netlink sockets,
so that a look may happen in the middle of a dump.
"""

from __future__ import annotations

import ctypes
import errno
import ipaddress
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

from ..errors import ReaperError
from . import netlink
from .netlink import Address, Answer, addresses_of
from .tcpinfo import CLOSE_WAIT, ESTABLISHED, JIFFIES_AGAINST_US, LISTEN, SYN_RECV, Snapshot, parse

NETLINK_SOCK_DIAG = 4
OPEN_STATES = 1 << ESTABLISHED | 1 << CLOSE_WAIT
BATCH = 32
"""Looks per system call: their answers must fit the socket's buffer, or the kernel
drops some.
"""
MAPPED = bytes(10) + b"\xff\xff"
"""Stands before an IPv4 address in a dual-stack socket."""
PATIENCE = 10
"""Seconds that the kernel may take to answer; it has never been seen to take them."""
MOST_BYTES = 65536
"""The most that one datagram of the kernel's can have."""
ONE_ANSWER = 4096
"""Enough bytes for the answer to one look: the kernel sends each in its own datagram.
"""
CLONE_NEWNET = 0x40000000
CLOCK_MONOTONIC_COARSE = 6
NO_PROC = "/proc is not mounted here, and without it nobody can look into a process"
SHUTDOWN_INSTEAD = "leave it out: --how shutdown needs no more than the right to trace"


class Refusal(ReaperError):
    """This cannot be done here: a right or a feature of the kernel is missing, or there
    is nothing to attach to. Its one line says what.
    """


class Listener(NamedTuple):
    """A listening TCP socket: its connections have its port, its family, and its
    address unless that is a wildcard.
    """

    address: Address
    family: int
    inode: int = 0
    waiting: int = 0
    """Connections that wait to be accepted, when it was listed."""
    room: int = 0
    """How many may wait."""
    owner: int = 0
    """The user id that made it: most often that of the processes that hold it."""

    @property
    def host(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
        """The address without the interface that may follow it, as in
        `fe80::1%eth0`.
        """
        return ipaddress.ip_address(self.address.host.partition("%")[0])

    @property
    def local(self) -> bytes:
        """The local address of its connections, as in their idents; empty if it serves
        each.
        """
        host = self.host
        if host.is_unspecified:
            return b""
        return (
            host.packed
            if self.family == socket.AF_INET or host.version == 6
            else MAPPED + host.packed
        )


class Found(NamedTuple):
    """A connection in a dump."""

    ident: bytes
    inode: int
    """0: the server has not accepted it yet."""
    queued: int
    snapshot: Snapshot | None
    """None if it was not asked for."""


Sighted = Callable[[bytes, float, float, int, int], bool]
"""Shown (ident, now, since when the peer may be silent, queued, questions in vain) of a
connection in a dump, says whether it is known. The instants are the earliest that they
can be, seconds; the second is 0 if the peer has not sent a byte.
"""


def grain() -> float:
    """Seconds by which this kernel's stamps may be off: `JIFFIES_AGAINST_US` jiffies.

    A jiffy is the resolution of the kernel's coarse clock.
    """
    return JIFFIES_AGAINST_US * time.clock_getres(CLOCK_MONOTONIC_COARSE)


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
        self._grain = grain()
        if pid is None or namespace(pid) == namespace(os.getpid()):
            self._dumps, self._looks = _open(), _open()
        else:
            self._dumps, self._looks = _open_within(pid)
        try:
            self.listeners()
        except OSError as error:
            self.close()
            raise Refusal(
                f"this kernel does not answer inet_diag ({error.strerror}): it needs "
                "CONFIG_INET_DIAG and CONFIG_INET_TCP_DIAG (try: modprobe tcp_diag)"
            ) from None

    def close(self) -> None:
        """Close both sockets."""
        self._dumps.close()
        self._looks.close()

    def listeners(self) -> list[Listener]:
        """Every listening TCP socket of the network namespace."""
        return [
            Listener(
                addresses_of(answer.ident, answer.family)[0],
                answer.family,
                answer.inode,
                answer.unread,
                answer.queued,
                answer.owner,
            )
            for family in (socket.AF_INET, socket.AF_INET6)
            # On the socket of the looks: on the other a `dump` may be half read.
            for answer in self._dump(self._looks, family, 1 << LISTEN, (), False)
        ]

    def half_open(self, listeners: Sequence[Listener]) -> list[bytes]:
        """The idents of the handshakes with *listeners* that the clients have not
        completed.
        """
        return [
            answer.ident
            for family, some in self._places(listeners)
            for answer in self._dump(self._looks, family, 1 << SYN_RECV, some, False)
        ]

    def survey(self, listeners: Sequence[Listener], sighted: Sighted) -> Iterator[Found | None]:
        """The open connections of *listeners* that *sighted* does not know; None now
        and then.

        Each connection is shown to *sighted* first, which makes no object of it; only
        one that it does not know becomes a `Found`. None comes after each datagram of
        the kernel's, so that the caller may do something else.

        Cost: 2 us per connection that is known.
        """
        for family, some in self._places(listeners):
            self._sequence += 1
            sequence = self._sequence
            earlier = before = self._clock()
            self._dumps.send(netlink.dump_request(sequence, family, OPEN_STATES, some, True))
            done = False
            while not done:
                # The kernel filled this datagram when the one before was taken.
                earlier, before = before, self._clock()
                data = self._dumps.recv(MOST_BYTES)
                for start, end, said, ident, queued, info in netlink.scan(data):
                    if said != sequence:  # an earlier dump was not read to its end
                        continue
                    if info:
                        _, vain, ago, received = netlink.movement(data, info)
                        heard = earlier - ago / 1e3 - self._grain if received else 0.0
                        if sighted(ident, earlier, heard, queued, vain):
                            continue
                    (answer,) = netlink.parse(data[start:end])
                    if answer.error:
                        raise OSError(answer.error, os.strerror(answer.error))
                    if answer.done:
                        done = True
                        break
                    snapshot = self._snapshot(answer, earlier) if answer.info else None
                    yield Found(answer.ident, answer.inode, answer.queued, snapshot)
                yield None

    def dump(self, listeners: Sequence[Listener], info: bool) -> Iterator[Found]:
        """The open connections of *listeners*, with a snapshot each if *info*.

        Outgoing connections that use the same local port are among them. A dump is not
        one instant's: a connection that opens meanwhile may be missing.

        Cost: the kernel walks all its connections, about 0.1 us each; a connection that
        it finds costs 3 us, 7 us with *info*.
        """
        for family, some in self._places(listeners):
            before = self._clock()
            for answer in self._dump(self._dumps, family, OPEN_STATES, some, info):
                snapshot = self._snapshot(answer, before) if answer.info else None
                yield Found(answer.ident, answer.inode, answer.queued, snapshot)

    def _places(
        self, listeners: Sequence[Listener]
    ) -> Iterator[tuple[int, list[tuple[int, bytes]]]]:
        """(family, places) of the dumps that show all connections of *listeners*."""
        for family in (netlink.AF_INET, netlink.AF_INET6):
            places = list(
                dict.fromkeys(
                    (one.address.port, one.local) for one in listeners if one.family == family
                )
            )
            for start in range(0, len(places), netlink.MOST_PLACES):
                yield family, places[start : start + netlink.MOST_PLACES]

    def glance(
        self, idents: Sequence[bytes], sighted: Sighted
    ) -> list[tuple[bytes, Snapshot | None]]:
        """As `look`, each with its ident, but without those that *sighted* says it
        knows.

        As in a `survey`, each open connection is shown to *sighted* first, and no
        object is made of it. The order is any.

        Raises:
            OSError: the kernel refuses to answer at all.
        Cost: that of `look`, without the objects for those that *sighted* knows.
        """
        found = list[tuple[bytes, Snapshot | None]]()
        for start in range(0, len(idents), BATCH):
            part = idents[start : start + BATCH]
            first, before = self._ask(part)
            left = len(part)
            while left:
                data = self._looks.recv(ONE_ANSWER)
                for at, end, said, _, queued, info in netlink.scan(data):
                    if said < first:  # what an interrupted call left behind
                        continue
                    left -= 1
                    # The very object that was given, which may be kept: the answer has
                    # a copy.
                    ident = part[said - first]
                    if info:
                        state, vain, ago, received = netlink.movement(data, info)
                        heard = before - ago / 1e3 - self._grain if received else 0.0
                        is_open = OPEN_STATES >> state & 1
                        if is_open and sighted(ident, before, heard, queued, vain):
                            continue
                    (answer,) = netlink.parse(data[at:end])
                    found.append((ident, self._seen(answer, before)))
        return found

    def look(self, idents: Sequence[bytes]) -> list[Snapshot | None]:
        """The connections with *idents* now, in that order; None: no longer open.

        Raises:
            OSError: the kernel refuses to answer at all.
        Cost: about 10 us each.
        """
        starts = range(0, len(idents), BATCH)
        return [seen for start in starts for seen in self._look(idents[start : start + BATCH])]

    def destroy(self, ident: bytes) -> bool:
        """Abort the connection. False: no longer open.

        Raises:
            Refusal: CAP_NET_ADMIN is missing, or the kernel has no
                CONFIG_INET_DIAG_DESTROY.
        """
        self._sequence += 1
        self._looks.send(netlink.destroy_request(self._sequence, ident))
        answer = self._acknowledged(self._sequence)
        if answer.error in (errno.ENOENT, errno.ESTALE):
            return False
        if answer.error == errno.EOPNOTSUPP:
            raise Refusal(
                f"--how destroy: this kernel has no CONFIG_INET_DIAG_DESTROY; {SHUTDOWN_INSTEAD}"
            )
        if answer.error:
            raise Refusal(
                f"--how destroy: {os.strerror(answer.error)}: it needs CAP_NET_ADMIN; "
                f"{SHUTDOWN_INSTEAD}"
            )
        return True

    def _look(self, idents: Sequence[bytes]) -> list[Snapshot | None]:
        first, before = self._ask(idents)
        found: dict[int, Snapshot | None] = {}
        answers = self._answers(self._looks)
        while len(found) < len(idents):
            answer = next(answers)
            if answer.sequence < first:  # what an interrupted call left behind
                continue
            found[answer.sequence] = self._seen(answer, before)
        return [found[first + n] for n in range(len(idents))]

    def _ask(self, idents: Sequence[bytes]) -> tuple[int, float]:
        """Ask for each of *idents*: (the sequence number of the first, the instant
        before).
        """
        first = self._sequence + 1
        self._sequence += len(idents)
        before = self._clock()
        self._looks.send(
            b"".join([netlink.look_request(first + n, ident) for n, ident in enumerate(idents)])
        )
        return first, before

    def _seen(self, answer: Answer, before: float) -> Snapshot | None:
        """What *answer* to a look shows; None: the connection is no longer open."""
        if answer.error and answer.error not in (errno.ENOENT, errno.ESTALE):
            raise OSError(answer.error, os.strerror(answer.error))
        gone = answer.error or not OPEN_STATES >> answer.state & 1
        return None if gone else self._snapshot(answer, before)

    def _snapshot(self, answer: Answer, before: float) -> Snapshot:
        return parse(answer.info, answer.state, answer.unread, answer.queued, before, self._clock())

    def _acknowledged(self, sequence: int) -> Answer:
        return next(answer for answer in self._answers(self._looks) if answer.sequence == sequence)

    def _answers(self, sock: socket.socket) -> Iterator[Answer]:
        while True:
            yield from netlink.parse(sock.recv(MOST_BYTES))

    def _dump(
        self,
        sock: socket.socket,
        family: int,
        states: int,
        places: Sequence[tuple[int, bytes]],
        info: bool,
    ) -> Iterator[Answer]:
        self._sequence += 1
        sequence = self._sequence
        sock.send(netlink.dump_request(sequence, family, states, places, info))
        for answer in self._answers(sock):
            if answer.sequence != sequence:
                continue
            if answer.error:
                raise OSError(answer.error, os.strerror(answer.error))
            if answer.done:
                return
            yield answer


def _open() -> socket.socket:
    try:
        sock = socket.socket(
            socket.AF_NETLINK, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, NETLINK_SOCK_DIAG
        )
    except OSError as error:
        raise Refusal(
            f"this kernel has no sock_diag netlink ({error.strerror}): it needs CONFIG_INET_DIAG"
        ) from None
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    # Not `settimeout`: that would poll before every call.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", PATIENCE, 0))
    return sock


def namespace(pid: int) -> tuple[int, int]:
    """The device and inode that name the network namespace of process *pid*.

    Raises:
        Refusal: there is no such process, or its namespace may not be seen.
    """
    try:
        status = os.stat(f"/proc/{pid}/ns/net")
    except FileNotFoundError:
        raise not_shown(pid) from None
    except PermissionError:
        raise Refusal(
            f"the network namespace of process {pid} may not be looked at: "
            "run as its user, or with CAP_SYS_PTRACE"
        ) from None
    return status.st_dev, status.st_ino


def not_shown(pid: int) -> Refusal:
    """Why /proc shows no process *pid*: nothing is there, or nobody may look."""
    if not os.path.isdir("/proc/self"):
        return Refusal(f"--pid {pid}: {NO_PROC}")
    with suppress(ProcessLookupError, OverflowError):
        with suppress(PermissionError):
            os.kill(pid, 0)  # this asks, and sends nothing
        return Refusal(
            f"--pid {pid} may not be looked at: /proc hides the processes of other users (hidepid): "
            "run as its user or as root"
        )
    return Refusal(f"--pid {pid}: there is no such process")


def _open_within(pid: int) -> tuple[socket.socket, socket.socket]:
    """Two sockets in the network namespace of *pid*.

    A thread of its own enters the namespace and opens them; this process stays outside.
    """

    def enter() -> tuple[socket.socket, socket.socket]:
        with open(f"/proc/{pid}/ns/net") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET):
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))
        return _open(), _open()

    with ThreadPoolExecutor(1) as alone:
        try:
            return alone.submit(enter).result()
        except OSError as error:
            raise Refusal(
                f"process {pid} is in another network namespace, which may not be entered "
                f"({error.strerror}): run with CAP_SYS_ADMIN, or attach from inside its container "
                "or pod"
            ) from None
