"""Turns a step into bytes, and says when it has been answered.

One rule: an answer proves that the server has read what was asked, and is used for
nothing else. A parser of HTTP lives only while a response is owed: an idle connection
holds none.
"""

from __future__ import annotations

import os
from base64 import b64encode
from collections import Counter
from dataclasses import dataclass
from typing import Any

from ..plan.behaviours import Act
from ..plan.scenario import DEFAULT_STATUSES
from ..units import BadArgument, Target

BYTE = b"x"
"""What an echo client sends, and expects to come back."""
KEPT_BYTES = 80
"""Bytes that are kept of an answer that is none in the protocol spoken."""
PIPELINE_DEPTH = 4
BODY_BYTES = 1_000_000
"""The body a slow sender announces: more than it will ever send."""
READ_BYTES = 4096
"""What a slow reader takes at a time."""
HELLO_START = b"\x16\x03\x01\x3f\xff\x01\x00\x3f\xfb\x03\x03"
"""The start of a TLS record of 16 KiB with a ClientHello of that length in it.

No server can tell before its end that nothing follows.
"""


@dataclass(frozen=True)
class Paths:
    """What an HTTP client asks for.

    *post*, *much* and *slow* are as *get* where they are empty; *host* is the target
    then.
    """

    get: str = "/"
    post: str = ""
    much: str = ""
    slow: str = ""
    host: str = ""
    method: str = "POST"
    """The method of a request with a body."""


ROOT = Paths()


class Dialect:
    """One protocol, as one process speaks it. This one is raw TCP, whose answers are
    not known.

    Attributes:
        answers: Whether the server answers what it reads.
        foreign: The beginning of the first answer that is none in this protocol; empty
            until there is one.
        heard: The beginning of the first answer, where answers are not known; else
            empty.
        wrong: Statuses that were not expected, and how often each came.
        opening: What is sent before a connection counts as established; `opened` says
            when that has been answered.
        stateful: Whether a connection has a parser from its beginning to its end.
    """

    answers = False
    opening = b""
    stateful = False

    def __init__(
        self, target: Target, paths: Paths = ROOT, statuses: tuple[str, ...] = DEFAULT_STATUSES
    ) -> None:
        self.foreign = b""
        self.heard = b""
        self.wrong: Counter[str] = Counter()
        self.payloads: dict[Act, tuple[bytes, int]] = {
            Act.HELLO_START: (HELLO_START, 0),
            Act.HELLO_BYTE: (b"\x00", 0),
        }

    def payload(self, act: Act) -> tuple[bytes, int]:
        """The bytes of *act* and how many units of answer they ask for."""
        if act in self.payloads:
            return self.payloads[act]
        if act is Act.NOISE:
            return os.urandom(200), 0
        data = BYTE * PIPELINE_DEPTH if act is Act.PIPELINE else BYTE
        return data, len(data) if self.answers else 0

    def parser(self) -> Any:
        """Make what reads the answers of one connection; None where nothing is needed
        for that.
        """
        return None

    def count(self, parser: Any, data: bytes) -> tuple[int, bytes]:
        """Count the units of answer that *data* completes on the connection with this
        *parser*.

        Returns them, and what the protocol wants sent back at once, such as a pong.
        """
        if not self.heard:
            self.heard = data[:KEPT_BYTES]
        return len(data), b""

    def opened(self, data: bytes) -> int:
        """How many bytes of *data* answer the `opening`; 0 if more have to come.

        Raises ConnectionError: the server refused it.
        """
        return 0


class Echo(Dialect):
    """The server sends back every byte; a unit of answer is a byte."""

    answers = True

    def count(self, parser: Any, data: bytes) -> tuple[int, bytes]:
        if not self.foreign and data.strip(BYTE):
            self.foreign = data[:KEPT_BYTES]
        return len(data), b""


