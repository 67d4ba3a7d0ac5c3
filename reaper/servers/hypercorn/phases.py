"""What a connection waits for, read from hypercorn, on asyncio and on trio.

The rule of this module: *what the server knows is read when a connection comes due,
never kept beside it*. Where its private attributes do not say, the connection counts as
in use, and is not closed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from ...asyncio.at_rest import leave_little, take_all
from ...asyncio.closing import bound, close
from ...asyncio.guards import watch as watch_by
from ...asyncio.overload import refuse
from ...asyncio.reaper import AsyncioReaper, reaper_of
from ...asyncio.transports import descriptor_of, is_tls
from ...driver.served import Served, Terms, Wire, tried
from ...policy import Phase
from ..abandoned import link_of
from ..configured import settings
from ..http2.waiting import Carrier
from .application import KNOWN, LINK, stand_around
from .http2 import CARRIER, session_of


class Hypercorn(Served):
    """A connection of hypercorn's, on asyncio and on trio.

    Args:
        terms, uid, wire: As in the base class.
        server: hypercorn's `TCPServer`, one for each connection. It is referred to
            weakly.
    """

    __slots__ = ("_server",)

    def __init__(self, terms: Terms, uid: int, wire: Wire, server: Any) -> None:
        super().__init__(terms, uid, wire)
        self._server: Callable[[], Any] = weakref.ref(server)

    @property
    def server(self) -> Any:
        """The `TCPServer`; None once it is freed."""
        return self._server()

    def phase(self) -> Phase:
        server = self.server
        if self.leaves:
            leave(server)  # its session may have begun since it was told
        return phase_of(server)

    def owes(self) -> bool:
        """As the base class says, over HTTP/1."""
        ours = self.server.protocol.protocol.connection.our_state
        return bool(ours.__name__ == "SEND_RESPONSE")

    def be_last(self) -> None:
        """Over HTTP/1, have the next answer say `Connection: close`: set hypercorn's
        count of requests to the most that it answers on one connection. Over HTTP/2
        tell the client by GOAWAY.
        """
        inner: Any = getattr(getattr(self.server, "protocol", None), "protocol", None)
        if hasattr(inner, "keep_alive_requests") and not hasattr(inner, "streams"):
            inner.keep_alive_requests += inner.config.keep_alive_max_requests
        leave(self.server)


def guarded_run(run: Any) -> Any:
    """Serve the connection of *self*, hypercorn's `TCPServer` on asyncio, guarded. A
    writer that is in memory, as in a test, is left alone: there is no connection.

    Args:
        run: The method of hypercorn's that this one replaces.
    """

    async def serve(self: Any) -> None:
        if not hasattr(self.writer, "transport"):
            await run(self)
            return
        transport = self.writer.transport
        reaper = tried(reaper_of, None, settings)
        if reaper is not None and tried(reaper.welcomes) is False:
            heard = bytes(self.reader._buffer)
            refuse(reaper, transport, http=True, heard=heard, writer=self.writer)
            return
        if reaper is not None:
            tried(_guard, self, reaper)
        gives_back = reaper is not None and reaper.resting is not None
        rests = gives_back and tried(is_tls, transport) is True
        if rests:
            tried(leave_little, self.reader)
        try:
            await run(self)
        finally:
            if rests:
                take_all(self.reader)
            forget(self)

    return serve


def _guard(server: Any, reaper: AsyncioReaper) -> None:
    """Guard the connection of *server*, a `TCPServer`, and its application."""
    transport = server.writer.transport
    watch(server, reaper)
    if reaper.config.timeouts.abandoned and not is_tls(transport):
        setattr(server, LINK, partial(link_of, transport))
    if server.context not in KNOWN:
        stand_around(server, reaper)


def bounded(method: Any) -> Any:
    """Close the connection of *server*, a `TCPServer` on asyncio.

    With TLS asyncio waits 30 s for the client's goodbye. hypercorn waits for asyncio,
    and a stop for hypercorn.

    Args:
        method: hypercorn's `_close`, which this one replaces.
    """

    async def instead(server: Any) -> None:
        if _has_tls(server):
            if not server.writer.transport.is_closing():
                server.writer.close()
            _bound(server)
        await method(server)

    return instead


def bounded_at_a_stop(method: Any) -> Any:
    """As `bounded`, for `_initiate_server_close`, which may leave it open."""

    async def instead(server: Any) -> None:
        await method(server)
        if _has_tls(server) and server.writer.transport.is_closing():
            _bound(server)

    return instead


def _has_tls(server: Any) -> bool:
    """Whether *server* is guarded, and its client speaks TLS."""
    return hasattr(server, CARRIER) and is_tls(server.writer.transport)


def _bound(server: Any) -> None:
    """Bound the goodbye of *server*, whose transport is closed. asyncio forgets a TLS
    transport that is closed twice: nothing would bound its goodbye.
    """
    writer = server.writer
    if writer.close is not _done:
        writer.close = _done
        bound(reaper_of(config=settings), writer.transport, patient=True)


def _done() -> None:
    """Does nothing: the transport is closed already."""


def watch(server: Any, reaper: AsyncioReaper) -> None:
    """Guard the connection that *server*, a `TCPServer` on asyncio, is about to
    serve.
    """
    transport = server.writer.transport

    def made(terms: Terms, uid: int, wire: Wire) -> Hypercorn:
        return Hypercorn(terms, uid, wire, server)

    watch_by(reaper, made, transport, terms=Hypercorn.terms(reaper)).opened(
        heard=bool(server.reader._buffer)
    )
    setattr(server, CARRIER, partial(_carrier, reaper, transport))


def _carrier(reaper: AsyncioReaper, transport: Any) -> Carrier:
    """What the streams of the connection of *transport* need, over HTTP/2."""
    return Carrier(
        reaper.driver,
        reaper.config,
        reaper.sweep,
        partial(descriptor_of, transport),
        partial(close, reaper, transport),
    )


def leave(server: Any) -> None:
    """Tell the client of *server*, a `TCPServer`, by GOAWAY that its connection is too
    old.
    """
    session = session_of(getattr(getattr(server, "protocol", None), "protocol", None))
    if session is not None:
        session.leave()


def forget(server: Any) -> None:
    """The connection of *server*, a `TCPServer`, has ended: stop watching it."""
    session = session_of(getattr(getattr(server, "protocol", None), "protocol", None))
    if session is not None:
        session.over()


def reads(server: Any) -> bool:
    """Whether *server*, a `TCPServer`, waits for bytes. It does not while its queue of
    body pieces for the application is full.
    """
    reader = getattr(server, "reader", None)
    found = server.stream.reading if reader is None else reader._waiter is not None
    return bool(found)


def phase_of(server: Any) -> Phase:
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
        return Phase.HEADERS if inner.connection.trailing_data[0] else Phase.KEEP_ALIVE
    if theirs.__name__ == "SEND_BODY":
        return Phase.BODY if reads(server) else Phase.IN_FLIGHT
    ours = inner.connection.our_state.__name__
    return Phase.IN_FLIGHT if ours in ("SEND_RESPONSE", "SEND_BODY") else Phase.KEEP_ALIVE
