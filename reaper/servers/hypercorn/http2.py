"""HTTP/2 under hypercorn, on asyncio and on trio: its `H2Protocol` is told apart by stream.

The rule of this module: *what hypercorn knows is read from it when something has moved*. Its
methods are wrapped by `guard`; each calls the method itself, and then looks what the stream waits
for now. Its private fields are read by `Session` and by the wrappers alone. Tried with hypercorn
0.18.0 and h2 4.4.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ...driver.sockets import peer_name, queued
from ...policy import Phase
from ...policy.reasons import FLOOD
from ..guest import Around
from ..http2.connection import ENHANCE_YOUR_CALM, NO_ERROR, REFUSED_STREAM, Connection, tolerant
from ..http2.floods import BOUNDED, Budget, cancelled_at_once
from ..http2.frames import PREFACE
from ..http2.leaving import Leaving
from ..http2.waiting import Watch

SESSION = "_reaper_session"
"""The attribute of an `H2Protocol` that is its `Session`."""

WATCH = "_reaper_watch"
"""The attribute of a hypercorn `TCPServer` that says who watches its connection: a `Watch`."""

STOPPED = "_reaper_stopped"
"""The attribute of a hypercorn `WorkerContext` that is the instant of its stop, by the driver's clock."""

FIRST_LOOK = 0.05
"""Seconds until a connection that is to end is first looked at again; then twice as long, up to a
tick.
"""


def session_of(protocol: Any) -> Session | None:
    """The session of *protocol*, an `H2Protocol`; None if it is not guarded."""
    found: Session | None = getattr(protocol, SESSION, None)
    return found


