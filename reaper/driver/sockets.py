"""What the kernel is asked about sockets. Nothing here waits; a question about many
descriptors is one call.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import secrets
import select
import socket
import struct
import sys
import termios
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import printable
from ..policy.min_rate import hidden

TCP_NOTSENT_LOWAT = 25
"""linux/tcp.h; the socket module of CPython 3.11 does not name it."""

# Linux has them; elsewhere the kernel is asked for what it does not know, and answers
# with an error.
TCP_INFO, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT = (
    int(getattr(socket, name, -1))
    for name in ("TCP_INFO", "TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT")
)
IPPROTO_TCP = int(socket.IPPROTO_TCP)
TCP_RTO_MAX_MS = 44
"""linux/tcp.h from 6.15 on: the longest wait before data is sent, or a window probed,
again.
"""

STAMP = 0.01
"""Seconds by which the kernel's stamps may be wrong: one of its ticks, at its
slowest.
"""

_CLOSE_WAIT = 8  # tcp_info.tcpi_state: the peer has shut its sending side
_CLOSE = 7  # the connection is over


def unread(descriptors: Iterable[int]) -> list[int]:
    """The sockets among *descriptors* for which the kernel holds unread bytes, in the
    same order.

    Cost: one poll(2) for all, 0.1 to 0.3 us each. A socket at its end of file can be
    read as well, but that is no sign of life, so the bytes are counted.
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [
        descriptor
        for descriptor, events in poll.poll(0)
        if events & select.POLLIN and readable(descriptor)
    ]


def waiting(descriptor: int) -> int:
    """How many bytes on the socket *descriptor* the server has not read yet."""
    return _counted(descriptor, termios.FIONREAD)


