"""What is sent to a program, by protocol; when its answer is there."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from loadgen.plan.acts import Act, Begin, Body, Send
from loadgen.plan.acts import Ask as Call
from loadgen.plan.requests import frame
from loadgen.plan.requests import get as request


@dataclass(frozen=True, slots=True)
class Ask:
    """A request, and the answer to it.

    Attributes:
        sent: Its bytes, all at once, or the acts of who sends it.
        whole: What is in an answer that is whole.
        starts: What is in an answer that has begun; of an answer that pauses.
        speaks: What `loadgen.plan` calls it; `websocket` and `http2`: the server may
            say goodbye.
    """

    sent: bytes | tuple[Act, ...]
    whole: bytes
    starts: bytes = b""
    speaks: str = "lines"

    def acts_for(self, slow: float) -> tuple[Act, ...]:
        """Who sends it where a slow answer takes *slow* seconds: a number in its bytes
        keeps its width.
        """
        if isinstance(self.sent, bytes):
            return (Send(self.sent.replace(b"{slow}", b"%-6g" % slow)),)
        return self.sent


@dataclass(frozen=True, slots=True)
class Asks:
    """A protocol. What it does not have is None; its columns do not apply.

    Attributes:
        now: Is answered at once.
        drip: Is sent byte by byte; more of it than is ever needed.
        slow: Is answered after SLOW seconds, with nothing in between.
        pauses: Is answered by halves, SLOW seconds apart.
    """

    now: Ask
    drip: bytes
    slow: Ask | None = None
    pauses: Ask | None = None


def get(path: str, whole: bytes, starts: bytes = b"") -> Ask:
    """A GET of HTTP/1.1."""
    return Ask(request(path), whole, starts)


HALVES = get("/pause", b"last", b"first")
DRIPPED = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * 1000
OK = b"\r\nok"
HTTP = Asks(get("/", OK), DRIPPED, get("/slow", OK), HALVES)
PAGES = Asks(get("/", b"\r\n\r\n"), DRIPPED)
"""HTTP of a program that has no slow answer; a head is enough of an answer."""


_UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
WEBSOCKET = Asks(
    Ask(_UPGRADE + frame(b"now"), b"\x81\x02ok", speaks="websocket"),
    DRIPPED,
    Ask(_UPGRADE + frame(b"slow"), b"\x81\x02ok", speaks="websocket"),
)
REDIS = Asks(
    Ask(b"PING\r\n", b"+PONG\r\n"),
    b"SET key " + b"x" * 1000,
    Ask(b"BLPOP nothing {slow}\r\n", b"*-1\r\n"),
)
MEMCACHED = Asks(Ask(b"version\r\n", b"\r\n"), b"get " + b"x" * 200)
SMTP = Asks(
    Ask(b"HELO localhost\r\n", b"\r\n250 "),
    b"HELO " + b"x" * 400,
    Ask(
        b"HELO localhost\r\nMAIL FROM:<a@localhost>\r\nRCPT TO:<b@localhost>\r\nDATA\r\nx\r\n.\r\n",
        b"250 kept",
    ),
)
FTP = Asks(Ask(b"USER anonymous\r\n", b"\r\n331 "), b"USER " + b"x" * 1000)
SSH = Asks(Ask(b"SSH-2.0-client\r\n", b"SSH-2.0-"), b"SSH-2.0-" + b"x" * 200)
MQTT = Asks(
    Ask(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x01x", b"\x20\x02\x00\x00"),
    b"\x10\xff\x01\x00\x04MQTT\x04\x02\x00\x00\x00\xf0" + b"x" * 240,
)


def _postgres(*query: bytes) -> bytes:
    words = b"\0".join([b"user", b"postgres", b"database", b"postgres", b"", b""])
    sent = struct.pack(">ii", 8 + len(words), 196608) + words
    return sent + b"".join(b"Q" + struct.pack(">i", 5 + len(q)) + q + b"\0" for q in query)


POSTGRES = Asks(
    Ask(_postgres(), b"Z\0\0\0\x05I"),
    struct.pack(">ii", 500, 196608) + b"user\0" + b"x" * 480,
    Ask(_postgres(b"select pg_sleep({slow})"), b"SELECT 1\0"),
)


def _call(path: str, whole: bytes, starts: bytes = b"") -> Ask:
    """A call of gRPC with an empty message."""
    more = ("content-type", "application/grpc"), ("te", "trailers")
    acts = Begin(), Call(path, "POST", end=False, more=more), Body(0, bytes(5))
    return Ask(acts, whole, starts, speaks="http2")


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
GRPC = Asks(
    # It hears that its SETTINGS are acknowledged, and acknowledges none itself: whose
    # client spoke last is, from outside, a server that owes an answer.
    Ask(PREFACE + b"\0\0\0\4\0\0\0\0\0", b"\x00\x04\x01\x00\x00\x00\x00"),
    PREFACE + b"\0\x03\xe8\x04\0\0\0\0\0" + b"\0" * 1000,
    _call("/answers.Answers/slow", b"\0\0\0\0\x02ok"),
    _call("/answers.Answers/pause", b"last", b"first"),
)
