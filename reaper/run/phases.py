"""How a server without a door for reaper is asked whose turn it is: hypercorn, Sanic, tornado, Twisted.

One rule: *what a server knows is read when a connection comes due, never kept beside it*. The names that are read are
in the table of `servers`. Where one of them does not say, the connection counts as in use, and stays.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from ..asyncio.reaper import AsyncioReaper, reaper_of
from ..policy import Phase
from ..servers import polled
from .report import load


def reaper() -> AsyncioReaper:
    """The running loop's, by what REAPER_CONFIG and REAPER_* say."""
    return reaper_of(config=load())


def watch(transport: Any, ask: Callable[[Any], Phase]) -> None:
    """Guard the connection of *transport*, which *ask* says the phase of."""
    polled.watch(reaper(), transport, ask)


# ---- hypercorn -----------------------------------------------------------------------------------------------------


def watch_hypercorn(server: Any) -> None:
    """Guard the connection that *server*, a `TCPServer` on asyncio, is about to serve."""
    known = weakref.ref(server)
    watch(server.writer.transport, lambda transport: hypercorn(known()))


def hypercorn(server: Any) -> Phase:
    """What the connection of *server* waits for; of either flavour."""
    inner = getattr(getattr(server, "protocol", None), "protocol", None)
    if inner is None:
        return Phase.KEEP_ALIVE  # its first byte is awaited
    if hasattr(inner, "streams"):  # HTTP/2
        return Phase.IN_FLIGHT if inner.streams else Phase.KEEP_ALIVE
    theirs = getattr(inner.connection, "their_state", None)
    if theirs is None:  # a WebSocket, from its request on: it is a tunnel when it is open
        state = getattr(getattr(inner.stream, "state", None), "name", "")
        return Phase.TUNNEL if state == "CONNECTED" else Phase.IN_FLIGHT
    if theirs.__name__ == "IDLE":
        return Phase.KEEP_ALIVE
    if theirs.__name__ == "SEND_BODY":
        return Phase.BODY
    ours = inner.connection.our_state.__name__
    return Phase.IN_FLIGHT if ours in ("SEND_RESPONSE", "SEND_BODY") else Phase.KEEP_ALIVE


# ---- Sanic ---------------------------------------------------------------------------------------------------------


def sanic(transport: Any) -> Phase:
    """What the connection of Sanic's *transport* waits for."""
    protocol = transport.get_protocol()
    if getattr(protocol, "websocket", None) is not None:
        return Phase.TUNNEL
    http: Any = getattr(protocol, "_http", None)
    stage = getattr(getattr(http, "stage", None), "name", "")
    if stage in ("IDLE", "REQUEST"):
        return Phase.KEEP_ALIVE
    wanted = stage == "HANDLER" and http.request_body and not http.recv_buffer
    return Phase.BODY if wanted else Phase.IN_FLIGHT


# ---- servers whose connections have no transport of asyncio's ------------------------------------------------------


class Face:
    """What a guard needs of a transport, over the object that a server has in its place.

    It belongs to that object, and goes with it.

    Args:
        whose: The object.
        socket: Its socket.
        buffered: How many bytes of it are still to be sent.
        closing: Whether it is being closed.
        close, abort: Closes it, what is buffered first, or at once.
    """

    __slots__ = ("__weakref__", "_abort", "_buffered", "_close", "_closing", "_peer", "_socket", "_whose")

    def __init__(
        self,
        whose: Any,
        socket: Any,
        *,
        buffered: Callable[[Any], int],
        closing: Callable[[Any], bool],
        close: Callable[[Any], object],
        abort: Callable[[Any], object],
    ) -> None:
        self._whose = weakref.ref(whose)
        self._socket = weakref.ref(socket)
        self._buffered, self._closing, self._close, self._abort = buffered, closing, close, abort
        try:
            self._peer = socket.getpeername()
        except OSError:
            self._peer = None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """`socket`, `peername`; nothing else is known."""
        return {"socket": self._socket(), "peername": self._peer}.get(name, default)

    def is_closing(self) -> bool:
        """Whether it is closed, or will be."""
        whose = self._whose()
        return whose is None or bool(self._closing(whose))

    def is_reading(self) -> bool:
        """It is not known to have stopped."""
        return True

    def get_write_buffer_size(self) -> int:
        """Bytes that the kernel has not taken."""
        whose = self._whose()
        return 0 if whose is None else int(self._buffered(whose))

    def get_protocol(self) -> Any:
        """The object that it stands for; None: it is no more."""
        return self._whose()

    def close(self) -> None:
        """What is buffered still goes out."""
        if (whose := self._whose()) is not None:
            self._close(whose)

    def abort(self) -> None:
        """At once."""
        if (whose := self._whose()) is not None:
            self._abort(whose)


def note_tornado(conn: Any, stream: Any) -> None:
    """*conn*, an `HTTP1Connection`, serves the next request of *stream*, an `IOStream`; guard it from its first on."""
    if hasattr(stream, "_reaper_face"):
        stream._reaper_conn = conn
        return
    stream._reaper_conn = conn
    closed = type(stream).close
    face = Face(
        stream,
        stream.socket,
        buffered=lambda stream: len(stream._write_buffer or b""),  # None once it is closed
        closing=lambda stream: stream.closed(),
        close=closed,
        abort=closed,
    )
    stream._reaper_face = face
    watch(face, tornado)


def tornado(face: Any) -> Phase:
    """What the connection of *face* waits for."""
    stream = face.get_protocol()
    conn = None if stream is None else stream._reaper_conn
    if conn is None:
        return Phase.IN_FLIGHT
    if conn.stream is None:  # detached: a WebSocket's, or the application's
        return Phase.TUNNEL
    if conn._request_start_line is None:
        return Phase.KEEP_ALIVE
    if not conn._read_finished:
        return Phase.BODY
    return Phase.KEEP_ALIVE if conn._write_finished else Phase.IN_FLIGHT


def watch_twisted(transport: Any) -> None:
    """Guard the connection of *transport*, a `twisted.internet.tcp.Server` on an asyncio loop, if it speaks HTTP."""
    face = Face(
        transport,
        transport.getHandle(),
        buffered=lambda transport: len(transport.dataBuffer) + transport._tempDataLen,
        closing=lambda transport: not transport.connected or transport.disconnecting,
        close=lambda transport: transport.loseConnection(),
        abort=lambda transport: transport.abortConnection(),
    )
    transport._reaper_face = face
    watch(face, twisted)


def twisted(face: Any) -> Phase:
    """What the connection of *face* waits for; what does not speak HTTP counts as in use."""
    transport = face.get_protocol()
    protocol = getattr(transport, "protocol", None)
    channel = getattr(protocol, "_channel", None)
    if channel is None:
        opened = getattr(protocol, "state", None) == getattr(protocol, "STATE_OPEN", 3)
        return Phase.TUNNEL if opened and hasattr(protocol, "websocket_version") else Phase.IN_FLIGHT
    requests = getattr(channel, "requests", None)
    if requests is None:
        return Phase.IN_FLIGHT  # HTTP/2
    if not requests:
        return Phase.KEEP_ALIVE
    if channel._handlingRequest:
        return Phase.IN_FLIGHT
    return Phase.KEEP_ALIVE if channel._transferDecoder is None else Phase.BODY  # its headers, or its body
