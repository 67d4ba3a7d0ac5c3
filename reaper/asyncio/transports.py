"""What the kernel and the loop know about a transport.

The rule of this module: *it asks and answers; it never waits*, and a transport that is
gone answers like one that is idle. Progress is what the peer has acknowledged, not what
was written, because a write only fills a buffer.
"""

from __future__ import annotations

import socket
from asyncio.trsock import TransportSocket
from typing import Any

from ..driver import sockets
from ..driver.sockets import TcpInfo


def socket_of(transport: Any) -> Any:
    """The socket below *transport* (a transport, a `StreamWriter`, a socket); None if
    there is none.
    """
    if hasattr(transport, "getsockopt"):  # a socket, or asyncio's view of one
        return transport
    ask = getattr(transport, "get_extra_info", None)
    try:
        return None if ask is None else ask("socket")
    except AttributeError:  # as in `buffered`
        return None


def descriptor_of(transport: Any) -> int:
    """Its descriptor; -1 if there is none, or it is closed."""
    found = socket_of(transport)
    return -1 if found is None else int(found.fileno())


def own_socket(transport: Any) -> Any:
    """Its socket object where that is the interpreter's own; None if there is none, as
    of a transport of uvloop's, whose sockets make one for each question.
    """
    found = socket_of(transport)
    if isinstance(found, TransportSocket):
        # asyncio's view of it hands each question on by a call in Python.
        found = getattr(found, "_sock", found)
    return found if isinstance(found, TransportSocket | socket.socket) else None


def is_unix(transport: Any) -> bool:
    """Whether it is a UNIX socket's."""
    found = socket_of(transport)
    return found is not None and found.family == socket.AF_UNIX


def peer_has_shut(transport: Any) -> bool:
    """Whether the peer has said that it will send no more; False also if the kernel
    does not say, or it is closed.
    """
    found = socket_of(transport)
    return found is not None and sockets.peer_has_shut(found)


def tcp_info(transport: Any) -> TcpInfo | None:
    """What TCP knows of *transport*; None if it is no TCP, it is gone, or the kernel
    does not say.
    """
    found = socket_of(transport)
    return None if found is None else sockets.tcp_info(found)


def queued(transport: Any) -> int:
    """Bytes written that the peer has not acknowledged: those in the transport's buffer
    and those in the kernel's.
    """
    descriptor = descriptor_of(transport)
    return buffered(transport) + (sockets.queued(descriptor) if descriptor >= 0 else 0)


def buffered(transport: Any) -> int:
    """Bytes written that the kernel has not taken."""
    try:
        return int(transport.get_write_buffer_size())
    except AttributeError:  # with TLS, closed twice: asyncio has let go of what it held
        return 0


def protocol_of(transport: Any) -> Any:
    """The protocol that *transport* calls by now; None if it is gone."""
    try:
        return transport.get_protocol()
    except AttributeError:  # as in `buffered`
        return None


class Progress:
    """How many bytes a peer takes.

    Args:
        transport: Whose peer; of other sockets than TCP's only the shrinking of the
            queue can be seen.
    Attributes:
        hidden: Bytes that it may have read by now without our seeing it:
            `TcpInfo.hidden`, as of the last look.
    """

    __slots__ = ("_acknowledged", "_queued", "_transport", "hidden")

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        info = tcp_info(transport)
        self._acknowledged = None if info is None else info.acknowledged
        self.hidden: int = 0 if info is None else info.hidden
        self._queued = queued(transport)

    def taken(self) -> int:
        """Bytes it has taken since this was last asked."""
        before, self._queued = self._queued, queued(self._transport)
        info = None if self._acknowledged is None else tcp_info(self._transport)
        if info is None or self._acknowledged is None:
            return max(before - self._queued, 0)
        count, self._acknowledged = info.acknowledged - self._acknowledged, info.acknowledged
        self.hidden = info.hidden
        return count


def is_tls(transport: Any) -> bool:
    """Whether there is TLS on it."""
    try:
        return transport.get_extra_info("sslcontext") is not None
    except AttributeError:  # as in `buffered`: it was TLS
        return True
