"""How a server without a door for reaper is asked whose turn it is: hypercorn, Sanic, tornado,
Twisted.

One rule: *what a server knows is read when a connection comes due, never kept beside it*. The names
that are read are in the table of `servers`. Where one of them does not say, the connection counts
as in use, and stays.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
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


# ---- hypercorn
# -----------------------------------------------------------------------------------------------------


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


# ---- Sanic
# ---------------------------------------------------------------------------------------------------------


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


# ---- servers whose connections have no transport of asyncio's
# ------------------------------------------------------


class Face(polled.Face):
    """Over the object that a server has in a transport's place. It belongs to that object, and goes
    with it.
    """

    def __init__(self, whose: Any, socket: Any) -> None:
        self._known = {"socket": socket}
        with suppress(OSError):
            self._known["peername"] = socket.getpeername()
        self._whose = weakref.ref(whose)

    @property
    def whose(self) -> Any:
        """The object. Only what is closed is held longer than that, and asked no more than whether
        it has a socket.
        """
        return self._whose()

    def known(self) -> dict[str, Any]:
        """An object that is no more has no socket."""
        return {} if self.whose is None else self._known


class TornadoFace(Face):
    """Over an `IOStream`."""

    def is_closing(self) -> bool:
        return bool(self.whose.closed())

    def get_write_buffer_size(self) -> int:
        return len(self.whose._write_buffer or b"")  # None once it is closed

    def close(self) -> None:
        self.whose.close()

    abort = close


class TwistedFace(Face):
    """Over a `twisted.internet.tcp.Server`."""

    def is_closing(self) -> bool:
        return not self.whose.connected or bool(self.whose.disconnecting)

    def get_write_buffer_size(self) -> int:
        return len(self.whose.dataBuffer) + int(self.whose._tempDataLen)

    def close(self) -> None:
        self.whose.loseConnection()

    def abort(self) -> None:
        self.whose.abortConnection()


def note_tornado(conn: Any, stream: Any) -> None:
    """*conn*, an `HTTP1Connection`, serves the next request of *stream*, an `IOStream`; guard it
    from its first on.
    """
    stream._reaper_conn = conn
    if hasattr(stream, "_reaper_face"):
        return
    stream._reaper_face = TornadoFace(stream, stream.socket)
    watch(stream._reaper_face, tornado)


def tornado(face: Any) -> Phase:
    """What the connection of *face* waits for."""
    conn = face.whose._reaper_conn
    if conn.stream is None:  # detached: a WebSocket's, or the application's
        return Phase.TUNNEL
    if conn._request_start_line is None:
        return Phase.KEEP_ALIVE
    if not conn._read_finished:
        return Phase.BODY
    return Phase.KEEP_ALIVE if conn._write_finished else Phase.IN_FLIGHT


def watch_twisted(transport: Any) -> None:
    """Guard the connection of *transport*, a `twisted.internet.tcp.Server` on an asyncio loop, if
    it speaks HTTP.
    """
    transport._reaper_face = TwistedFace(transport, transport.getHandle())
    watch(transport._reaper_face, twisted)


def twisted(face: Any) -> Phase:
    """What the connection of *face* waits for; what does not speak HTTP counts as in use."""
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
    return (
        Phase.KEEP_ALIVE if channel._transferDecoder is None else Phase.BODY
    )  # its headers, or its body
