"""uvicorn's HTTP/2, guarded: `Http2`. It is zttp's, which uvicorn calls experimental.

The rule of this module: *HTTP/2 is zttp's, HTTP/1 stays where it is guarded already*.
What a client speaks is decided as uvicorn decides it: over TLS by ALPN, in clear text
by the preface. A client of HTTP/1 gets `Auto`, not uvicorn's protocol of zttp.

`servers.http2` says what each stream waits for, and how it ends. The connection has the
lease of every guarded connection of uvicorn's: HEADERS while a header block comes,
IN_FLIGHT while it has streams, and otherwise KEEP_ALIVE, from the end of the last
stream on. uvicorn forgets a stream once zttp has its answer. Here the stream is open
until the client has taken the answer, so neither a stop nor the keep-alive cuts a
client that reads slowly.

After GOAWAY, which a drain and `max_age` send, further streams are refused. When the
client has taken the last answer, it closes the connection. If it does not, the server
closes after `drain_idle`. Tried with uvicorn 0.54.0 and zttp 0.0.35.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar, TypeVar

import zttp
from uvicorn.protocols.http.zttp_h2_impl import RequestResponseCycle, ZttpH2Protocol

from ...asyncio import closing, transports
from ...policy import Phase
from ...policy.reasons import FLOOD
from ..http2.engine import CANCEL, ENHANCE_YOUR_CALM, NO_ERROR, REFUSED_STREAM, Engine
from ..http2.frames import PREFACE
from ..http2.waiting import Carrier
from .http import Auto, GuardedHttp
from .idle import IdleProtocol
from .shared import Origin, Shared

FRAME_SIZE = 16_384
"""Bytes that zttp puts into a DATA frame at most, unless the client lets it do more."""

Made = TypeVar("Made")

TOLD_APART = 3
"""Bytes that tell the preface from every method of HTTP/1: PRI from PROPFIND."""


class Undecided(IdleProtocol):
    """Takes the place of the protocol until the client has shown which one it speaks.

    Half a preface is kept here, because zttp accepts only a whole one. It restarts
    `timeouts.first_byte` once.
    """

    __slots__ = ("_begun",)

    def __init__(self, shared: Shared, origin: Origin) -> None:
        super().__init__(shared, origin)
        self._begun = b""

    def data_received(self, data: bytes) -> None:
        begun = self._begun + data
        if len(begun) < len(PREFACE) and PREFACE.startswith(begun) and not self._is_tls():
            if not self._begun:
                self.lease.touch()
            self._begun = begun
            return
        self._begun = b""
        self._decide(begun)
        super().data_received(begun)

    def wake(self) -> Any:
        """See the base class. Bytes that do not tell the protocol are HTTP/1."""
        begun, self._begun = self._begun, b""
        if begun or self._is_tls():
            self._decide(begun)
        made = super().wake()
        if begun:
            made.data_received(begun)
        return made

    def _is_tls(self) -> bool:
        return transports.is_tls(self.transport)

    def _decide(self, begun: bytes) -> None:
        """Have the connection go on with HTTP/1, unless the client speaks HTTP/2."""
        if self._is_tls():
            found = self.transport.get_extra_info("ssl_object")
            http2 = found is not None and found.selected_alpn_protocol() == "h2"
        else:
            http2 = begun[:TOLD_APART] == PREFACE[:TOLD_APART]
        if not http2:
            self.origin: Origin = self.shared.origin(Auto, *self.origin[1:])


class Session(Engine):
    """One connection of HTTP/2 under uvicorn. Its connection is timed as every guarded
    one of uvicorn's is, not by the engine.

    Args:
        protocol: Its `Http2`.
        connection: zttp's.
        carrier: The connection.
    Attributes:
        parked: By stream, how many bytes of its answer wait for the client's window.
    """

    def __init__(self, protocol: Http2, connection: Any, carrier: Carrier) -> None:
        super().__init__(carrier)
        self._protocol = protocol
        self.connection = connection
        self.parked: dict[int, int] = {}

    # ---- as the base says, by zttp

    def works(self) -> int:
        """See the base class: uvicorn works off what comes at once."""
        return 0

    def phase_of_stream(self, number: int) -> Phase:
        """See the base class. While uvicorn does not read, because an application does
        not, no client is awaited.
        """
        protocol = self._protocol
        if protocol.flow.read_paused:
            return Phase.IN_FLIGHT
        if number in self.parked:
            return Phase.WRITE if self.is_shut(number) else Phase.IN_FLIGHT
        cycle = protocol.cycles.get(number)
        if cycle is None or cycle.response_complete or not cycle.more_body or cycle.body:
            return Phase.IN_FLIGHT
        return Phase.TUNNEL if cycle.response_started else Phase.BODY

    def is_shut(self, number: int) -> bool:
        """Whether stream *number* has no window left."""
        room = self.connection.stream(number).send_window
        return room is not None and (room <= 0 or self.connection.send_window <= 0)

    def window_of(self, number: int) -> int:
        """See the base class."""
        return self.connection.stream(number).send_window or 0

    def end(self, number: int | None, goaway: bytes) -> None:
        """See the base class. The application sees that its client has gone."""
        if number is not None:
            self.parked.pop(number, None)
            self.connection.stream(number).reset(CANCEL)
            self._protocol.drop(number)
        if goaway:
            self._protocol.end(goaway)
        else:
            self._protocol.flush()

    def flooded(self) -> None:
        """See the base class."""
        self._protocol.reap(FLOOD)

    # ---- what moves

    def given(self, stream: Any, count: int) -> None:
        """*count* bytes of an answer were given to zttp's *stream*, or its client may
        have made room.
        """
        left, number = stream.pending_bytes or 0, stream.stream_id
        if left or number in self.parked:
            sent = self.parked.get(number, 0) + count - left
            if left:
                self.parked[number] = left
            else:
                del self.parked[number]
            self.look_at(number)
        else:
            sent = count
        if sent > 0:
            self.sent(number, sent, -(-sent // FRAME_SIZE))
        if not left and number not in self._protocol.cycles:
            self.finish(number)

    # ---- ends

    def finish(self, number: int) -> None:
        """See the base class. With the last stream the keep-alive begins."""
        if self.parked:
            self.parked.pop(number, None)
        if number in self.streams:
            self._forget(number)
            if not self.streams and not self.ended:
                self._protocol.has_answered_all()

    def let_go(self) -> None:
        """Drop the protocol and the carrier once the connection is lost. The session
        and its protocol would otherwise refer to each other.
        """
        del self._protocol, self.carrier


# HTTP/2 has no header that names the keep-alive: `answers` asks the cycle for it, and
# uvicorn's of HTTP/2 does not have the word.
RequestResponseCycle.keep_alive = False  # type: ignore[attr-defined]


def _as_in(kind: type, behind: str) -> Callable[[type[Made]], type[Made]]:
    """Give a class the public names of zttp's *kind* that it lacks: those of its
    attribute *behind*. With `__getattr__` each look-up of any name would take longer.
    """

    def give(made: type[Made]) -> type[Made]:
        for name in dir(kind):
            if not name.startswith("_") and not hasattr(made, name):
                setattr(made, name, property(attrgetter(f"{behind}.{name}")))
        return made

    return give


@_as_in(zttp.Stream, "_stream")
class _Stream:
    """A stream of zttp's that reports what is given to it. Its request has come
    whole.
    """

    # `_Connection.stream` sets them: each request has one.
    __slots__ = ("_session", "_stream", "end_message", "send_response", "stream_id")

    _session: Session
    _stream: Any
    end_message: Any
    send_response: Any
    stream_id: int

    def send_data(self, data: bytes) -> None:
        stream, session, count = self._stream, self._session, len(data)
        stream.send_data(data)
        if stream.pending_bytes or self.stream_id in session.parked:
            session.given(stream, count)
        else:  # `given`, written out: nearly every answer has room
            session.sent(self.stream_id, count, -(-count // FRAME_SIZE))


class _Unended(_Stream):
    """One whose request goes on."""

    __slots__ = ()

    def send_response(self, *given: Any) -> None:
        self._stream.send_response(*given)
        session = self._session
        if self.stream_id in session.frames.unended:
            session.look_at(self.stream_id)


@_as_in(zttp.H2Connection, "_connection")
class _Connection:
    """A connection of zttp's whose streams report what is given to them."""

    __slots__ = ("_connection", "_session", "data_to_send", "next_event", "receive_data")

    def __init__(self, connection: Any, session: Session) -> None:
        self._connection = connection
        self._session = session
        self.receive_data: Any = connection.receive_data
        self.next_event: Any = connection.next_event
        self.data_to_send: Any = connection.data_to_send

    def stream(self, number: int) -> _Stream:
        stream, session = self._connection.stream(number), self._session
        made: _Stream
        if number in session.frames.unended:
            made = _Unended()
        else:
            made = _Stream()
            made.send_response = stream.send_response
        made._stream = stream
        made._session = session
        made.stream_id = number
        made.end_message = stream.end_message
        return made