class Session(Connection):
    """One connection of HTTP/2 under hypercorn.

    Args:
        protocol: Its `H2Protocol`.
        watch: Who watches it.
    Attributes:
        budget: What its client may send that moves nothing.
        working: Calls of `handle` that have not returned.
        turns: Calls of `handle` that have begun.
        leaving: Whether GOAWAY was sent: no further stream is begun.
    """

    def __init__(self, protocol: Any, watch: Watch) -> None:
        super().__init__(protocol.connection, watch)
        self._protocol = protocol
        self._server = protocol.send.__self__
        self.budget: Budget = Budget(watch.driver.now)
        self.working: int = 0
        self.turns: int = 1
        self.leaving: bool = False
        self._heard = False
        self._idle = self.waiting(Phase.FIRST_BYTE, "", self._close)
        self._block = self.waiting(Phase.IN_FLIGHT, "", self._close)

    def works(self) -> int:
        """As the base says."""
        reader = getattr(self._server, "reader", None)
        return self.turns if self.working > 0 or getattr(reader, "_buffer", None) else 0

    # ---- what it waits for
    def look(self) -> None:
        """Note what the connection waits for now, but for its streams."""
        incoming = self.connection.incoming_buffer
        if not self._heard and not incoming._preamble_len:
            self._heard = True
        begun = incoming._preamble_len < len(PREFACE)
        preface = begun and not self._heard
        headers = self.in_block() or preface
        self._block.enter(Phase.HEADERS if headers else Phase.IN_FLIGHT)
        if self.streams or headers:
            self._idle.enter(Phase.IN_FLIGHT)
        elif self._heard:
            self._idle.enter(Phase.KEEP_ALIVE)

    def phase_of(self, number: int) -> Phase:
        protocol = self._protocol
        stream, buffer = protocol.streams.get(number), protocol.stream_buffers.get(number)
        if buffer is not None and buffer.buffer and self.is_shut(number):
            return Phase.WRITE  # with an open window it is hypercorn's turn, which is busy perhaps
        known = protocol.connection.streams.get(number)
        state = getattr(getattr(known, "state_machine", None), "state", None)
        if stream is None or getattr(state, "name", "") not in ("OPEN", "HALF_CLOSED_LOCAL"):
            return Phase.IN_FLIGHT  # the client has sent all
        answering = getattr(stream.state, "name", "")
        if hasattr(stream, "handshake"):  # a WebSocket
            return Phase.TUNNEL if answering == "CONNECTED" else Phase.IN_FLIGHT
        return Phase.BODY if answering == "REQUEST" else Phase.TUNNEL

    # ---- what moves
    def came(self, events: Sequence[Any]) -> bool:
        """Note what has come; returns whether the client may send so many frames of no use."""
        useless = 0
        # A request may bring its priority, as those of browsers do: that is no frame of its own.
        tied = {id(getattr(event, "priority_updated", None)) for event in events}
        for event in events:
            kind = type(event).__name__
            useless += kind in BOUNDED and id(event) not in tied
            if kind == "DataReceived":
                useless += not event.data and event.stream_ended is None
                self.budget.move(bool(event.data))
                if event.stream_id in self.streams:
                    self.streams[event.stream_id].moved(received=len(event.data))
        return not useless or self.budget.spend(useless)

    def answered(self, number: int) -> None:
        """All of the answer on stream *number* has been given, unless the stream was reset."""
        if number in self.streams:
            self.budget.earn()

    # ---- ends
    def over(self) -> None:
        """The connection has ended."""
        super().over()
        self._idle.over()
        self._block.over()

    def leave(self) -> None:
        """Tell the client by GOAWAY that no further stream is taken. What is open is answered."""
        if not self.leaving:
            self._spawn(self.say_goodbye)

    async def taken(self) -> None:
        """Wait until the client, which was told GOAWAY, has closed the connection, as `Leaving` says;
        not beyond the end of hypercorn's stop.

        Returns at once if nothing was answered during the stop, and all is taken.
        """
        now, context = self.watch.driver.now, self._protocol.context
        if self._owes():
            await self.say_goodbye()
        elif not self.leaving:
            return
        grace = self._protocol.config.graceful_timeout
        end = getattr(context, STOPPED, now()) + (math.inf if grace is None else grace)
        leaving, pause = Leaving(self.watch.config.timeouts.drain_idle, end), FIRST_LOOK
        while not self.ended and (left := leaving.seconds(self._owes(), now())):
            await context.sleep(min(pause, left))
            pause = min(2 * pause, self.watch.config.reaper.tick)

    def _owes(self) -> bool:
        """Whether something that was answered has yet to be taken."""
        answers = self._protocol.stream_buffers.values()
        # One whose application has failed half-way is never complete.
        given = all(not each.buffer and not each._complete for each in answers)
        return not given or queued(self.watch.descriptor()) > 0

    def give_up(self) -> None:
        """End the connection at once: its client sends too many frames that move nothing."""
        if self._idle.policy is not None:
            name = peer_name(self.watch.descriptor()) or "a client"
            self.watch.driver.books.reaped(self._idle.lease, name, FLOOD, None)
            self._close(FLOOD, ENHANCE_YOUR_CALM)

    def _spawn(self, what: Callable[..., Any], *arguments: Any) -> None:
        with suppress(RuntimeError):  # the tasks of the connection have ended
            self._protocol.task_group.spawn(what, *arguments)

    def _close(self, _reason: str, code: int = NO_ERROR) -> None:
        """End the connection. h2 takes no frame from now on: GOAWAY names the last stream."""
        self.over()
        tolerant(self.connection.close_connection, code)
        self._spawn(self._end)

    def end(self, number: int, last: bool) -> None:
        """As the base says, in a task of the connection's."""
        self._spawn(self._end, number, last)

    async def _end(self, number: int | None = None, last: bool = True) -> None:
        """Send what h2 has made, let hypercorn forget stream *number*, and close after the *last*.

        hypercorn's own way to close, `Closed`, is not taken: on trio it fails where another task is
        sending, and takes the whole server with it.
        """
        protocol = self._protocol
        await protocol._flush()
        if number is not None:
            if (buffer := protocol.stream_buffers.get(number)) is not None:
                await buffer.close()
            await protocol._close_stream(number)
            await protocol._window_updated(number)  # the sending task then forgets the stream
        if last:
            self.watch.close()

    async def say_goodbye(self) -> None:
        """As `leave`; returns when GOAWAY is sent."""
        from hypercorn.events import RawData

        if self.leaving:
            return
        self.leaving = True
        # Written by hand: after its own GOAWAY, h2 would send no answer to what is open.
        last = self.connection.highest_inbound_stream_id
        payload = last.to_bytes(4, "big") + NO_ERROR.to_bytes(4, "big")
        head = len(payload).to_bytes(3, "big") + bytes((7, 0)) + bytes(4)
        await self._protocol.send(RawData(data=head + payload))


