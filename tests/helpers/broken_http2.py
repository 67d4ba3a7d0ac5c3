"""A small server of HTTP/2 that is right, but for one thing each: spoken at once, or
agreed by ALPN.

One rule: *a fault is one place in the code of an honest server*, named by `FAULTS`. It
speaks HTTP/1.1, too, and is right with that. h2 makes its frames, so that no mistake of
the load generator's client is its own, too.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import h2.events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from hyperframe.frame import DataFrame, GoAwayFrame

from .broken import LIMIT, LINGER, PIECE, Broken, Connection, Gone, answer_of

FAULTS = {
    "closes a connection of streams 100 ms early": r"`keep_alive`|after an answer|after a route",
    "holds a connection that has no stream": r"exchanges settings",
    "holds who only pings": r"sends PINGs alone",
    "never acks a PING": r"sends a PING every 100 ms",
    "holds half a preface": r"sends half a preface",
    "refuses a preface in two pieces": r"two pieces|half a preface",
    "holds a block of headers": r"begins a block|drips a block",
    "counts a block of headers from its last frame": r"drips a block",
    "holds half the body of a stream": r"half a body|no body",
    "takes empty DATA for a body": r"empty DATA",
    "bounds the body of a stream as a whole": r"body in pieces|uploads|padded",
    "takes trailers for an error": r"trailers",
    "never opens a window": r"uploads",
    "holds a window that is never opened": r"never opens its window",
    "takes a PING for a window": r"never opens its window, and sends PINGs",
    "cuts who opens a window slowly": r"opens its windows by|slowly over the window|by bits",
    "ignores windows that SETTINGS open": r"by SETTINGS",
    "sends more than a window allows": r"window|takes",
    "holds who takes nothing of a stream": r"takes nothing from the kernel",
    "cuts a stream that is slower than its keep-alive": r"route|pauses|events|PING|slow|pieces|windows by|by bits",
    "resets all streams with the one that is cancelled": r"cancels one of three",
    "closes when an upload is cancelled": r"cancels an upload",
    "says GOAWAY with too low a stream": r"at a stop: HTTP/2: (waits|sends|asks)",
    "closes without GOAWAY when told to stop": r"at a stop: HTTP/2: (asks|waits|sends)",
    "resets its streams when told to stop": r"at a stop: HTTP/2: (waits|sends|asks)",
    "does nothing for idle connections when told to stop": r"at a stop: HTTP/2: says nothing",
}
"""Each fault, and which kinds of clients may find it: one of them at least, and no
other.
"""
PREFACE = 24
PING_ACK = re.compile(rb"\0\0\x08\x06\x01\0\0\0\0.{8}", re.DOTALL)
LAST = 2**31 - 1


@dataclass
class Stream:
    """A stream, until it has been answered."""

    method: str
    path: str
    body: bytearray = field(default_factory=bytearray)
    whole: bool = False
    ended: bool = False
    came: asyncio.Event = field(default_factory=asyncio.Event)


class BrokenHttp2(Broken):
    """A server of HTTP/2 with the routes of `conform`, and one *fault*; "": none."""

    faults = FAULTS

    async def serve(self, reader: Any, writer: Any) -> None:
        """Look at the first bytes, and speak what they begin."""
        first = b""
        with suppress(TimeoutError):
            async with asyncio.timeout(LIMIT):
                while len(first) < 3 and (data := await reader.read(3 - len(first))):
                    first += data
        if not first:
            return
        reader._buffer[:0] = first
        await (Streams if first == b"PRI" else Connection)(self, reader, writer).serve()


class Streams:
    """One connection of HTTP/2."""

    def __init__(self, server: Broken, reader: Any, writer: Any) -> None:
        self.server, self.reader, self.writer = server, reader, writer
        self.loop = asyncio.get_running_loop()
        self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self.streams: dict[int, Stream] = {}
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.heard = 0
        self.pinged = self.sent = self.rests = self.loop.time()
        self.block: float | None = None
        self.answered = False
        self.raw = bytearray()
        self.moved = asyncio.Condition()
        self.last = LAST
        self.timer = self.loop.call_soon(lambda: None)

    def has(self, fault: str) -> bool:
        """Whether the server has that fault."""
        return self.server.has(fault)

    async def serve(self) -> None:
        """Read until a limit is over, or the client has gone."""
        self.h2.initiate_connection()
        self.flush()
        stopping = asyncio.ensure_future(self.stop())
        self.rearm()
        try:
            while data := await self.reader.read(PIECE):
                cut = not self.heard and len(data) < PREFACE
                if cut and self.has("refuses a preface in two pieces"):
                    return
                self.heard += len(data)
                self.look(data)
                for event in self.h2.receive_data(data):
                    await self.take(event)
                self.flush()
                self.rearm()
        except ProtocolError:
            self.flush()
        finally:
            self.timer.cancel()
            tasks = (stopping, *self.tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def rearm(self) -> None:
        """Look again when the connection is due by now."""
        due = self.due()
        self.timer.cancel()
        if due is not None:
            self.timer = self.loop.call_at(due, self.close)

    def close(self) -> None:
        """Say which stream was the last, and close."""
        self.goaway(self.h2.highest_inbound_stream_id)
        self.writer.close()

    def due(self) -> float | None:
        """When the connection is over, unless something comes; None: never."""
        if self.heard < PREFACE:
            return None if self.has("holds half a preface") else self.rests + LIMIT
        if self.block is not None:
            return None if self.has("holds a block of headers") else self.block + LIMIT
        if self.streams:
            return None
        stopping = self.server.stopping.is_set()
        if stopping and self.has("does nothing for idle connections when told to stop"):
            return None
        if not self.answered and self.has("holds a connection that has no stream"):
            return None
        if self.has("holds who only pings"):
            return max(self.rests, self.pinged) + LIMIT
        early = self.answered and self.has("closes a connection of streams 100 ms early")
        return self.rests + LIMIT - (0.1 if early else 0.0)

    def look(self, data: bytes) -> None:
        """Find a block of headers that has begun, and is not whole."""
        self.raw += data
        if self.heard < PREFACE:
            return
        if self.heard - len(data) < PREFACE:
            del self.raw[:PREFACE]
        while len(self.raw) >= 9 and len(self.raw) >= 9 + (
            size := int.from_bytes(self.raw[:3], "big")
        ):
            kind, flags = self.raw[3:5]
            if kind in (1, 9):
                anew = self.has("counts a block of headers from its last frame")
                since = self.loop.time() if anew else self.block or self.loop.time()
                self.block = None if flags & 4 else since
            if kind == 6:
                self.pinged = self.loop.time()
            del self.raw[: 9 + size]

    def flush(self) -> None:
        """Write what h2 has made."""
        data = self.h2.data_to_send()
        if self.has("never acks a PING"):
            data = PING_ACK.sub(b"", data)
        self.writer.write(data)

    def goaway(self, last: int) -> None:
        """Say which stream is the last."""
        self.writer.write(GoAwayFrame(0, last_stream_id=last).serialize())

    async def stop(self) -> None:
        """Wait until the server is told to stop; take no more, and close when the last
        stream has ended.
        """
        await self.server.stopping.wait()
        if self.has("does nothing for idle connections when told to stop") and not self.streams:
            self.rearm()
            return
        if self.has("closes without GOAWAY when told to stop"):
            self.writer.transport.abort()
            return
        if self.has("says GOAWAY with too low a stream"):
            self.goaway(0)
        else:
            self.goaway(LAST)
        if self.has("resets its streams when told to stop"):
            for number in tuple(self.streams):
                self.reset(number)
        await asyncio.sleep(LINGER)
        self.last = self.h2.highest_inbound_stream_id
        if not self.has("says GOAWAY with too low a stream"):
            self.goaway(self.last)
        while self.streams:
            await asyncio.sleep(0.02)
        self.writer.close()

    # ---- streams
    async def take(self, event: Any) -> None:
        """Take in what h2 has read."""
        number = getattr(event, "stream_id", 0)
        stream = self.streams.get(number)
        if isinstance(event, h2.events.RequestReceived):
            if number > self.last:
                self.reset(number, ErrorCodes.REFUSED_STREAM)
                return
            head: dict[Any, Any] = dict(event.headers)
            stream = Stream(head[":method"], head[":path"])
            self.streams[number] = stream
            self.tasks[number] = asyncio.ensure_future(self.answer(number, stream))
        elif isinstance(event, h2.events.DataReceived):
            if not self.has("never opens a window"):
                self.h2.acknowledge_received_data(event.flow_controlled_length, number)
            if stream is not None:
                stream.body += event.data
                if event.data or self.has("takes empty DATA for a body"):
                    stream.came.set()
        elif isinstance(event, h2.events.TrailersReceived):
            if self.has("takes trailers for an error"):
                self.reset(number)
        elif isinstance(event, h2.events.StreamEnded) and stream is not None:
            stream.whole = True
            stream.came.set()
        elif isinstance(event, h2.events.StreamReset):
            uploads = stream is not None and not stream.whole
            self.gone(number)
            if uploads and self.has("closes when an upload is cancelled"):
                self.close()
            if self.has("resets all streams with the one that is cancelled"):
                for each in tuple(self.streams):
                    self.reset(each)
        opens = isinstance(event, h2.events.WindowUpdated | h2.events.RemoteSettingsChanged)
        if isinstance(event, h2.events.RemoteSettingsChanged) and self.streams:
            opens = not self.has("ignores windows that SETTINGS open")
        if isinstance(event, h2.events.PingReceived) and self.has("takes a PING for a window"):
            self.sent, opens = self.loop.time(), True
        if opens:
            async with self.moved:
                self.moved.notify_all()

    def reset(self, number: int, code: ErrorCodes = ErrorCodes.CANCEL) -> None:
        """End a stream by RST_STREAM."""
        with suppress(ProtocolError):
            self.h2.reset_stream(number, code)
            self.flush()
        self.gone(number)

    def gone(self, number: int) -> None:
        """Forget a stream, and its task."""
        stream = self.streams.pop(number, None)
        task = self.tasks.pop(number, None)
        if stream is not None:
            stream.ended = True
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        self.rests, self.answered = self.loop.time(), True
        self.rearm()

    async def answer(self, number: int, stream: Stream) -> None:
        """Answer one request, or reset its stream."""
        try:
            async with asyncio.timeout(self.most(LIMIT)):
                await self.whole(number, stream)
        except (TimeoutError, Gone):
            self.reset(number)
        except ProtocolError:
            self.gone(number)
        except (ConnectionError, OSError):
            self.writer.transport.abort()
        else:
            self.gone(number)

    def most(self, seconds: float) -> float | None:
        """Seconds that a stream may take as a whole; None: it is not bounded."""
        return seconds if self.has("cuts a stream that is slower than its keep-alive") else None

    async def whole(self, number: int, stream: Stream) -> None:
        """Read the body, and send the answer. Raises Gone, TimeoutError."""
        path, _, query = stream.path.partition("?")
        wait = float(query or 0)
        if path in ("/slow", "/late"):
            await asyncio.sleep(wait)
        began = self.loop.time()
        while not stream.whole:
            stream.came.clear()
            limit: float | None = LIMIT
            if self.has("holds half the body of a stream"):
                limit = None
            elif self.has("bounds the body of a stream as a whole"):
                limit = began + LIMIT - self.loop.time()
            async with asyncio.timeout(limit):
                await stream.came.wait()
        if path == "/events":
            pieces, rest = [b"data: tick\n\n"] * int(wait), 0.4
        else:
            pieces, rest = answer_of(path, wait, bytes(stream.body))
        self.h2.send_headers(number, [(":status", "200")])
        self.flush()
        began = self.loop.time()
        for place, piece in enumerate(pieces):
            if place:
                await asyncio.sleep(rest)
            await self.send(number, piece, began)
        self.h2.end_stream(number)
        self.flush()

    async def send(self, number: int, data: bytes, began: float) -> None:
        """Send *data* as windows allow it. Raises TimeoutError, Gone."""
        mine = self.sent = self.loop.time()
        if self.has("sends more than a window allows"):
            for place in range(0, len(data), 16_384):
                piece = DataFrame(number, data[place : place + 16_384]).serialize()
                self.writer.write(piece)
                await self.drained()
            return
        while data:
            window = self.h2.local_flow_control_window(number)
            size = min(window, self.h2.max_outbound_frame_size, len(data))
            if size > 0:
                self.h2.send_data(number, data[:size])
                data = data[size:]
                self.flush()
                mine = self.sent = self.loop.time()
                await self.drained()
                continue
            until = self.borne(mine, began)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until), self.moved:
                    await self.moved.wait()
                continue
            if until is not None and self.loop.time() >= (self.borne(mine, began) or 0.0):
                raise Gone

    def borne(self, mine: float, began: float) -> float | None:
        """Until when a stream waits for its window. *mine*: when it sent last; *began*:
        when its answer did. A window that others use up counts from what they sent.
        """
        if self.has("holds a window that is never opened"):
            return None
        if self.has("cuts who opens a window slowly"):
            return began + LIMIT
        shared = self.h2.outbound_flow_control_window <= 0
        pinged = self.has("takes a PING for a window")
        return (self.sent if shared or pinged else mine) + LIMIT

    async def drained(self) -> None:
        """Wait until the kernel has room; the connection is reset if it has not."""
        limit = None if self.has("holds who takes nothing of a stream") else LIMIT
        try:
            async with asyncio.timeout(limit):
                await self.writer.drain()
        except TimeoutError:
            self.writer.transport.abort()
            raise Gone from None