def readable(descriptor: int) -> bool:
    """Whether bytes of the stream socket *descriptor* were not read yet, also behind an
    urgent byte.

    The kernel counts no further than to an urgent byte, so one in front of a request
    hides it from `waiting`.
    """
    if waiting(descriptor):
        return True
    with contextlib.suppress(OSError), borrowed(descriptor) as connected:
        return bool(connected.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    return False


def queued(descriptor: int) -> int:
    """How many bytes sent on the socket *descriptor* its peer has not acknowledged; 0
    if it is closed.
    """
    try:
        return _counted(descriptor, termios.TIOCOUTQ)
    except (OSError, ValueError):
        return 0


def _counted(descriptor: int, question: int) -> int:
    """The number with which the kernel answers *question*."""
    # Of what cannot be written to, CPython makes an exception first, and then a copy:
    # twice the instructions.
    answer = bytearray(4)
    fcntl.ioctl(descriptor, question, answer)
    return int.from_bytes(answer, sys.byteorder)


class TcpInfo(NamedTuple):
    """What the kernel's TCP knows of one connection."""

    sent_ago: float
    """Seconds since data was last sent; since the connection was established, if none
    was. Exact to a tick of the kernel's, 1 to 10 ms.
    """
    received_ago: float
    """Seconds since data last came; since it was established, if never."""
    acked_ago: float
    """Seconds since the peer last acknowledged anything, new or not."""
    acknowledged: int
    """Bytes the peer has acknowledged."""
    received: int
    """Bytes that came."""
    on_its_way: int
    """Segments with data that the peer has not acknowledged."""
    unanswered: int
    """Questions without an answer: data sent again, probes of a full window,
    keep-alives.
    """
    round_trip: float = 0.0
    """Seconds that an answer takes, as measured by data; 0 if nothing was measured."""
    variation: float = 0.0
    """How far from that it usually is, seconds."""
    unsent: int = 0
    """Bytes that were written and not sent yet: the peer's window may be full."""
    patience: float = 0.0
    """Seconds after which data that is not acknowledged is sent again."""
    resent: int = 0
    """Segments that were ever sent again."""
    held_up: float = 0.0
    """Seconds, all in all, in which nothing could be sent because the peer made no
    room.
    """
    segment: int = 0
    """Bytes of a full segment."""

    @property
    def hidden(self) -> int:
        """Bytes that the peer's process may have read of what its kernel took, without
        a word of that: see `policy.min_rate`.
        """
        return hidden(self.acknowledged, self.segment or 1)

    @property
    def silence(self) -> float:
        """Seconds since the last segment came from the peer, with data or without."""
        return min(self.received_ago, self.acked_ago)

    @property
    def asked(self) -> bool:
        """Whether the peer owes an answer to more than one question, so that not just
        one packet was lost.
        """
        return self.unanswered > 1

    def took_nothing_for(self, held_up: float) -> float:
        """Seconds for which the peer has surely taken nothing of what waits for it.

        Args:
            held_up: What this field was when nothing waited for the peer.
        """
        # What it took last it took when it acknowledged the last that was sent: soon
        # after that, or it would have been sent again.
        since_taken = self.acked_ago
        if not self.resent and not self.on_its_way:
            since_taken = max(since_taken, self.sent_ago - self.patience)
        return min(self.held_up - held_up, since_taken)

    def gone(self, after: float) -> bool:
        """Whether the peer has owed an answer for *after* seconds, and none can be on
        its way.

        The last question must be older than a sixteenth of that, and than an answer
        takes on this link; where it is older than a quarter, the next one is waited for
        a little.
        """
        late = after / 4
        early = max(after / 16, self.round_trip + 4 * self.variation)
        waited = self.silence - after
        if not self.asked or waited < early:
            return False
        return not self.on_its_way or early <= self.sent_ago <= late or waited >= late - early


_TCP_INFO = struct.Struct("=xxBB4xI4xI4xI16xIIII8xII24xI16xQQ8xI28xQ")
"""linux/tcp.h: retransmits, probes, rto in us, snd_mss, unacked; ms since data was
sent, an acknowledgement sent, data and one received; rtt and rttvar in us;
total_retrans, bytes_acked, bytes_received, notsent_bytes, rwnd_limited in us.
"""


def tcp_info(connected: Any) -> TcpInfo | None:
    """What TCP knows of *connected*, a socket object of any kind; None if it is no open
    TCP connection. Cost: 0.7 us.
    """
    try:
        found = _TCP_INFO.unpack(connected.getsockopt(socket.IPPROTO_TCP, TCP_INFO, _TCP_INFO.size))
    except (OSError, struct.error):
        return None
    resent, probes, rto, segment, unacked, sent, _, received, acked, trip, varies, *counts = found
    total, taken, came, unsent, held_up = counts
    return TcpInfo(
        sent / 1e3,
        received / 1e3,
        acked / 1e3,
        taken,
        came,
        unacked,
        max(resent, probes),
        trip / 1e6,
        varies / 1e6,
        unsent,
        rto / 1e6,
        total,
        held_up / 1e6,
        segment,
    )


def tcp_info_of(descriptor: int) -> TcpInfo | None:
    """`tcp_info` of the socket *descriptor*. About 1 us."""
    try:
        connected = lent(descriptor)
    except OSError:
        return None
    try:
        return tcp_info(connected)
    finally:
        connected.detach()


_SILENCE = struct.Struct("=52xII")
"""Two fields of the same structure: milliseconds since data was received, and since an
acknowledgement.
"""

_silence, _SILENCE_SIZE = _SILENCE.unpack, _SILENCE.size


def silence_of(descriptor: int) -> float | None:
    """`TcpInfo.silence` of the TCP socket *descriptor*; None if it is closed, or not
    over TCP.

    A third of what `tcp_info_of` takes.
    """
    try:
        connected = lent(descriptor)
    except OSError:
        return None
    try:
        return silence_by(connected)
    finally:
        connected.detach()


def silence_by(connected: Any) -> float | None:
    """`silence_of` by a socket object of any kind: one system call."""
    try:
        received, acked = _silence(connected.getsockopt(IPPROTO_TCP, TCP_INFO, _SILENCE_SIZE))
    except (OSError, struct.error):
        return None
    return float(min(received, acked)) / 1e3


_MPTCP_INFO = struct.Struct("=88xII")
"""linux/mptcp.h, of Linux 6.10 and later: ms since data was received, and an
acknowledgement.
"""

SOL_MPTCP, MPTCP_INFO = 284, 1


def silence_of_paths(descriptor: int) -> float:
    """Seconds since a Multipath TCP connection last heard anything of its peer, by
    whatever path.

    Infinite if it is no such connection. About 1 us.
    """
    try:
        with borrowed(descriptor, TCP) as connected:
            found = connected.getsockopt(SOL_MPTCP, MPTCP_INFO, _MPTCP_INFO.size)
        received, acked = _MPTCP_INFO.unpack(found)
        return float(min(received, acked)) / 1e3
    except (OSError, struct.error):
        return math.inf


def peer_has_shut(connected: Any) -> bool:
    """Whether the peer of *connected*, a TCP socket, has said that it will send no
    more.
    """
    try:
        return bool(connected.getsockopt(socket.IPPROTO_TCP, TCP_INFO, 1)[0] == _CLOSE_WAIT)
    except OSError:
        return False


def shut(descriptor: int) -> None:
    """Tell the peer of the socket *descriptor* that nothing more comes. Does nothing if
    it is gone.

    close(2) alone says that only with the last copy of the descriptor, and a forked
    process may have one. About 2 us.
    """
    if descriptor >= 0:
        with contextlib.suppress(OSError), borrowed(descriptor, TCP) as connected:
            connected.shutdown(socket.SHUT_WR)


def say(descriptor: int, data: bytes) -> None:
    """Send *data* on the socket *descriptor* if the kernel takes it at once. Does
    nothing if it is gone.
    """
    if descriptor >= 0:
        with contextlib.suppress(OSError), borrowed(descriptor, TCP) as connected:
            connected.send(data, socket.MSG_DONTWAIT)


def shut_by_peer(descriptor: int) -> bool:
    """`peer_has_shut` of the socket *descriptor*."""
    try:
        with borrowed(descriptor, TCP) as connected:
            return peer_has_shut(connected)
    except (OSError, ValueError):
        return False


def is_over(descriptor: int) -> bool:
    """Whether the TCP connection of the socket *descriptor* was reset or given up, or
    it is closed. False also if it is no TCP. About 1 us.
    """
    if descriptor < 0:
        return True
    try:
        with borrowed(descriptor, TCP) as connected:
            return bool(connected.getsockopt(socket.IPPROTO_TCP, TCP_INFO, 1)[0] == _CLOSE)
    except OSError as error:
        return error.errno == errno.EBADF


def peer_name(descriptor: int) -> str:
    """The peer's address of the socket *descriptor* as text; empty if the connection is
    gone, or its peer has none.

    The peer of a UNIX socket chose its name: what does not print is escaped.
    """
    try:
        with borrowed(descriptor) as connected:
            address = connected.getpeername()
    except (OSError, ValueError):
        return ""
    if not isinstance(address, tuple):
        return printable(os.fsdecode(address).replace("\0", "@", 1))
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


TCP = (socket.AF_INET, socket.SOCK_STREAM, 0)


def lent(descriptor: int) -> Any:
    """A socket object for the TCP socket *descriptor*, which `detach` gives back. 0.6
    us.

    The interpreter's own class, where that counts; `borrowed` is safer.
    """
    return socket.SocketType(*TCP, descriptor)


@contextlib.contextmanager
def borrowed(descriptor: int, kind: tuple[int, int, int] = (-1, -1, -1)) -> Iterator[socket.socket]:
    """A socket object for *descriptor* that does not close it. With the default *kind*
    the kernel is asked which kind it is.
    """
    connected = socket.socket(*kind, fileno=descriptor)
    try:
        yield connected
    finally:
        connected.detach()


class Credentials(NamedTuple):
    """Who a process is, as the kernel says."""

    pid: int
    user: int


def credentials(connected: Any) -> Credentials:
    """Who is at the other end of the Unix socket *connected*: the process that
    listened, or that connected. Linux only.
    """
    pid, user, _ = struct.unpack(
        "3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    )
    return Credentials(pid, user)


def same_user(connected: Any) -> bool:
    """Whether the process at the other end of the Unix socket *connected* is of this
    process's user, or root's.

    Ask it about every process that comes to an abstract name: unlike a file, such a
    name has no permissions.
    """
    return credentials(connected).user in (0, os.getuid())


def listen_as(family: str) -> socket.socket:
    """A non-blocking Unix socket that listens under an abstract name, *family* and what
    nobody can guess. Linux only.

    Any local user could take a name first that can be guessed. Find this one by
    `names_of`, perhaps among others that begin alike, and ask the kernel whose it is
    (`credentials`).
    """
    made = socket.socket(socket.AF_UNIX)
    try:
        made.bind(f"\0{family}{secrets.token_hex(8)}")
        made.listen(socket.SOMAXCONN)
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made


def names_of(family: str) -> list[str]:
    """The abstract names that begin with *family* and are listened on now, by whomever;
    without the leading NUL.
    """
    found = set()
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/unix").read_text(errors="replace").splitlines():
            *_, name = line.split(None, 7)
            if name.startswith(f"@{family}"):
                found.add(name[1:])
    return sorted(found)


def reset_on_close(connected: socket.socket) -> None:
    """Let the close of *connected* be a reset, and the kernel forget what is queued.
    Nothing if it is closed.
    """
    with contextlib.suppress(OSError):
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
