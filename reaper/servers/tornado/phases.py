"""What a connection waits for, read from tornado.

The rule of this module: *what the server knows is read when a connection comes due,
never kept beside it*. Where its private attributes do not say, the connection counts as
in use, and is not closed.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from ...asyncio.reaper import reaper_of
from ...core.slices import walk
from ...driver.served import Served, Wire, watch
from ...driver.sockets import reset_on_close
from ...policy import Phase
from ..configured import settings

LOOK = 0.05
"""Seconds between two looks whether a server that stops has a connection left."""


class StreamWire(Wire):
    """A tornado `IOStream`, which refers to this object, and which this one refers to
    weakly.
    """

    __slots__ = ("_socket", "_wake")

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._socket = stream.socket
        self._wake: Callable[[], None] | None = None

    def socket(self) -> Any:
        return None if self._whose() is None else self._socket

    @property
    def is_open(self) -> bool:
        stream = self._whose()
        return stream is not None and not stream.closed()

    def buffered(self) -> int:
        stream = self._whose()
        # None once the stream is closed
        return 0 if stream is None else len(stream._write_buffer or b"")

    def write(self, data: bytes) -> None:
        self._whose().write(data)

    def close(self, says: bytes) -> None:
        if (stream := self._whose()) is not None:
            if says and not stream.closed():
                stream.write(says)
            self.shut()
            stream.close()

    def reset(self) -> None:
        if (stream := self._whose()) is not None:
            reset_on_close(self._socket)
            stream.close()

    def wakes(self, served: Served) -> bool:
        stream = self._whose()
        # Once, and it stays: to set and delete an attribute of the stream for each
        # request costs more than a call for each read.
        if "read_from_fd" not in vars(stream):
            stream.read_from_fd = self._read
        self._wake = served.waker()
        return True

    def _read(self, buffer: Any) -> Any:
        stream = self._whose()
        count = type(stream).read_from_fd(stream, buffer)
        if count and (wake := self._wake) is not None:
            self._wake = None
            wake()
        return count


class Tornado(Served):
    """A connection of tornado's."""

    __slots__ = ()

    wire: StreamWire

    @property
    def conn(self) -> Any:
        """The `HTTP1Connection` that serves the next request; tornado makes one for
        each.
        """
        return self.wire.whose._reaper_conn

    def phase(self) -> Phase:
        conn = self.conn
        if conn.stream is None:  # detached: a WebSocket's, or the application's
            return Phase.TUNNEL
        if conn._request_start_line is None or (conn._read_finished and conn._write_finished):
            return Phase.HEADERS if self.wire.whose._read_buffer else Phase.KEEP_ALIVE
        return Phase.IN_FLIGHT if conn._read_finished else Phase.BODY

    def owes(self) -> bool:
        return self.conn._response_start_line is None

    def be_last(self) -> None:
        _ends(self.conn)


def note(conn: Any, stream: Any) -> None:
    """Guard *stream*, a tornado `IOStream`, from its first request on.

    Args:
        conn: The `HTTP1Connection` that serves the next request; tornado makes one per
            request.
    """
    stream._reaper_conn = conn
    if hasattr(stream, "_reaper_served"):
        if stream._reaper_served.leaves:
            _ends(conn)
        return
    terms = Tornado.terms(reaper_of(config=settings))
    stream._reaper_served = served = watch(terms, Tornado, StreamWire(stream))
    served.opened()


def connections(server: Any) -> Collection[Any]:
    """The connections of *server*, a `TCPServer`, that speak HTTP."""
    found: Collection[Any] = getattr(server, "_connections", ())
    return found


def tell_last(server: Any) -> None:
    """Have each connection of *server* end with its next answer, which says so."""

    def tell(connection: Any) -> None:
        served = getattr(connection.stream, "_reaper_served", None)
        if served is not None:
            served.tell_last()

    with suppress(RuntimeError):  # without a loop nothing is answered any more
        walk(asyncio.get_running_loop().call_soon, connections(server), tell)


async def rest(server: Any, seconds: float) -> None:
    """Wait until *server* has no connection left, for *seconds* at most."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while connections(server) and loop.time() < end:
        await asyncio.sleep(LOOK)


def _ends(conn: Any) -> None:
    """Have *conn*, an `HTTP1Connection`, end the connection with its answer, if that
    has not begun. It gets parameters of its own, because the whole server shares one
    set.
    """
    conn.params = copy.copy(conn.params)
    conn.params.no_keep_alive = True
    if conn._request_start_line is not None and conn._response_start_line is None:
        conn._disconnect_on_finish = True