class Http(Dialect):
    """HTTP/1.1 on connections that are kept; a unit of answer is a whole response."""

    answers = True

    def __init__(
        self, target: Target, paths: Paths = ROOT, statuses: tuple[str, ...] = DEFAULT_STATUSES
    ) -> None:
        super().__init__(target)
        try:
            import h11
        except ImportError:
            raise BadArgument(
                "--protocol http needs h11: pip install 'idle-reaper[http]', or use --protocol raw"
            ) from None
        self.h11 = h11
        self.statuses = statuses
        self.host = paths.host or str(target)
        self.path = paths.get
        post, much, slow = (path or paths.get for path in (paths.post, paths.much, paths.slow))
        start = self._head("GET", paths.get)
        upload = self._head(paths.method, post)
        request = start + b"\r\n"
        long = self._head("GET", much) + b"\r\n"
        self.payloads |= {
            Act.PING: (request, 1),
            Act.HALF_CLOSE: (request, 1),
            Act.PIPELINE: (request * PIPELINE_DEPTH, PIPELINE_DEPTH),
            Act.HEAD_START: (start, 0),
            Act.HEAD_LINE: (b"X-More: to come\r\n", 0),
            Act.BODY_START: (upload + b"Content-Length: %d\r\n\r\n" % BODY_BYTES, 0),
            Act.BODY_BYTE: (b"x", 0),
            Act.BODY_PIECE: (b"x" * 1000, 0),
            Act.CHUNKS_START: (upload + b"Transfer-Encoding: chunked\r\n\r\n", 0),
            Act.CHUNK_LONG: (b"1;" + b"e" * 200 + b"\r\nx\r\n", 0),
            Act.CHUNKS_TINY: (b"1\r\nx\r\n" * 2000, 0),
            Act.ASK_MUCH: (long, 0),
            Act.ASK_MUCH_OFTEN: (long * 20, 0),
            Act.ASK_SLOW: (self._head("GET", slow) + b"\r\n", 0),
            Act.UPGRADE_START: (start + UPGRADE, 0),
        }

    def _head(self, method: str, path: str) -> bytes:
        return f"{method} {path} HTTP/1.1\r\nHost: {self.host}\r\nUser-Agent: loadgen\r\n".encode()

    def parser(self) -> Any:
        connection = self.h11.Connection(self.h11.CLIENT)
        self._ask(connection)
        return connection

    def count(self, parser: Any, data: bytes) -> tuple[int, bytes]:
        return self._answers(parser, data), b""

    def _answers(self, parser: Any, data: bytes) -> int:
        if parser is None:  # a goodbye that answers no request, such as 408
            if not data.startswith(b"HTTP/"):
                self.foreign = self.foreign or data[:KEPT_BYTES]
            return int(data[8:10] == b" 2")
        h11 = self.h11
        begins = parser.their_state is h11.SEND_RESPONSE and not parser.trailing_data[0]
        if begins and data[:5] != b"HTTP/"[: len(data)]:
            self.foreign = self.foreign or data[:KEPT_BYTES]
        parser.receive_data(data)
        done = 0
        while True:
            try:
                event = parser.next_event()
            except h11.RemoteProtocolError:
                self.foreign = self.foreign or data[:KEPT_BYTES]
                return done
            if event is h11.NEED_DATA or event is h11.PAUSED or type(event) is h11.ConnectionClosed:
                return done
            if type(event) is h11.Response:
                status = str(event.status_code)
                if not any(map(status.startswith, self.statuses)):
                    self.wrong[status] += 1
            elif type(event) is h11.EndOfMessage:
                done += 1
                if parser.our_state is h11.MUST_CLOSE or parser.their_state is not h11.DONE:
                    return done
                parser.start_next_cycle()
                self._ask(parser)

    def _ask(self, connection: Any) -> None:
        # h11 wants to have sent what it hears the answer to; the bytes went out long
        # ago.
        request = self.h11.Request(method="GET", target=self.path, headers=[("Host", self.host)])
        connection.send(request)
        connection.send(self.h11.EndOfMessage())


def frame(opcode: int, payload: bytes = b"") -> bytes:
    """A WebSocket frame from a client, with a payload of at most 125 bytes.

    Its mask is zero, which the protocol allows.
    """
    return bytes((0x80 | opcode, 0x80 | len(payload))) + bytes(4) + payload


TEXT, CLOSE, PING, PONG = 1, 8, 9, 10
UPGRADE = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: " + b64encode(bytes(16)) + b"\r\n"
)


class WebSocket(Dialect):
    """WebSockets. A connection counts as established when it has been upgraded.

    The client asks with pings, and a unit of answer is a pong: nobody knows what an
    application answers to a message.
    """

    answers = True
    stateful = True

    def __init__(
        self, target: Target, paths: Paths = ROOT, statuses: tuple[str, ...] = DEFAULT_STATUSES
    ) -> None:
        super().__init__(target)
        self.opening = (
            f"GET {paths.get} HTTP/1.1\r\nHost: {paths.host or target}\r\n".encode()
            + UPGRADE
            + b"\r\n"
        )
        ping = frame(PING, BYTE)
        self.payloads |= {
            Act.PING: (ping, 1),
            Act.HALF_CLOSE: (ping, 1),
            Act.PIPELINE: (ping * PIPELINE_DEPTH, PIPELINE_DEPTH),
            Act.MESSAGE: (frame(TEXT, BYTE), 0),
            Act.MESSAGE_START: (
                bytes((0x80 | TEXT, 0xFF)) + BODY_BYTES.to_bytes(8, "big") + bytes(4),
                0,
            ),
        }

    def payload(self, act: Act) -> tuple[bytes, int]:
        return self.payloads.get(act) or (super().payload(act)[0], 0)

    def opened(self, data: bytes) -> int:
        head, end, _ = data.partition(b"\r\n\r\n")
        if end and head.split(None, 2)[1:2] != [b"101"]:
            self.foreign = data[:KEPT_BYTES]
            raise ConnectionError(
                f"no WebSocket: {head.partition(bytes((13, 10)))[0][:KEPT_BYTES].decode('latin-1')}"
            )
        return len(head + end) if end else 0

    def parser(self) -> Any:
        return bytearray()

    def count(self, parser: Any, data: bytes) -> tuple[int, bytes]:
        parser += data
        pongs, reply = 0, b""
        while (whole := _frame_length(parser)) and len(parser) >= sum(whole):
            head, length = whole
            opcode, payload = parser[0] & 0xF, bytes(parser[head : head + length])
            del parser[: head + length]
            pongs += opcode == PONG
            if opcode == PING:
                reply += frame(PONG, payload)
            elif opcode == CLOSE:
                reply += frame(CLOSE, payload)
        return pongs, reply


def _frame_length(data: bytearray) -> tuple[int, int] | None:
    """Bytes of the head and of the payload of the frame that *data* begins with.

    None: too little of the frame is there.
    """
    if len(data) < 2:
        return None
    extended = {126: 2, 127: 8}.get(data[1] & 0x7F, 0)
    if len(data) < 2 + extended:
        return None
    return 2 + extended, int.from_bytes(data[2 : 2 + extended], "big") if extended else data[
        1
    ] & 0x7F


def dialect_for(
    protocol: str, target: Target, paths: Paths = ROOT, statuses: tuple[str, ...] = DEFAULT_STATUSES
) -> Dialect:
    """Make the dialect named *protocol*.

    *paths* is what an HTTP client asks for, *statuses* how the statuses of its answers
    must begin. Raises BadArgument: h11 is not installed.
    """
    dialects = {"echo": Echo, "raw": Dialect, "http": Http, "ws": WebSocket}
    return dialects[protocol](target, paths, statuses)
