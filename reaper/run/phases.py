"""What a connection waits for, read from a server that nobody can tell: hypercorn, Sanic, tornado,
Twisted.

One rule: *what a server knows is read when a connection comes due, never kept beside it*. The
functions named after a server read its private attributes and return a `Phase`. Where the
attributes do not say, the connection counts as in use, and is not closed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from ..asyncio.closing import close
from ..asyncio.guards import LEAVING
from ..asyncio.overload import refuse
from ..asyncio.reaper import AsyncioReaper, reaper_of
from ..asyncio.transports import descriptor_of
from ..policy import Phase
from ..servers import polled
from ..servers.http2.hypercorn import WATCH, session_of
from ..servers.http2.waiting import Watch
from .report import load


def reaper() -> AsyncioReaper:
    """The reaper of the running loop, configured by REAPER_CONFIG and REAPER_*."""
    return reaper_of(config=load())


def watch(transport: Any, ask: Callable[[Any], Phase]) -> None:
    """Guard the connection of *transport*; *ask* returns its phase."""
    polled.watch(reaper(), transport, ask)


# ---- hypercorn


def watch_hypercorn(server: Any) -> bool:
    """Guard the connection that *server*, hypercorn's `TCPServer` on asyncio, is about to serve.

    False: it is one too many, and has been refused. A writer that is in memory, as in a test, is
    left alone: there is no connection.
    """
    if not hasattr(server.writer, "transport"):
        return True
    if not reaper().welcomes():
        refuse(reaper(), server.writer.transport, http=True, heard=bytes(server.reader._buffer))
        return False
    known = weakref.ref(server)
    transport = server.writer.transport

    def ask(transport: Any) -> Phase:
        serving = known()
        if transport in LEAVING:
            leave(serving)
        return hypercorn(serving)

    watch(transport, ask)
    watching = reaper()
    streams = Watch(
        watching.driver,
        watching.config,
        watching.sweep,
        partial(descriptor_of, transport),
        partial(close, watching, transport),
    )
    setattr(server, WATCH, streams)
    return True


def leave(server: Any) -> None:
    """Tell the client of *server*, a `TCPServer`, by GOAWAY that its connection is too old."""
    session = session_of(getattr(getattr(server, "protocol", None), "protocol", None))
    if session is not None:
        session.leave()


def forget(server: Any) -> None:
    """The connection of *server*, a `TCPServer`, has ended: nothing of it is watched any more."""
    session = session_of(getattr(getattr(server, "protocol", None), "protocol", None))
    if session is not None:
        session.over()


def hypercorn(server: Any) -> Phase:
    """The phase of the connection of *server*, a `TCPServer` on asyncio or on trio."""
    inner = getattr(getattr(server, "protocol", None), "protocol", None)
    if inner is None:
        return Phase.KEEP_ALIVE  # no byte has come yet
    if hasattr(inner, "streams"):  # HTTP/2
        if session_of(inner):  # which knows the limits
            return Phase.IN_FLIGHT if inner.streams else Phase.IDLE
        return Phase.IN_FLIGHT if inner.streams else Phase.KEEP_ALIVE
    theirs = getattr(inner.connection, "their_state", None)
    if theirs is None:  # a WebSocket: it is a tunnel once the handshake is over
        state = getattr(getattr(inner.stream, "state", None), "name", "")
        return Phase.TUNNEL if state == "CONNECTED" else Phase.IN_FLIGHT
    if theirs.__name__ == "IDLE":
        return Phase.KEEP_ALIVE
    if theirs.__name__ == "SEND_BODY":
        return Phase.BODY
    ours = inner.connection.our_state.__name__
    return Phase.IN_FLIGHT if ours in ("SEND_RESPONSE", "SEND_BODY") else Phase.KEEP_ALIVE


# ---- Sanic


def sanic(transport: Any) -> Phase:
    """The phase of the connection of *transport*, which serves Sanic's `HttpProtocol`."""
    protocol = transport.get_protocol()
    if getattr(protocol, "websocket", None) is not None:
        return Phase.TUNNEL
    http: Any = getattr(protocol, "_http", None)
    stage = getattr(getattr(http, "stage", None), "name", "")
    if stage in ("IDLE", "REQUEST"):
        return Phase.KEEP_ALIVE
    wanted = stage == "HANDLER" and http.request_body and not http.recv_buffer
    return Phase.BODY if wanted else Phase.IN_FLIGHT


