"""Looks at sockets that this process holds, by descriptor, and ends them by
shutdown(2).

They are its own sockets, or duplicates of another process's.

One rule: *a number is not a socket*. A descriptor may have been closed and given to
another connection since it was noted, so each look compares the kernel's cookie first,
and each close happens on a duplicate that was compared.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import socket
import struct
import sys
import termios
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Protocol

from ..errors import InvalidArgument
from .netlink import IDENT_BYTES, cookie_of
from .tcpinfo import CLOSE_WAIT, ESTABLISHED, Snapshot, parse

SO_COOKIE, TCP_INFO, TCP_QUICKACK, TCP_RTO_MAX_MS, SIOCOUTQ = 57, 11, 12, 44, 0x5411
KEEPALIVES = 40
# A descriptor where a foreign ident has the peer's address; the cookie in its place.
_IDENT = struct.Struct("=20xI16xQ")
assert _IDENT.size == IDENT_BYTES

_libc = ctypes.CDLL(None, use_errno=True)
_getsockopt, _shutdown = _libc.getsockopt, _libc.shutdown


class HasFileno(Protocol):
    """A socket, a transport's socket, a stream: anything that knows its descriptor."""

    def fileno(self) -> int:
        """The descriptor, an int >= 0 while it is open."""


def _option(fd: int, level: int, name: int, size: int) -> bytes:
    buffer = ctypes.create_string_buffer(size)
    length = ctypes.c_uint(size)
    if _getsockopt(fd, level, name, buffer, ctypes.byref(length)):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return buffer.raw[: length.value]


def cookie(fd: int) -> int:
    """The kernel's number for the socket behind *fd*, unique while the machine runs.

    Raises:
        OSError: *fd* is no socket, or closed.
    """
    return int(struct.unpack("=Q", _option(fd, socket.SOL_SOCKET, SO_COOKIE, 8))[0])


def look(fd: int, clock: Callable[[], float]) -> Snapshot | None:
    """The connection behind *fd* now; None: the server's half is closed, or both are.

    Raises:
        OSError: *fd* is closed, or no TCP socket.
    Cost: 2 to 4 us.
    """
    before = clock()
    info = _option(fd, socket.IPPROTO_TCP, TCP_INFO, 256)
    state = info[0]
    if state not in (ESTABLISHED, CLOSE_WAIT):
        return None
    unread, queued = _counted(fd, termios.FIONREAD), _counted(fd, SIOCOUTQ)
    seen = parse(info, state, unread, queued, before, clock())
    return (
        seen._replace(answered=_answered(fd, seen)) if seen.sent_ago == seen.received_ago else seen
    )


def _counted(fd: int, question: int) -> int:
    """The number with which the kernel answers *question*."""
    # Of what cannot be written to, CPython makes an exception first, and then a copy.
    answer = bytearray(4)
    fcntl.ioctl(fd, question, answer)
    return int.from_bytes(answer, sys.byteorder)


def _answered(fd: int, seen: Snapshot) -> bool | None:
    """Whether the server spoke last although both stamps are equal; None: this kernel
    does not say.

    A kernel that answers its peer quickly lets acknowledgements ride on the answers.
    When one has to go alone, because no answer came within 40 ms, it stops doing so:
    then the option reads 1. But a question in two segments is acknowledged at once, and
    the option stays 0. An answer that the peer acknowledged a little later, by itself,
    came after the question. So did an answer if the server has sent as many segments as
    came in, because a question in two segments would make it one too few.
    """
    if _option(fd, socket.IPPROTO_TCP, TCP_QUICKACK, 4)[:1] != b"\0":
        return False if acks_tell() else None
    acknowledged_alone = 0 < seen.received_ago - seen.ack_ago < 1.0  # later, it was a keep-alive
    return True if acknowledged_alone or seen.segments_in <= seen.segments_out else None


@cache
def acks_tell() -> bool:
    """Whether one quick answer is enough for this kernel to let acknowledgements wait.

    Kernels do so since Linux 6.0.
    """
    try:
        return int(Path("/proc/sys/net/ipv4/tcp_pingpong_thresh").read_text()) == 1
    except (OSError, ValueError):
        return int(platform.release().partition(".")[0]) >= 6


