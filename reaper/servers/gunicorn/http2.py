"""HTTP/2 under gunicorn's ASGI worker: its connection and its streams are told apart.

The rule of this module: *gunicorn's objects stay, and get another class*. What it has noted on a
stream is read when something has moved. Its own limit of a wait, `--timeout`, stays in force. Tried
with gunicorn 27.0.1 and h2 4.4.1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from gunicorn.http2.async_connection import AsyncHTTP2Connection
from gunicorn.http2.stream import HTTP2Stream, StreamState

from ...asyncio import transports
from ...asyncio.reaper import LOOKS_PER_TICK
from ...policy import Phase
from ..http2.connection import CANCEL, Connection
from ..http2.leaving import Leaving
from ..http2.waiting import Watch

ENDS = frozenset({"StreamEnded", "StreamReset", "TrailersReceived"})
"""The events of h2, by name, after which a client sends nothing more on a stream."""


class Session(Connection):
    """One connection of HTTP/2 under gunicorn.

    Args:
        serving: gunicorn's connection, guarded.
        watch: Who watches it.
    Attributes:
        stalled: The streams whose answer waits for the client's window.
        unread: Bytes that were taken from the reader, and that h2 has not been given yet.
        turns: How often something was taken from there.
    """

    def __init__(self, serving: Any, watch: Watch) -> None:
        super().__init__(serving.h2_conn, watch)
        self._serving = serving
        self.stalled: set[int] = set()
        self.unread: int = 0
        self.turns: int = 1

    def works(self) -> int:
        """As the base says."""
        return self.turns if self.unread > 0 or self._serving.reader.buffered() else 0

    def phase_of(self, number: int) -> Phase:
        """As the base says."""
        stream = self._serving.streams.get(number)
        if stream is None or stream.state is StreamState.CLOSED or stream.response_complete:
            return Phase.IN_FLIGHT  # only the application still works
        if number in self.stalled and self.is_shut(number):
            return Phase.WRITE
        if stream.body_complete or stream._body_chunks:
            return Phase.IN_FLIGHT
        return Phase.TUNNEL if stream.response_headers_sent else Phase.BODY

    def look_at(self, number: int) -> None:
        """As the base says. A stream that was reset has ended, whatever its application does."""
        stream = self._serving.streams.get(number)
        if stream is None or stream.state is StreamState.CLOSED:
            self.finish(number)
        else:
            super().look_at(number)

    def end(self, number: int, last: bool) -> None:
        """As the base says. The application sees that its client has gone."""
        serving = self._serving
        if (stream := serving.streams.get(number)) is not None:
            stream.reset(CANCEL)
        serving._write_pending_nowait()
        serving.cleanup_stream(number)
        if last:
            serving.abort_streams_nowait()
            self.watch.close()
        else:
            serving._signal_window()  # the application may wait there


class _Reader:
    """Stands before gunicorn's reader, and notes what is on its way from there to h2."""

    def __init__(self, reader: Any, session: Session) -> None:
        self._reader = reader
        self._session = session

    def buffered(self) -> int:
        """Bytes that came, and that gunicorn has not read."""
        return len(self._reader._buffer)

    async def read(self, most: int) -> bytes:
        """As the reader's own."""
        data: bytes = await self._reader.read(most)
        self._session.unread = len(data)
        self._session.turns += 1
        return data


class _Stream(HTTP2Stream):  # type: ignore[misc]
    """A stream of gunicorn's that says what moves it."""

    connection: _AsyncConnection

    def _looked_at(self) -> None:
        self.connection.session.look_at(self.stream_id)

    def _moved(self, received: int) -> None:
        waiting = self.connection.session.streams.get(self.stream_id)
        if waiting is not None:
            waiting.moved(received)

    def receive_data(self, data: bytes, end_stream: bool = False) -> None:
        unread = len(self._body_chunks)
        super().receive_data(data, end_stream)
        self._moved(len(data))
        if not unread:  # until now it waited for these bytes, perhaps
            self._looked_at()

    def send_data(self, data: bytes, end_stream: bool = False) -> None:
        super().send_data(data, end_stream)
        self.connection.session.sent(self.stream_id, len(data))
        if end_stream:
            self._looked_at()

    def send_headers(self, headers: Any, end_stream: bool = False) -> None:
        super().send_headers(headers, end_stream)
        self._looked_at()

    def pop_chunk(self) -> bytes | None:
        chunk: bytes | None = super().pop_chunk()
        if chunk is not None and not self._body_chunks:
            self._looked_at()
        return chunk


class _AsyncConnection(AsyncHTTP2Connection):  # type: ignore[misc]
    """A connection of gunicorn's whose streams are guarded.

    Attributes:
        session: What they wait for.
        leaving: Whether the client is waited for at the end, which takes the rest of an answer.
    """

    session: Session
    leaving: bool = False
    _closed: bool

    async def close(self, error_code: int = 0, last_stream_id: int | None = None) -> None:
        """As gunicorn's. Where the end of an answer is on its way, or has just come, the socket is
        kept, and read, until the client has gone.
        """
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
        with suppress(Exception):  # as gunicorn does: it is gone
            await self._send(lambda: self.h2_conn.close_connection(last_stream_id=last_stream_id))
        self._abort_all_streams()
        self._signal_window()
        with suppress(OSError):
            await self._until_it_has_gone(transport)
        self.session.watch.close()

    async def _until_it_has_gone(self, transport: Any) -> None:
        """Read until the client closes, as `Leaving` says. The guard of the connection bounds how
        long it may take everything.
        """
        watch = self.session.watch
        now, step = watch.driver.now, watch.config.reaper.tick / LOOKS_PER_TICK
        leaving, data = Leaving(watch.config.timeouts.drain_idle), b"more"
        while data and not transport.is_closing():
            left = leaving.seconds(transports.queued(transport) > 0, now())
            if not left:
                return
            transport.get_protocol()._maybe_resume_reading()
            with suppress(TimeoutError):
                read = self.reader.read(self.READ_BUFFER_SIZE)
                data = await asyncio.wait_for(read, min(step, left))

    async def receive_data(self, timeout: float | None = None) -> Any:
        session = self.session
        try:
            return await super().receive_data(timeout)
        finally:
            session.received(session.unread)
            session.unread = 0

    def _handle_event(self, event: Any) -> Any:
        request = super()._handle_event(event)
        if type(event).__name__ in ENDS:
            self.session.look_at(event.stream_id)
        return request

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


def guard(serving: Any, stream: Any, watch: Callable[[], Watch]) -> None:
    """Guard *stream*, which is about to be served.

    Args:
        serving: Its connection, gunicorn's `AsyncHTTP2Connection`.
        watch: Returns who watches it. Called once for each connection.
    """
    if type(serving) is AsyncHTTP2Connection:
        serving.__class__ = _AsyncConnection
        serving.session = session = Session(serving, watch())
        serving.reader = _Reader(serving.reader, session)
    session = serving.session
    if not session.ended:
        stream.__class__ = _Stream
        session.begin(stream.stream_id)
        session.look_at(stream.stream_id)
        stream._moved(stream.body_size)