# ---- servers whose connections have no transport of asyncio's


class Face(polled.Face):
    """Stands for the transport of asyncio's that a server does not have.

    Args:
        whose: What the server has instead. It holds this object, which holds it weakly.
        socket: The connection's.
    """

    def __init__(self, whose: Any, socket: Any) -> None:
        self._known = {"socket": socket}
        with suppress(OSError):
            self._known["peername"] = socket.getpeername()
        self._whose = weakref.ref(whose)

    @property
    def whose(self) -> Any:
        """The server's object; None once it is freed. Nothing but `known` is asked after that."""
        return self._whose()

    def known(self) -> dict[str, Any]:
        """The socket and its peer; nothing once the server's object is freed."""
        return {} if self.whose is None else self._known


class TornadoFace(Face):
    """Stands for the transport of a tornado `IOStream`."""

    def is_closing(self) -> bool:
        return bool(self.whose.closed())

    def get_write_buffer_size(self) -> int:
        return len(self.whose._write_buffer or b"")  # None once the stream is closed

    def close(self) -> None:
        self.whose.close()

    abort = close


class TwistedFace(Face):
    """Stands for the transport of a `twisted.internet.tcp.Server`."""

    def is_closing(self) -> bool:
        return not self.whose.connected or bool(self.whose.disconnecting)

    def get_write_buffer_size(self) -> int:
        return len(self.whose.dataBuffer) + int(self.whose._tempDataLen)

    def close(self) -> None:
        self.whose.loseConnection()

    def abort(self) -> None:
        self.whose.abortConnection()


def note_tornado(conn: Any, stream: Any) -> None:
    """Guard *stream*, a tornado `IOStream`, from its first request on.

    Args:
        conn: The `HTTP1Connection` that serves the next request; tornado makes one per request.
    """
    stream._reaper_conn = conn
    if hasattr(stream, "_reaper_face"):
        return
    stream._reaper_face = TornadoFace(stream, stream.socket)
    watch(stream._reaper_face, tornado)


def tornado(face: Any) -> Phase:
    """The phase of the connection of *face*, a `TornadoFace`."""
    conn = face.whose._reaper_conn
    if conn.stream is None:  # detached: a WebSocket's, or the application's
        return Phase.TUNNEL
    if conn._request_start_line is None:
        return Phase.KEEP_ALIVE
    if not conn._read_finished:
        return Phase.BODY
    return Phase.KEEP_ALIVE if conn._write_finished else Phase.IN_FLIGHT


def watch_twisted(transport: Any) -> None:
    """Guard the connection of *transport*, a `twisted.internet.tcp.Server` on an asyncio loop."""
    transport._reaper_face = TwistedFace(transport, transport.getHandle())
    watch(transport._reaper_face, twisted)


def twisted(face: Any) -> Phase:
    """The phase of the connection of *face*, a `TwistedFace`; in use if it does not speak HTTP."""
    protocol = getattr(face.whose, "protocol", None)
    channel = getattr(protocol, "_channel", None)
    if channel is None:
        opened = getattr(protocol, "state", None) == getattr(protocol, "STATE_OPEN", 3)
        return (
            Phase.TUNNEL if opened and hasattr(protocol, "websocket_version") else Phase.IN_FLIGHT
        )
    requests = getattr(channel, "requests", None)
    if requests is None:
        return Phase.IN_FLIGHT  # HTTP/2
    if not requests:
        return Phase.KEEP_ALIVE
    if channel._handlingRequest:
        return Phase.IN_FLIGHT
    # A request has begun: without a decoder its headers are read, with one its body.
    return Phase.KEEP_ALIVE if channel._transferDecoder is None else Phase.BODY
