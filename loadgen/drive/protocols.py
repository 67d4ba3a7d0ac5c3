"""What a step looks like on the wire, and when it has been answered.

One rule: an answer proves that the server has read what was asked, and is used for nothing else. An HTTP parser lives
only while a response is owed: an idle connection holds none.
"""

from __future__ import annotations

from typing import Any, Protocol

from ..plan.behaviours import Act
from ..plan.scenario import PROTOCOL_NAMES
from ..units import BadArgument, Target

BYTE = b"x"
"""What an echo client sends, and expects to come back."""
KEPT_BYTES = 80
"""Of an answer that is none in the protocol spoken."""
PIPELINE_DEPTH = 4
BODY_BYTES = 1_000_000
"""The body a slow sender announces: more than it will ever send."""
READ_BYTES = 4096
"""What a slow reader takes at a time."""


class Dialect(Protocol):
    """One protocol, as one process speaks it.

    Attributes:
        answers: whether the server answers what it reads.
        foreign: the beginning of the first answer that is none in this protocol; empty until there is one.
    """

    answers: bool
    foreign: bytes

    def payload(self, act: Act) -> tuple[bytes, int]:
        """The bytes of *act* and how many units of answer they ask for."""

    def parser(self) -> Any:
        """State for one connection's answers while some are owed; None when none is needed."""

    def count(self, parser: Any, data: bytes) -> tuple[int, bool]:
        """How many units of answer *data* completes, and whether the server has announced that it will close."""


class Echo:
    """The server sends back every byte; a unit of answer is a byte."""

    answers = True
    foreign = b""

    def payload(self, act: Act) -> tuple[bytes, int]:
        return (BYTE * PIPELINE_DEPTH, PIPELINE_DEPTH) if act is Act.PIPELINE else (BYTE, 1)

    def parser(self) -> Any:
        return None

    def count(self, parser: Any, data: bytes) -> tuple[int, bool]:
        if not self.foreign and data.strip(BYTE):
            self.foreign = data[:KEPT_BYTES]
        return len(data), False


class Raw(Echo):
    """Nothing is known of the answers: they are read and thrown away."""

    answers = False

    def payload(self, act: Act) -> tuple[bytes, int]:
        return super().payload(act)[0], 0

    def count(self, parser: Any, data: bytes) -> tuple[int, bool]:
        return len(data), False


class Http:
    """HTTP/1.1 over keep-alive connections; a unit of answer is a whole response."""

    answers = True
    foreign = b""

    def __init__(self, target: Target, path: str) -> None:
        try:
            import h11
        except ImportError:
            raise BadArgument("--protocol http needs h11: pip install h11, or use --protocol raw") from None
        self.h11 = h11
        self.host = str(target)
        self.path = path
        start = f"GET {path} HTTP/1.1\r\nHost: {self.host}\r\nUser-Agent: loadgen\r\n".encode()
        request = start + b"\r\n"
        body = f"POST {path} HTTP/1.1\r\nHost: {self.host}\r\nContent-Length: {BODY_BYTES}\r\n\r\n".encode()
        self.payloads = {
            Act.PING: (request, 1),
            Act.HALF_CLOSE: (request, 1),
            Act.PIPELINE: (request * PIPELINE_DEPTH, PIPELINE_DEPTH),
            Act.HEAD_START: (start, 0),
            Act.HEAD_LINE: (b"X-More: to come\r\n", 0),
            Act.BODY_START: (body, 0),
            Act.BODY_BYTE: (b"x", 0),
            Act.ASK_MUCH: (request, 0),
        }

    def payload(self, act: Act) -> tuple[bytes, int]:
        return self.payloads[act]

    def parser(self) -> Any:
        connection = self.h11.Connection(self.h11.CLIENT)
        self._ask(connection)
        return connection

    def count(self, parser: Any, data: bytes) -> tuple[int, bool]:
        if parser is None:  # a goodbye that answers no request, such as 408
            if not data.startswith(b"HTTP/"):
                self.foreign = self.foreign or data[:KEPT_BYTES]
            return 0, True
        h11 = self.h11
        parser.receive_data(data)
        done = 0
        while True:
            try:
                event = parser.next_event()
            except h11.RemoteProtocolError:
                self.foreign = self.foreign or data[:KEPT_BYTES]
                return done, True
            if event is h11.NEED_DATA or event is h11.PAUSED:
                return done, False
            if type(event) is h11.EndOfMessage:
                done += 1
                if parser.our_state is h11.MUST_CLOSE or parser.their_state is not h11.DONE:
                    return done, True
                parser.start_next_cycle()
                self._ask(parser)
            elif type(event) is h11.ConnectionClosed:
                return done, True

    def _ask(self, connection: Any) -> None:
        # h11 wants to have sent what it hears the answer to; the bytes went out long ago.
        request = self.h11.Request(method="GET", target=self.path, headers=[("Host", self.host)])
        connection.send(request)
        connection.send(self.h11.EndOfMessage())


def dialect_for(protocol: str, target: Target, path: str = "/") -> Dialect:
    """The dialect named *protocol*; *path* is what an HTTP client asks for.

    Raises:
        BadArgument: there is none of that name, or h11 is not installed.
    """
    if protocol == "echo":
        return Echo()
    if protocol == "raw":
        return Raw()
    if protocol == "http":
        return Http(target, path)
    raise BadArgument(f"--protocol {protocol!r} is not known: choose from {', '.join(PROTOCOL_NAMES)}")