class OwnSockets:
    """Connections of this process, looked at by descriptor instead of by netlink."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock

    def ident(self, sock: HasFileno | int) -> bytes:
        """A name for this connection that no later one with the same descriptor has.

        Raises:
            InvalidArgument: not a connected TCP socket.
        """
        fd = sock if isinstance(sock, int) else sock.fileno()
        try:
            if _option(fd, socket.IPPROTO_TCP, TCP_INFO, 8)[0] not in (ESTABLISHED, CLOSE_WAIT):
                raise InvalidArgument(f"descriptor {fd} is not a connected TCP socket")
            return _IDENT.pack(fd, cookie(fd))
        except OSError as error:
            raise InvalidArgument(
                f"descriptor {fd} is not a connected TCP socket: {error.strerror}"
            ) from None

    def look(self, idents: Sequence[bytes]) -> list[Snapshot | None]:
        """The connections with *idents* now, in that order; None: closed meanwhile."""
        found: list[Snapshot | None] = []
        for ident in idents:
            fd, wanted = _IDENT.unpack(ident)
            try:
                found.append(look(fd, self._clock) if cookie(fd) == wanted else None)
            except OSError:
                found.append(None)
        return found

    def end(self, ident: bytes, again: Callable[[Snapshot], bool]) -> str:
        """Do what `reaper.attach.closing.Hands.end` does.

        The owner keeps the descriptor, reads an end of file, and closes it.
        """
        fd, _ = _IDENT.unpack(ident)
        try:
            held = os.dup(fd)
        except OSError as error:
            return "gone" if error.errno == errno.EBADF else "unreachable"
        return end(held, ident, again, self._clock)


def end(
    held: int,
    ident: bytes,
    again: Callable[[Snapshot], bool],
    clock: Callable[[], float],
    abort: Callable[[], bool] | None = None,
) -> str:
    """Shut the connection behind *held* down if it is still the one, and still due;
    close *held*.

    Args:
        held: A descriptor that is ours to close.
        ident: Names the connection that is meant.
        again: The final check: told a look, says whether the connection may be closed.
        clock: Seconds, monotonic.
        abort: Called instead of shutdown(2); returns False if the connection has ended.
    Returns:
        "closed", "averted" (by the final check), "gone" or "other": *held* is another
        socket.
    """
    try:
        if cookie(held) != cookie_of(ident):
            return "other"
        seen = look(held, clock)
        if seen is None:
            return "gone"
        if not again(seen):
            return "averted"
        if abort is not None:
            return "closed" if abort() else "gone"
        # One call after the check; the method of a socket object would make five
        # between.
        if _shutdown(held, socket.SHUT_RDWR):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return "closed"
    except OSError as error:
        if error.errno in (
            errno.ENOTCONN,
            errno.EBADF,
            errno.ENOTSOCK,
            errno.EOPNOTSUPP,
            errno.ENOPROTOOPT,
        ):
            return "gone"
        raise
    finally:
        os.close(held)


def asking(seconds: int) -> dict[int, int]:
    """The TCP options by which our kernel asks a peer after *seconds* of silence, and
    asks again.

    If nothing answers, our kernel ends the connection by itself, whether or not anyone
    watches: after `KEEPALIVES` more questions, and by default after 15 retransmissions.
    Both take longer than `Limits.vanished` and what may be added to it, or it would end
    what is not due, and say nothing.
    """
    found = {
        socket.TCP_KEEPIDLE: seconds,
        socket.TCP_KEEPINTVL: max(seconds // 2, 1),
        socket.TCP_KEEPCNT: KEEPALIVES,
    }
    if probes_capped():
        found[TCP_RTO_MAX_MS] = min(seconds * 1000, 120_000)
    return found


def ask(held: int, ident: bytes, seconds: int) -> str:
    """Have the kernel ask the peer of *held*, if it is that of *ident*, after *seconds*
    of silence.

    It asks by keep-alives, which a live peer's kernel answers, and, where ours can
    (Linux 6.15), by probes of a full window as often. It does not use TCP_USER_TIMEOUT,
    which ends a peer whose window is full although that answers each probe.

    Returns:
        "asked" or "other"; *held* is closed.
    """
    try:
        if cookie(held) != cookie_of(ident):
            return "other"
        with socket.socket(fileno=os.dup(held)) as sock:
            for option, value in asking(seconds).items():
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return "asked"
    except OSError:
        return "other"
    finally:
        os.close(held)


@cache
def probes_capped() -> bool:
    """Whether this kernel can be told how far apart its probes of a full window may be.

    Kernels can since Linux 6.15.
    """
    with socket.socket() as sock:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS, 120_000)
        except OSError:
            return False
        return True
