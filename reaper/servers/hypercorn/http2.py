"""HTTP/2 under hypercorn, on asyncio and on trio: each stream of an `H2Protocol` is
judged by itself.

The rule of this module: *hypercorn's fields are read when something has moved*. `guard`
wraps its methods: each calls the method itself, and then looks what the stream waits
for now. Its private fields are read by `Session` and by the wrappers alone. Tried with
hypercorn 0.18.0 and h2 4.4.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from hypercorn.events import Closed, RawData, Updated
from hypercorn.protocol.h2 import H2Protocol, StreamBuffer

from ...policy import Phase
from ..guest import Around
from ..http2.engine import CANCEL, REFUSED_STREAM, Engine, is_shut, tolerant, window_of
from ..http2.waiting import Carrier

SESSION = "_reaper_session"
"""The attribute of an `H2Protocol` that is its `Session`."""

CARRIER = "_reaper_carrier"
"""The attribute of a hypercorn `TCPServer` that makes the `Carrier` of its connection.
Only HTTP/2 needs one.
"""

STOPPED = "_reaper_stopped"
"""The attribute of a hypercorn `WorkerContext` that is the instant of its stop, by the
driver's clock.
"""


def session_of(protocol: Any) -> Session | None:
    """The session of *protocol*, an `H2Protocol`; None if it is not guarded."""
    found: Session | None = getattr(protocol, SESSION, None)
    return found


class Session(Engine):
    """One connection of HTTP/2 under hypercorn.

    Args:
        protocol: Its `H2Protocol`.
        carrier: The connection.
    Attributes:
        working: Calls of `handle` that have not returned.
        turns: Calls of `handle` that have begun.
    """

    def __init__(self, protocol: Any, carrier: Carrier) -> None:
        super().__init__(carrier, protocol.config.h2_max_concurrent_streams)
        self._protocol = protocol
        self._server = protocol.send.__self__
        self.working: int = 0
        self.turns: int = 1
        self.open()

    def works(self) -> int:
        """See the base class."""
        reader = getattr(self._server, "reader", None)
        return self.turns if self.working > 0 or getattr(reader, "_buffer", None) else 0

    def phase_of_stream(self, number: int) -> Phase:
        """See the base class."""
        protocol = self._protocol
        stream, buffer = protocol.streams.get(number), protocol.stream_buffers.get(number)
        if buffer is not None and buffer.buffer and is_shut(protocol.connection, number):
            return Phase.WRITE  # with an open window it is hypercorn's turn, which is busy perhaps
        if stream is None or number not in self.frames.unended:
            return Phase.IN_FLIGHT  # the client has sent all
        answering = getattr(stream.state, "name", "")
        if hasattr(stream, "handshake"):  # a WebSocket
            return Phase.TUNNEL if answering == "CONNECTED" else Phase.IN_FLIGHT
        return Phase.BODY if answering == "REQUEST" else Phase.TUNNEL

    def window_of(self, number: int) -> int:
        """See the base class."""
        return window_of(self._protocol.connection, number)

    def owes(self) -> bool:
        """See the base class. An answer may wait in hypercorn, too."""
        answers = self._protocol.stream_buffers.values()
        # One whose application has failed half-way is never complete.
        given = all(not each.buffer and not each._complete for each in answers)
        return not given or super().owes()

    # ---- ends
    def send(self, data: bytes) -> None:
        """See the base class."""
        self._spawn(self._sent, data)

    def end(self, number: int | None, goaway: bytes) -> None:
        """See the base class; in a task of the connection's."""
        if number is not None:
            tolerant(self._protocol.connection.reset_stream, number, CANCEL)
        self._spawn(self._end, number, goaway)

    def _spawn(self, what: Callable[..., Any], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the tasks of the connection have ended
            self._protocol.task_group.spawn(what, *arguments)

    async def _sent(self, data: bytes) -> None:
        await self._protocol.send(RawData(data=data))

    async def _end(self, number: int | None, goaway: bytes) -> None:
        """Send the bytes that h2 has queued, let hypercorn forget stream *number*, and
        close after a *goaway*.

        hypercorn's own way to close, `Closed`, is not taken: on trio it fails where
        another task is sending, and takes the whole server with it.
        """
        protocol = self._protocol
        await protocol._flush()
        if number is not None:
            if (buffer := protocol.stream_buffers.get(number)) is not None:
                await buffer.close()
            await protocol._close_stream(number)
            await protocol._window_updated(number)  # the sending task then forgets the stream
        if goaway:
            await self._sent(goaway)
            self.carrier.close()


def is_asked(server: Any) -> bool:
    """Whether *server*, a `TCPServer`, is answering a request over HTTP/1."""
    inner = getattr(getattr(server, "protocol", None), "protocol", None)
    theirs = getattr(getattr(inner, "connection", None), "their_state", None)
    return getattr(theirs, "__name__", "IDLE") not in ("IDLE", "CLOSED", "ERROR")


def close(method: Any) -> Any:
    """Close the connection of *server*, a `TCPServer`, which is idle. During a stop, a
    client of HTTP/1 has `drain_idle`: its next request may be on its way. One of HTTP/2
    that still has to take something is sent GOAWAY and waited for, until the end of the
    stop at the latest.

    Args:
        method: hypercorn's `_initiate_server_close`, which this one replaces.
    """

    async def instead(server: Any) -> None:
        session = session_of(getattr(server.protocol, "protocol", None))
        stops = server.context.terminated.is_set() and hasattr(server, CARRIER)
        if session is None and stops:
            await server.context.sleep(getattr(server, CARRIER)().config.timeouts.drain_idle)
            if is_asked(server):
                return  # the answer says that it is the last, and hypercorn closes after it
        if session is None or not stops:
            await method(server)
            return
        if session.leaving or session.owes():
            session.leave()
            grace = server.config.graceful_timeout
            stopped = getattr(server.context, STOPPED, session.carrier.driver.now())
            session.see_off(math.inf if grace is None else stopped + grace)
            return
        await method(server)
        session.carrier.close()  # with TLS asyncio would wait 30 s for the client's goodbye

    return instead


class Judged:
    """What stands for the methods of hypercorn's `H2Protocol` and `StreamBuffer`. Each
    is given the method that it replaces, which it calls, and has the `Session` look at
    what has moved. A connection without a session is served as stock.
    """

    @staticmethod
    def initiate(method: Any) -> Any:
        """Judge the streams of a connection whose `TCPServer` has a `CARRIER`."""

        async def instead(self: Any, *arguments: Any, **options: Any) -> None:
            carrier = getattr(getattr(self.send, "__self__", None), CARRIER, None)
            if carrier is not None:
                setattr(self, SESSION, Session(self, carrier()))
            await method(self, *arguments, **options)

        return instead

    @staticmethod
    def handle(method: Any) -> Any:
        """Bytes have come, or the end: the session looks at them first. Note what
        is waited for once hypercorn has worked on them.
        """

        async def instead(self: Any, event: Any) -> None:
            session: Session | None = getattr(self, SESSION, None)
            if session is None or not isinstance(event, RawData):
                ends = session is not None and isinstance(event, Closed)
                if session is not None and ends:
                    session.over()
                await method(self, event)
                if ends:  # nothing more is sent: applications would wait for that for ever
                    for buffer in list(self.stream_buffers.values()):
                        await buffer.close()
                return
            if session.ended or not session.came(event.data):
                return
            session.working += 1
            session.turns += 1
            try:
                await method(self, event)
            finally:
                session.working -= 1
            session.worked()

        return instead

    @staticmethod
    def handle_events(method: Any) -> Any:
        """Leave out what h2 found on streams that were cancelled in the same bytes."""

        async def instead(self: Any, events: Any) -> None:
            session: Session | None = getattr(self, SESSION, None)
            if session is not None and (idle := session.frames.cancelled):
                events = [event for event in events if getattr(event, "stream_id", 0) not in idle]
            await method(self, events)

        return instead

    @staticmethod
    def create_stream(method: Any) -> Any:
        """A request begins, unless GOAWAY was sent."""

        async def instead(self: Any, request: Any) -> None:
            session: Session | None = getattr(self, SESSION, None)
            number = request.stream_id
            if session is not None and session.leaving:
                tolerant(self.connection.reset_stream, number, REFUSED_STREAM)
                return
            if session is not None and not session.ended:
                session.begin(number)  # now: it may be answered before `handle` returns
            await method(self, request)
            if session is not None and number in self.stream_buffers:
                setattr(self.stream_buffers[number], SESSION, (session, number))
                if number in session.frames.unended:
                    session.look_at(number)

        return instead

    @staticmethod
    def close_stream(method: Any) -> Any:
        """A stream has ended."""

        async def instead(self: Any, number: int) -> None:
            session: Session | None = getattr(self, SESSION, None)
            if session is not None and not session.ended:
                session.finish(number)
            await method(self, number)

        return instead

    @staticmethod
    def stream_send(method: Any) -> Any:
        """A part of an answer is sent: note what its stream waits for."""

        async def instead(self: Any, event: Any) -> None:
            session: Session | None = getattr(self, SESSION, None)
            kind = type(event).__name__
            stops = kind == "StreamClosed" and self.context.terminated.is_set()
            if session is not None and not session.ended and stops:
                # As hypercorn does it, but for h2's own GOAWAY, after which the end of
                # an answer is not sent, nor any frame of the client's understood.
                await self._close_stream(event.stream_id)
                if idle := self.idle:
                    session.leave()
                await self.send(Updated(idle=idle))
                return
            await method(self, event)
            if session is not None:
                if kind == "EndBody":
                    session.answered(event.stream_id)
                if event.stream_id in session.frames.unended:
                    session.look_at(event.stream_id)

        return instead

    @staticmethod
    def pop(method: Any) -> Any:
        """Bytes of an answer are given to h2: its client has made room for them."""

        async def instead(self: Any, most: int) -> bytes:
            data: bytes = await method(self, most)
            session, number = getattr(self, SESSION, (None, 0))
            if session is not None:
                if number in session.streams and (
                    self.buffer or session.streams[number] is not None
                ):
                    session.look_at(number)
                session.sent(number, len(data))
            return data

        return instead


def guard(around: Around) -> None:
    """Wrap hypercorn's `H2Protocol`. Connections whose `TCPServer` has no `CARRIER`
    stay.
    """
    if hasattr(H2Protocol.initiate, "__wrapped__"):
        return  # the other flavour of hypercorn has wrapped it
    around(H2Protocol, "initiate")(Judged.initiate)
    around(H2Protocol, "handle")(Judged.handle)
    around(H2Protocol, "_handle_events")(Judged.handle_events)
    around(H2Protocol, "_create_stream")(Judged.create_stream)
    around(H2Protocol, "_close_stream")(Judged.close_stream)
    around(H2Protocol, "stream_send")(Judged.stream_send)
    around(StreamBuffer, "pop")(Judged.pop)
