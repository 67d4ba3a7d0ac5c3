"""The same client with HTTP/2's frames, which hpack and hyperframe make and read.

One rule: *a limit ends the stream, or says GOAWAY, or closes*: whichever comes first.
It counts what its windows allow, and says so of a server that sends more.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hpack import Decoder, Encoder, HPACKError
from hyperframe.exceptions import HyperframeError
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from ..drive import wire
from ..plan import acts as does
from ..plan.acts import Kind
from .client import Client, Gone, Tls

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
REFUSED = 7
"""REFUSED_STREAM."""
CANCELLED = "cancelled"
"""The end of a stream that the client has reset."""


@dataclass
class Stream:
    """A stream of HTTP/2: its status, what came of its body, its trailers, and how it
    ended.
    """

    status: int = 0
    body: bytearray = field(default_factory=bytearray)
    trailers: dict[str, str] = field(default_factory=dict)
    end: str = ""
    window: int = 65535


class Http2(Client):
    """The same with HTTP/2's frames. A limit ends the stream, or says GOAWAY, or
    closes.
    """

    alpn = "h2"

    def __init__(self, kind: Kind, sock: socket.socket, stop: float = 0.0, *over: wire.Tls) -> None:
        super().__init__(kind, sock, stop, *over)
        self.goaway: int | None = None
        self.code = 0  # of that GOAWAY
        self.streams: dict[int, Stream] = {}
        self.begin = does.Begin()
        self.window = self.first_window = 65535
        self._encoder, self._decoder = Encoder(), Decoder()
        self._held = bytearray()
        self._block = bytearray()
        self._ends = False
        self._out = bytearray()
        self._lacks = len(PREFACE)  # bytes of ours before which we may send no frame
        self._asked: list[does.Ask] = []
        self.settled = False
        self._answering: asyncio.Future[None] | None = None
        self._may = {0: 65535}  # bytes that the server may send, by stream; 0: of the connection
        self._taken: dict[int, int] = {}  # bytes to give back, by stream; 0: of the connection

    def stream(self, number: int) -> Stream:
        """The stream with that number, from 0 on."""
        return self.streams.setdefault(2 * number + 1, Stream(window=self.first_window))

    async def do(self, act: Any) -> None:
        if isinstance(act, does.Begin):
            self.begin = act
            first = SettingsFrame(settings={SettingsFrame.INITIAL_WINDOW_SIZE: act.window})
            await self.send(PREFACE + first.serialize())
        elif isinstance(act, does.Settled):
            await self.until(lambda: self.settled)
            await asyncio.sleep(0.02)  # for the acknowledgement to go
        elif isinstance(act, does.Ask):
            await self._ask(act)
        elif isinstance(act, does.Body):
            await self._body(act)
        elif isinstance(act, does.Trailers):
            block = self._encoder.encode([("x-sum", "1")])
            flags = ["END_HEADERS", "END_STREAM"]
            await self.frame(HeadersFrame(2 * act.stream + 1, block, flags=flags))
        elif isinstance(act, does.Cancel):
            which = act.stream if act.stream >= 0 else len(self._asked) + act.stream
            self.stream(which).end = CANCELLED  # it is closed: no window of it is opened
            await self.frame(RstStreamFrame(2 * which + 1, 8))
        elif isinstance(act, does.Settings):
            code = SettingsFrame.INITIAL_WINDOW_SIZE
            for number in self._may:
                self._may[number] += act.window - self.begin.window if number else 0
            await self.frame(SettingsFrame(settings={code: act.window}))
        elif isinstance(act, does.Pings):
            for number in range(act.count):
                if number:
                    await self.rest(act.every)
                await self.frame(PingFrame(0, number.to_bytes(8, "big")))
        elif isinstance(act, does.Open):
            await self._open(act)
        elif isinstance(act, does.Up):
            await self.until(lambda: bool(self.stream(act.stream).status))
        elif isinstance(act, does.Done):
            await self.until(lambda: bool(self.stream(act.stream).end))
        else:
            await super().do(act)

    async def frame(self, frame: Frame) -> None:
        """Send it."""
        await self.send(frame.serialize())

    async def _ask(self, act: does.Ask) -> None:
        number = 2 * len(self._asked) + 1
        self._asked.append(act)
        self.streams[number] = Stream(window=self.first_window)
        self._may[number] = self.begin.window
        head = [(":method", act.method), (":path", act.path)]
        head += [(":scheme", self.scheme), (":authority", self.authority)]
        if act.method == "CONNECT":
            head += [(":protocol", "websocket"), ("sec-websocket-version", "13")]
        if act.length is not None:
            head.append(("content-length", str(act.length)))
        block = self._encoder.encode([*head, *act.more])
        size = -(-len(block) // act.pieces)
        cut = [block[place : place + size] for place in range(0, len(block), size)]
        frames: list[Any] = [HeadersFrame(number, cut[0], flags=["END_STREAM"] if act.end else [])]
        frames += [ContinuationFrame(number, piece) for piece in cut[1:]]
        if act.whole:
            frames[-1].flags.add("END_HEADERS")
        await self.send(b"".join(frame.serialize() for frame in frames))

    async def _body(self, act: does.Body) -> None:
        stream, data = self.stream(act.stream), act.data
        more = 0 if act.padding is None else act.padding + 1
        while True:
            if data:
                await self.until(lambda: min(self.window, stream.window) > more)
            piece = data[: max(0, min(self.window, stream.window, 16_384) - more)]
            data = data[len(piece) :]
            flags = (["END_STREAM"] if act.end and not data else []) + (["PADDED"] if more else [])
            frame = DataFrame(
                2 * act.stream + 1, piece, flags=flags, pad_length=act.padding or 0
            ).serialize()
            self.window -= len(piece) + more
            stream.window -= len(piece) + more
            await self.send(frame)
            if not data:
                return

    async def _open(self, act: does.Open) -> None:
        for number in range(act.count):
            if number:
                await self.rest(act.every)
            for each in [0, *(each for each, stream in self.streams.items() if not stream.end)]:
                if act.size < 2**30 or not each:
                    await self.send(self._opens(each, min(act.size, 2**30)))

    def _opens(self, number: int, size: int) -> bytes:
        """The frame that opens a window by *size*; 0: the connection's."""
        self._may[number] = self._may.get(number, 0) + size
        update: bytes = WindowUpdateFrame(number, window_increment=size).serialize()
        return update

    def took(self, data: bytes) -> None:
        try:
            self._takes(data)
        except (HyperframeError, HPACKError, ValueError) as error:
            self.seen.broke = f"ProtocolError: {error}"
            self._end("speaks no HTTP/2")
        self._answer()

    def _takes(self, data: bytes) -> None:
        self._held += data
        while len(self._held) >= 9:
            frame, length = Frame.parse_frame_header(memoryview(bytes(self._held[:9])))
            if len(self._held) < 9 + length:
                break
            body = bytes(self._held[9 : 9 + length])
            del self._held[: 9 + length]
            frame.parse_body(memoryview(body))
            self._frame(frame, length)

    async def send(self, data: bytes) -> None:
        await super().send(data)
        self._lacks -= len(data)
        self._answer()  # what came before the preface was whole

    def _answer(self) -> None:
        if self._out and self._lacks <= 0:
            out, self._out = bytes(self._out), bytearray()
            self._answering = asyncio.ensure_future(self._quietly(out, self._answering))

    async def _quietly(self, data: bytes, before: asyncio.Future[None] | None) -> None:
        if before is not None:
            await before
        with suppress(Gone):
            await self.send(data)

    def _frame(self, frame: Frame, length: int) -> None:
        stream = self.streams.setdefault(frame.stream_id, Stream()) if frame.stream_id else None
        if isinstance(frame, SettingsFrame):
            if "ACK" not in frame.flags:
                size = frame.settings.get(SettingsFrame.INITIAL_WINDOW_SIZE, self.first_window)
                for each in self.streams.values():
                    each.window += size - self.first_window
                self.first_window = size
                self._out += SettingsFrame(flags=["ACK"]).serialize()
                self.settled = True
        elif isinstance(frame, PingFrame):
            if "ACK" not in frame.flags:
                self._out += PingFrame(0, frame.opaque_data, flags=["ACK"]).serialize()
        elif isinstance(frame, WindowUpdateFrame):
            if stream is None:
                self.window += frame.window_increment
            else:
                stream.window += frame.window_increment
        elif isinstance(frame, GoAwayFrame):
            self.goaway, self.code = frame.last_stream_id, frame.error_code
            for number, each in self.streams.items():
                self._answers(number, each)
            self._ended(f"GOAWAY {frame.error_code}")
        elif stream is not None and isinstance(frame, RstStreamFrame):
            if not stream.end:
                stream.end = f"RST_STREAM {frame.error_code}"
                self._ended(stream.end)
        elif stream is not None and isinstance(frame, DataFrame):
            stream.body += frame.data
            self._counts(frame.stream_id, length)
            self._moved(frame, stream, length)
        if isinstance(frame, HeadersFrame | ContinuationFrame) and stream is not None:
            self._headers(frame, stream)
        elif isinstance(frame, DataFrame) and "END_STREAM" in frame.flags and stream is not None:
            stream.end = stream.end or "whole"
            if self.kind.speaks == "websocket2":
                self._ended("closed")

    def _headers(self, frame: HeadersFrame | ContinuationFrame, stream: Stream) -> None:
        self._block += frame.data
        self._ends = self._ends or "END_STREAM" in frame.flags
        if "END_HEADERS" not in frame.flags:
            return
        found: dict[Any, Any] = dict(self._decoder.decode(bytes(self._block)))
        self._block = bytearray()
        if ":status" in found and not found[":status"].startswith("1"):
            stream.status = int(found[":status"])
            self._answers(frame.stream_id, stream)
        elif ":status" not in found:
            stream.trailers = found
        if self._ends:
            stream.end = stream.end or "whole"
        self._ends = False

    def _answers(self, number: int, stream: Stream) -> None:
        """Whether the server answers what it has said that it has not looked at."""
        if stream.status and self.goaway is not None and number > self.goaway:
            self.seen.broke = f"GOAWAY names stream {self.goaway}, and stream {number} is answered"

    def _counts(self, number: int, length: int) -> None:
        """Count what the server sends against what it may."""
        for each in (0, number):
            self._may[each] = self._may.get(each, self.begin.window) - length
            if self._may[each] < 0 and not self.streams[number].end:
                which = f"that of stream {each}" if each else "the connection's"
                self.seen.broke = f"{-self._may[each]} bytes more than a window allows: {which}"

    def _moved(self, frame: DataFrame, stream: Stream, length: int) -> None:
        if self.begin.opens and self.begin.lags and length:
            if not self._taken:
                self.loop.call_later(self.begin.lags, self._give_back)
            for number in (0, frame.stream_id):
                self._taken[number] = self._taken.get(number, 0) + length
        elif self.begin.opens and length:
            self._out += self._opens(0, length)
            if "END_STREAM" not in frame.flags and not stream.end:
                self._out += self._opens(frame.stream_id, length)
        if self.begin.pings:
            self._out += PingFrame(0, b"measures").serialize()

    def _give_back(self) -> None:
        """As one whose user reads late, in small pieces."""
        taken, self._taken = self._taken, {}
        piece = self.begin.piece
        for number, count in taken.items():
            if number and self.streams[number].end == CANCELLED:
                continue
            for place in range(0, count, piece):
                size = min(piece, count - place)
                self._out += self._opens(number, size)
        self._answer()

    def _ended(self, how: str) -> None:
        """The server ends what the client does; what comes after that still counts."""
        if self.seen.ended is None and not self.kind.lives:
            self.seen.ended, self.seen.how = self.loop.time(), how
            self.over.set()

    async def asked(self) -> bool:
        number = len(self._asked)
        with suppress(Gone):
            await self._ask(does.Ask())
            stream = self.stream(number)
            await self.until(lambda: bool(stream.end) or self._refused(number))
        return stream.end == "whole"

    def _refused(self, number: int) -> bool:
        """Whether the server says that it has not looked at that stream: the client may
        ask again elsewhere.
        """
        refused = self.stream(number).end == f"RST_STREAM {REFUSED}"
        return refused or (self.goaway is not None and self.goaway < 2 * number + 1)

    def told(self) -> bool:
        return self.goaway is not None or self._refused(len(self._asked) - 1)

    def note(self) -> None:
        found = [self.streams[number] for number in sorted(self.streams)]
        self.seen.streams = [(each.status, bytes(each.body), each.end) for each in found]
        self.seen.trailers = [each.trailers for each in found]

    def served(self) -> bool:
        return any(each.end == "whole" for each in self.streams.values())

    def whole(self) -> list[tuple[int, bytes]]:
        wanted = len(self.kind.answers)
        found = [self.stream(number) for number in range(wanted)]
        return [
            (each.status if each.end == "whole" else 0, bytes(each.body))
            for each, want in zip(found, self.kind.answers, strict=True)
            if each.end or not want.status
        ]


class Http2OverTls(Http2, Tls):
    """The same over TLS."""