class Http2(GuardedHttp, ZttpH2Protocol):
    """uvicorn's `ZttpH2Protocol`, guarded; for clients that speak HTTP/1, `Auto`.

    Attributes:
        session: What its streams wait for.
    """

    __slots__ = ("_unread", "session")

    SILENT: ClassVar[type[IdleProtocol]] = Undecided

    alpn_protocols: ClassVar[list[str]] = ["h2", "http/1.1"]

    cycles: dict[int, Any]
    conn: Any

    # ---- what uvicorn and the loop call

    def take_over(self, before: IdleProtocol) -> None:
        shared = before.shared
        carrier = Carrier(
            shared.driver,
            shared.config,
            shared.sweep,
            partial(transports.descriptor_of, before.transport),
            before.transport.close,
        )
        self._unread = False  # nothing is read until the client has taken what zttp has answered
        self.session: Session = Session(self, self.conn, carrier)
        self.conn = _Connection(self.conn, self.session)
        super().take_over(before)

    def data_received(self, data: bytes) -> None:
        session = self.session
        if session.ended or not session.came(data):
            return
        super().data_received(data)
        if self.session.ended:  # by what has just come
            return
        session.worked()
        frames = session.frames
        if self.flow.write_paused and not self.transport.is_closing():
            self._hold_back(frames.brought.keys() - session.streams.keys())
        if session.parked:
            for number in list(session.parked):
                session.given(session.connection.stream(number), 0)
        if self.flow.read_paused:
            self._look_at_all()
        if self.waiting is not None or frames.in_block or self.transport.is_closing():
            self.look()

    def _hold_back(self, closed: set[int]) -> None:
        """Frames of the streams *closed* have come, and zttp answers each by
        RST_STREAM. Read nothing until the client has taken what is written: otherwise
        these answers would fill the memory.
        """
        if closed:
            self._unread = True
            self.flow.pause_reading()

    def handle_request(self, event: Any) -> None:
        number = event.stream_id
        if self._leaving is not None:
            self.conn.stream(number).reset(REFUSED_STREAM)
            return
        self.session.begin(number)
        ZttpH2Protocol.handle_request(self, event)  # `super()` costs as much as `begin`
        cycle = self.cycles.get(number)
        if cycle is None:
            return  # an eager task has answered it
        if not event.end_stream:
            cycle.resume_reading = partial(self._reads, number)
            self.session.look_at(number)
        elif cycle.more_body:
            # uvicorn waits for an `EndOfMessage` as well, which zttp does not send
            # then: its application would wait for a body for ever.
            cycle.more_body = False
            cycle.message_event.set()

    def handle_rst_stream(self, event: Any) -> None:
        self._is_gone(self.cycles.get(event.stream_id))
        super().handle_rst_stream(event)
        self.session.finish(event.stream_id)

    def on_response_complete(self, number: int) -> None:  # type: ignore[override]
        ZttpH2Protocol.on_response_complete(self, number)
        session = self.session
        if number in session.streams:  # it was not reset
            session.budget.left += 1
            if number in session.parked:
                session.given(session.connection.stream(number), 0)
            else:
                session.finish(number)

    def on_stream_closed(self) -> None:
        """As uvicorn's, which has something to do if reading is paused, and at the end
        of the last stream.
        """
        if not self.cycles or self.flow.read_paused:
            super().on_stream_closed()

    def eof_received(self) -> None:  # type: ignore[override]
        """The client sends no more: the loop closes the connection when all has been
        sent.
        """
        self._half_closed = True
        if transports.buffered(self.transport):
            self.look()

    def connection_lost(self, exc: Exception | None) -> None:
        cycles = list(self.cycles.values())
        super().connection_lost(exc)
        for cycle in cycles:
            self._is_gone(cycle)
        self.session.let_go()

    def timeout_keep_alive_handler(self) -> None:
        """uvicorn would set its keep-alive timer. It does so after each PING, too: the
        session knows which streams have ended.
        """

    # ---- what the session says

    def has_answered_all(self) -> None:
        """The last stream has ended: the keep-alive counts from now on."""
        if self._over:
            return
        self.lease.touch()
        if self.waiting is not None:
            self.look()

    def drop(self, number: int) -> None:
        """Stream *number* was reset by us."""
        cycle = self.cycles.pop(number, None)
        if cycle is not None:
            cycle.disconnected = True
            cycle.message_event.set()
            self._is_gone(cycle)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread:
            self._unread = False
            self.resume_reading_if_idle()

    def resume_reading_if_idle(self) -> None:
        # uvicorn asks with each answer, and would look at the body of each stream.
        if self._unread or not self.flow.read_paused:
            return
        super().resume_reading_if_idle()
        if not self.flow.read_paused and not self._over:
            self._look_at_all()

    def _look_at_all(self) -> None:
        """uvicorn has paused reading, or has gone on."""
        for number in list(self.session.streams):
            self.session.look_at(number)
        self.look()

    def _reads(self, number: int) -> None:
        """The application waits for a part of the body of stream *number*."""
        self.resume_reading_if_idle()
        self.session.look_at(number)

    def _is_gone(self, cycle: Any) -> None:
        """The client of the request of *cycle* has gone."""
        if cycle is not None and (requests := self.shared.requests) is not None:
            requests.lost(cycle)

    # ---- phases

    @property
    def stays_due(self) -> bool:
        """See the base class: PING does not move what waits for a request, or for the
        rest of its head. A request in flight is found at the final check, once in each
        `keep_alive`.
        """
        return self.phase() is self._believed()

    def _reading(self) -> Phase:
        if self.flow.read_paused:
            return Phase.IN_FLIGHT
        phase = self.session.phase()
        return self._between() if phase is Phase.FIRST_BYTE else phase

    def _whole(self) -> bool:
        return True

    def _much_is_queued(self) -> bool:
        """See the base class; anything, if the connection is to end. Its client sends
        WINDOW_UPDATE as it takes the end of an answer, and that would have the kernel
        reset a closed connection.
        """
        if self._leaving is None:
            return super()._much_is_queued()
        return transports.queued(self.transport) > 0

    # ---- the end

    def _announce(self) -> None:
        """Say that no further stream is accepted. Open streams are answered."""
        if self._leaving is None or self.transport.is_closing():
            return
        self._part(NO_ERROR)
        self.flush()

    def _part(self, code: int) -> None:
        """Have GOAWAY made."""
        self.conn.close(code, self.session.highest)

    def _farewell(self, reason: str) -> bytes:
        self._part(ENHANCE_YOUR_CALM if reason == FLOOD else NO_ERROR)
        return bytes(self.conn.data_to_send())

    def shut(self) -> None:
        """Does nothing: GOAWAY is still to be sent, and tells the client what was not
        read.
        """

    def end(self, goaway: bytes) -> None:
        """Close the connection, whose last stream was reset."""
        closing.close(self.shared.reaper, self.transport, self.conn.data_to_send() + goaway)

    def _let_go(self) -> None:
        super()._let_go()
        self.session.over()