async def close(method: Any, server: Any) -> None:
    """Close the connection of *server*, a `TCPServer`, which is idle.

    Args:
        method: hypercorn's `_initiate_server_close`, which this one replaces.
    """
    session = session_of(getattr(server.protocol, "protocol", None))
    if session is None or not server.context.terminated.is_set():
        await method(server)
        return
    await session.taken()
    await method(server)
    session.watch.close()  # with TLS asyncio would wait 30 s for the client's goodbye


def guard(around: Around) -> None:
    """Wrap hypercorn's `H2Protocol`. Connections whose `TCPServer` has no `WATCH` stay."""
    from hypercorn.events import Closed, RawData, Updated
    from hypercorn.protocol.h2 import H2Protocol, StreamBuffer

    if hasattr(H2Protocol.initiate, "__wrapped__"):
        return  # the other flavour of hypercorn has wrapped it

    @around(H2Protocol, "initiate")
    async def initiate(method: Any, self: Any, *arguments: Any, **options: Any) -> None:
        watch = getattr(getattr(self.send, "__self__", None), WATCH, None)
        if watch is not None:
            setattr(self, SESSION, Session(self, watch))
        await method(self, *arguments, **options)
        if (session := session_of(self)) is not None:
            session.look()

    @around(H2Protocol, "handle")
    async def handle(method: Any, self: Any, event: Any) -> None:
        session = session_of(self)
        if session is None or not isinstance(event, RawData):
            if session is not None and isinstance(event, Closed):
                session.over()
            await method(self, event)
            return
        if session.ended:
            return
        session.working += 1
        session.turns += 1
        try:
            await method(self, event)
        finally:
            session.working -= 1
        if not session.ended:
            session.received(len(event.data))
            session.look()

    @around(H2Protocol, "_handle_events")
    async def handle_events(method: Any, self: Any, events: Any) -> None:
        session = session_of(self)
        if session is not None and not session.came(events):
            session.give_up()
            return
        if session is not None and (idle := cancelled_at_once(events)):
            events = [event for event in events if getattr(event, "stream_id", 0) not in idle]
        await method(self, events)
        if session is not None:
            for number in {getattr(event, "stream_id", None) for event in events}:
                if number is not None:
                    session.look_at(number)

    @around(H2Protocol, "_create_stream")
    async def create_stream(method: Any, self: Any, request: Any) -> None:
        session = session_of(self)
        if session is not None and session.leaving:
            tolerant(self.connection.reset_stream, request.stream_id, REFUSED_STREAM)
            return
        if session is not None and not session.ended:
            session.begin(request.stream_id)
            session.look()  # now: it may be answered before `handle` returns
        await method(self, request)
        if session is not None and request.stream_id in self.stream_buffers:
            setattr(self.stream_buffers[request.stream_id], SESSION, (session, request.stream_id))
            session.look_at(request.stream_id)

    @around(H2Protocol, "_close_stream")
    async def close_stream(method: Any, self: Any, number: int) -> None:
        session = session_of(self)
        if session is not None and not session.ended:
            session.finish(number)
            session.look()
        await method(self, number)

    @around(H2Protocol, "stream_send")
    async def stream_send(method: Any, self: Any, event: Any) -> None:
        session, kind = session_of(self), type(event).__name__
        stops = kind == "StreamClosed" and self.context.terminated.is_set()
        if session is not None and not session.ended and stops:
            # As hypercorn does it, but for h2's own GOAWAY, after which the end of an answer is
            # not sent, nor any frame of the client's understood.
            await self._close_stream(event.stream_id)
            if idle := self.idle:
                await session.say_goodbye()
            await self.send(Updated(idle=idle))
            return
        await method(self, event)
        if session is not None:
            if kind == "EndBody":
                session.answered(event.stream_id)
            session.look_at(event.stream_id)

    @around(StreamBuffer, "pop")
    async def pop(method: Any, self: Any, most: int) -> bytes:
        data: bytes = await method(self, most)
        session, number = getattr(self, SESSION, (None, 0))
        if session is not None and number in session.streams:
            session.look_at(number)
            session.sent(number, len(data))
            session.budget.move(bool(data))
        return data
