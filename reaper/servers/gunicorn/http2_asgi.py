"""HTTP/2 under gunicorn's ASGI worker: the connection and each stream are judged apart.

The rule of this module: *gunicorn's objects stay, and get another class*. When
something has moved, the fields of gunicorn's stream are read. Its own limit of a wait,
`--timeout`, stays in force. Tried with gunicorn 27.0.1 and h2 4.4.1.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from gunicorn.http2.async_connection import AsyncHTTP2Connection
from gunicorn.http2.stream import HTTP2Stream, StreamState

from ...asyncio import transports
from ...policy import Phase
from ..http2.engine import CANCEL, Engine, is_shut, tolerant, window_of
from ..http2.waiting import Carrier


class Session(Engine):
    """One connection of HTTP/2 under gunicorn.

    Args:
        serving: gunicorn's connection, guarded.
        carrier: The connection.
    Attributes:
        stalled: The streams whose answer waits for the client's window.
        unread: Bytes on their way from the reader to h2.
        turns: How often bytes were taken from the reader.
    """

    def __init__(self, serving: Any, carrier: Carrier) -> None:
        super().__init__(carrier, serving.max_concurrent_streams)
        self._serving = serving
        self.stalled: set[int] = set()
        self.unread: int = 0
        self.turns: int = 1
        self.open()

    def works(self) -> int:
        """See the base class."""
        return self.turns if self.unread > 0 or self._serving.reader.buffered() else 0

    def phase_of_stream(self, number: int) -> Phase:
        """See the base class."""
        stream = self._serving.streams.get(number)
        if stream is None or stream.state is StreamState.CLOSED or stream.response_complete:
            return Phase.IN_FLIGHT  # only the application still works
        if number in self.stalled and is_shut(self._serving.h2_conn, number):
            return Phase.WRITE
        if number not in self.frames.unended or stream._body_chunks:
            return Phase.IN_FLIGHT
        return Phase.TUNNEL if stream.response_headers_sent else Phase.BODY

    def window_of(self, number: int) -> int:
        """See the base class."""
        return window_of(self._serving.h2_conn, number)

    def owes(self) -> bool:
        """See the base class. An answer may wait in asyncio, too."""
        return transports.queued(self._serving.writer.transport) > 0

    def send(self, data: bytes) -> None:
        """See the base class."""
        with suppress(OSError):  # it is gone
            self._serving.writer.write(data)

    def end(self, number: int | None, goaway: bytes) -> None:
        """See the base class. The application sees that its client has gone."""
        serving = self._serving
        if number is not None:
            if (stream := serving.streams.get(number)) is not None:
                stream.reset(CANCEL)
            tolerant(serving.h2_conn.reset_stream, number, CANCEL)
            serving._write_pending_nowait()
            serving.cleanup_stream(number)
        if goaway:
            self.send(goaway)
            serving.abort_streams_nowait()
            self.carrier.close()
        else:
            serving._signal_window()  # the application may wait there


class _Reader:
    """Wraps gunicorn's reader, and notes which bytes are on their way from it to h2."""

    def __init__(self, reader: Any, session: Session) -> None:
        self._reader = reader
        self._session = session

    def buffered(self) -> int:
        """Bytes that came, and that gunicorn has not read."""
        return len(self._reader._buffer)

    async def read(self, most: int) -> bytes:
        """As the reader's own; after a flood, the end of file."""
        data: bytes = await self._reader.read(most)
        session = self._session
        if not session.ended and not session.came(data):
            return b""
        session.unread = len(data)
        session.turns += 1
        return data


class _Stream(HTTP2Stream):  # type: ignore[misc]
    """A stream of gunicorn's that reports what moves it."""

    connection: _AsyncConnection

    def send_data(self, data: bytes, end_stream: bool = False) -> None:
        super().send_data(data, end_stream)
        session, number = self.connection.session, self.stream_id
        session.sent(number, len(data))
        if end_stream:
            session.answered(number)
            session.look_at(number)

    def send_headers(self, headers: Any, end_stream: bool = False) -> None:
        super().send_headers(headers, end_stream)
        self._looked_at()

    def pop_chunk(self) -> bytes | None:
        chunk: bytes | None = super().pop_chunk()
        if chunk is not None and not self._body_chunks:
            self._looked_at()
        return chunk

    def _looked_at(self) -> None:
        """The application has begun its answer, or waits for more of the body."""
        session = self.connection.session
        if self.stream_id in session.frames.unended:
            session.look_at(self.stream_id)


class _AsyncConnection(AsyncHTTP2Connection):  # type: ignore[misc]
    """A connection of gunicorn's whose streams are guarded.

    Attributes:
        session: What they wait for.
        leaving: Whether the server waits for the client to take the rest of an answer.
    """

    session: Session
    leaving: bool = False
    _closed: bool

    async def close(self, error_code: int = 0, last_stream_id: int | None = None) -> None:
        """As gunicorn's. If the end of an answer is on its way, or was just taken, keep
        the socket and read it until the client has gone.
        """
        session = self.session
        transport = self.writer.transport
        if (
            self._closed
            or error_code
            or transport.is_closing()
            or not (self.leaving or transports.queued(transport))
        ):
            await super().close(error_code, last_stream_id)
            return
        self._closed = self.leaving = True
        session.leave()
        self._abort_all_streams()
        self._signal_window()
        session.see_off()
        with suppress(OSError):
            transport.get_protocol()._maybe_resume_reading()
            while await self.reader.read(self.READ_BUFFER_SIZE):
                transport.get_protocol()._maybe_resume_reading()
        session.carrier.close()

    async def receive_data(self, timeout: float | None = None) -> Any:
        session = self.session
        try:
            return await super().receive_data(timeout)
        finally:
            if session.unread:
                session.unread = 0
                session.worked()

    def _handle_request_received(self, event: Any) -> Any:
        request = super()._handle_request_received(event)
        if request is not None:
            guard_stream(request.stream)
        return request

    def _handle_stream_reset(self, event: Any) -> None:
        """As gunicorn's. Such a stream has ended, whatever its application does."""
        super()._handle_stream_reset(event)
        self.session.finish(event.stream_id)

    def _signal_window(self) -> None:
        super()._signal_window()
        for number in self.session.stalled:
            self.session.look_at(number)

    async def _wait_for_flow_control_window(self, number: int) -> Any:
        session = self.session
        session.stalled.add(number)
        session.look_at(number)
        try:
            return await super()._wait_for_flow_control_window(number)
        finally:
            session.stalled.discard(number)
            session.look_at(number)

    def cleanup_stream(self, number: int) -> None:
        super().cleanup_stream(number)
        self.session.finish(number)

    def _abort_all_streams(self) -> None:
        self.session.over()
        super()._abort_all_streams()


def guard(serving: Any, carrier: Carrier) -> None:
    """Guard *serving*, gunicorn's `AsyncHTTP2Connection`, which has just begun, by
    *carrier*.
    """
    if type(serving) is AsyncHTTP2Connection:
        serving.__class__ = _AsyncConnection
        serving.session = session = Session(serving, carrier)
        serving.reader = _Reader(serving.reader, session)


def guard_stream(stream: Any) -> None:
    """Guard *stream*, of a guarded connection, which has just begun; once."""
    session = stream.connection.session
    if type(stream) is HTTP2Stream and not session.ended:
        stream.__class__ = _Stream
        session.begin(stream.stream_id)
