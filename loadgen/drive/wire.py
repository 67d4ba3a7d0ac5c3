"""A connection below its protocol: TLS, an upgrade, reading and writing, what the
kernel knows.

One rule: a connection is established, and the judge's clock starts, when TLS and the
upgrade are through.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import struct
from collections.abc import Generator
from dataclasses import dataclass
from functools import cache
from time import monotonic
from typing import TypeAlias

from ..units import BadArgument
from .protocols import Dialect

ALPN = "http/1.1"
GRAIN = 0.01
"""Seconds: the kernel's stamp counts its ticks, of 10 ms at the most."""
CLOSED, CLOSE_WAIT = 7, 8
"""States of a TCP connection that the other side has ended, in linux/tcp_states.h."""
_LAST_ACK_RECEIVED = 56
"""Offset of tcp_info.tcpi_last_ack_recv in linux/tcp.h.

That is how many milliseconds ago the last segment came, a FIN included.
"""


@dataclass(frozen=True)
class Tls:
    """How TLS is spoken. It can be pickled.

    Attributes:
        name: The name that is asked for, and checked.
        ca: The file of authorities to check it against; None for the system's.
        insecure: Whether any certificate will do.
        alpn: The protocol that is offered.
    """

    name: str
    ca: str | None = None
    insecure: bool = False
    alpn: str = ALPN

    @cache  # noqa: B019 - there is one of a process
    def context(self) -> ssl.SSLContext:
        """The context of this process. Raises BadArgument: *ca* holds no
        certificates.
        """
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except OSError as error:  # an SSLError is one
            raise BadArgument(f"--ca {self.ca}: {error}: give a PEM file of certificates") from None
        context.set_alpn_protocols([self.alpn])
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


Opening: TypeAlias = Generator[int, None, tuple[socket.socket, bytes, float]]


def prepare(sock: socket.socket, began: float, tls: Tls | None, dialect: Dialect) -> Opening:
    """Bring a connected *sock* to where its protocol begins.

    Yields the epoll event that it waits for, over and over. *began* is the instant of
    the call to connect: the instant at which that was seen to succeed says nothing,
    because the server had the connection before.

    Returns:
        The socket to go on with (*sock* itself is detached under TLS), what the server
        has already sent, and the earliest instant at which it can have taken the
        connection for ready.

    Raises:
        OSError: the handshake failed, an `ssl.SSLError`, or a ConnectionError that says
            what the server answered. The socket is closed then, and when the generator
            is.
    """
    heard = b""
    last = began
    try:
        if tls is not None:
            wrapped = tls.context().wrap_socket(
                sock, server_hostname=tls.name, do_handshake_on_connect=False
            )
            sock = wrapped
            last = yield from _shake_hands(wrapped)
        if dialect.opening:
            last = monotonic()
            send(sock, dialect.opening)  # a few hundred bytes into an empty buffer
            while not (used := dialect.opened(heard)):
                try:
                    data = receive(sock)
                except BlockingIOError:
                    yield select.EPOLLIN
                    continue
                if not data:
                    raise ConnectionError("closed during the upgrade")
                heard += data
            heard = heard[used:]
    except BaseException:
        sock.close()
        raise
    return sock, heard, last


def _shake_hands(sock: ssl.SSLSocket) -> Generator[int, None, float]:
    """Shake hands; returns when our last message went out.

    That is in the last turn since TLS 1.3, and in the one before it until 1.2.
    """
    turns = [monotonic()]
    while True:
        turns = [turns[-1], monotonic()]
        try:
            sock.do_handshake()
            return turns[sock.version() == "TLSv1.3"]
        except ssl.SSLWantReadError:
            yield select.EPOLLIN
        except ssl.SSLWantWriteError:
            yield select.EPOLLOUT


def receive(sock: socket.socket, most: int = 65536) -> bytes:
    """Read what has come; empty at the end of the stream. Raises BlockingIOError:
    nothing has.
    """
    try:
        return sock.recv(most)
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
        raise BlockingIOError from None


def send(sock: socket.socket, data: bytes) -> int:
    """Send *data*; returns how many bytes were taken. Raises BlockingIOError: none."""
    try:
        return sock.send(data)
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
        raise BlockingIOError from None


def ended(sock: socket.socket) -> bool:
    """Whether the other side has ended the connection, unread bytes before that or
    not.
    """
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in (CLOSED, CLOSE_WAIT)


def waited(fd: int) -> float:
    """For how many seconds, at least, the end of the stream *fd* has been there; 0.0 if
    unknown.

    The peer must have closed the connection with a FIN. Nothing comes after that, so
    the last segment that came is it. Only the kernel's own stamp counts; what it does
    not say stays the reader's guess, to the server's disadvantage.
    """
    try:
        with socket.socket(fileno=os.dup(fd)) as sock:
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LAST_ACK_RECEIVED + 4)
        milliseconds: int = struct.unpack_from("I", info, _LAST_ACK_RECEIVED)[0]
    except (OSError, struct.error):
        return 0.0
    return max(milliseconds / 1000 - GRAIN, 0.0)
