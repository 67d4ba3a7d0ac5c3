"""HTTP/1.1 on one connection: requests in, responses out, and each wait reported to the
policy.

One rule: *before each wait the phase is set to what is waited for*. Everything else
about idleness follows from that. The state machine of the protocol is h11's.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from http import HTTPStatus
from urllib.parse import parse_qsl, urlsplit

import h11
import trio

from reaper.policy import IdlePolicy, Phase

from .shared import Shared
from .streams import Stream
from .transport import RECEIVE_BYTES, Transport

DISCARD_BYTES = 65536
"""How much of a request body that the route did not want is read, to keep the
connection. If there is more, closing is cheaper.
"""

PIECES_PER_PASS = 16
"""Pieces of a request body before the loop is let run again: 64 KiB may be 10,000
chunks, and 80 ms of parsing.
"""

BLANK_BYTES = 512
"""Bytes of empty lines that may come before a request and mean nothing (RFC 9112
section 2.2).

A client that sends more is refused. No timeout would end it, because there would always
be something of it unread.
"""

HEAD = b"HEAD "
"""A request that begins like this is answered without a body, whatever else is wrong
with it.
"""

SERVER = "reaper-example"
"""The Server header of every answer."""

OVERHEAD_BYTES = 2 * RECEIVE_BYTES
"""How many bytes may come around a body (chunk sizes, extensions, trailers, bytes read
ahead), in addition to as many as a body may have.
"""

log = logging.getLogger("server_example.http")

Headers = Iterable[tuple[str, str]]


class HttpError(Exception):
    """The request is to be answered with *status*; the connection is closed
    afterwards.
    """

    def __init__(self, status: int, detail: str = "") -> None:
        super().__init__(
            f"{status} {HTTPStatus(status).phrase}" + (f": {detail}" if detail else "")
        )
        self.status = status


class Exchange:
    """One request and its response: what a route is given. Raises HttpError(400) when
    the target is no URL.

    Attributes:
        method, path: As sent; the path without the query, still percent-encoded.
        query: Parameters by name, decoded; of several with one name the last.
        headers: By lower-case name; several with one name are joined with ", ".
        server: What is shared with all other connections, for routes that show it.
        started: Whether the response has begun.
    """

    def __init__(self, connection: HttpConnection, request: h11.Request) -> None:
        self._connection = connection
        self.server = connection.server
        self.method = request.method.decode("ascii")
        try:
            target = urlsplit(request.target.decode("latin-1"))
        except ValueError as error:
            raise HttpError(400, str(error)) from None
        self.path = target.path
        self.query = dict(parse_qsl(target.query, keep_blank_values=True))
        self.headers: dict[str, str] = {}
        for raw_name, raw_value in request.headers:
            name, value = raw_name.decode("ascii"), raw_value.decode("latin-1")
            self.headers[name] = f"{self.headers[name]}, {value}" if name in self.headers else value
        self.started = False
        self._stream: Stream | None = None
        self._version = bytes(request.http_version)

    @property
    def is_local(self) -> bool:
        """Whether the request comes from this machine, and not from elsewhere through a
        proxy.
        """
        handed_on = self.headers.keys() & {"forwarded", "via", "x-forwarded-for", "x-real-ip"}
        return self._connection.transport.is_local and not handed_on

    def asks_for(self, protocol: str) -> bool:
        """Whether the client offers to go on with *protocol* here (RFC 9110 section
        7.8).
        """
        offered, options = (
            _words(self.headers.get("upgrade", "")),
            _words(self.headers.get("connection", "")),
        )
        return self._version != b"1.0" and "upgrade" in options and protocol in offered

    async def body(self) -> AsyncIterator[bytes]:
        """The request body, piece by piece.

        Raises:
            HttpError: 413, it is longer than `limits.max_body_bytes`.
        """
        limit = self.server.config.limits.max_body_bytes
        announced = self.headers.get("content-length", "0")
        if limit and int(announced) > limit:
            raise HttpError(413, f"a body of {announced} bytes; at most {limit} are accepted")
        total = 0
        while True:
            event = await self._connection.next_body_event()
            if not isinstance(event, h11.Data):
                return
            total += len(event.data)
            if limit and total > limit:
                raise HttpError(413, f"a body of more than {limit} bytes")
            yield bytes(event.data)

    async def respond(
        self, status: int, body: bytes, content_type: str, headers: Headers = ()
    ) -> None:
        """Send the whole response at once."""
        framing = (("content-type", content_type), ("content-length", str(len(body))))
        self.started = True
        connection = self._connection
        data = connection.head(status, (*framing, *headers))
        if self.method != "HEAD":
            data += connection.h11.send(h11.Data(body)) or b""
        data += connection.h11.send(h11.EndOfMessage()) or b""
        await connection.transport.send_all(data)

    async def start(self, status: int, headers: Headers) -> None:
        """Begin a response whose body is sent in pieces.

        The body is chunked unless *headers* have a content-length.
        """
        self.started = True
        headers, connection = list(headers), self._connection
        head = connection.head(status, headers)
        self._stream, pinged = self.server.streams.begins(
            connection, self.method, self.path, status, headers
        )
        if self._stream is None:
            await connection.transport.send_all(head)
        else:
            await self._stream.begin(head, pinged)

    async def send(self, data: bytes) -> None:
        """Send a piece of the body. Waits while the peer does not take it."""
        if not data or self.method == "HEAD":
            return
        if self._stream is None:
            await self._connection.transport.send_all(self._connection.piece(data))
        else:
            await self._stream.send(data)

    async def finish(self) -> None:
        """End a body that was sent in pieces."""
        if self._stream is not None:
            await self._stream.ends()
            if self._stream.complete:
                return
        tail = self._connection.end()
        if tail:
            await self._connection.transport.send_all(tail)

    def over(self) -> None:
        """Its route has returned, or was cancelled."""
        if self._stream is not None:
            self.server.streams.over(self._stream)

    async def upgrade(self, protocol: str) -> Tunnel:
        """Answer 101 and leave HTTP. From here on the bytes are the route's."""
        self.started = True
        connection = self._connection
        headers = [("connection", "upgrade"), ("upgrade", protocol)]
        answer = h11.InformationalResponse(
            status_code=101, headers=headers, reason=b"Switching Protocols"
        )
        await connection.transport.send_all(connection.h11.send(answer) or b"")
        return Tunnel(connection)

    @property
    def hung_up(self) -> bool:
        """Whether the peer has shut its sending side. Responses without an end have to
        ask this.
        """
        return self._connection.policy.hung_up


class Tunnel:
    """The bytes of a connection that has left HTTP."""

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection
        self._first: bytes = bytes(connection.h11.trailing_data[0])

    async def receive(self) -> bytes:
        """Receive bytes as they come; empty once the peer has shut its sending side."""
        policy = self._connection.policy
        policy.enter(Phase.TUNNEL, trio.current_time())
        if self._first:
            first, self._first = self._first, b""
            return first
        data = await self._connection.receive()
        if not data:
            policy.enter(Phase.HALF_CLOSED, trio.current_time())
        return data

    async def send(self, data: bytes) -> None:
        """Send *data*, which counts as traffic of the tunnel."""
        await self._connection.transport.send_all(data)
        self._connection.policy.bytes_out(len(data), trio.current_time())


Route = Callable[[Exchange], Awaitable[None]]
"""Answers one request."""


class HttpConnection:
    """One connection while it has a task.

    Attributes:
        server: The limits, counters and configuration that apply.
        transport: The TCP connection, or TLS on it.
        policy: Is told of every wait.
        h11: The state machine; its `trailing_data` are the bytes of the next request so
            far.
        blank: How many bytes of empty lines have come before the next request.
    """

    def __init__(
        self,
        server: Shared,
        route: Callable[[str, str], Route],
        transport: Transport,
        policy: IdlePolicy,
        unread: bytes = b"",
        blank: int = 0,
    ) -> None:
        self.server = server
        self._route = route
        self.transport = transport
        self.policy = policy
        self.blank = blank
        self.h11 = self._protocol()
        if unread:
            self.h11.receive_data(unread)
        self._last = False  # whether the response in hand is the last of the connection
        self._opening = b""  # the first bytes of the request in hand
        self._fed = 0  # how many bytes have come since the request in hand began
        self._read = 0  # bytes that came for its body, with what is around the body
        self._used = 0  # bytes of its body
        self._pieces = 0  # events that were read of bodies
        self._persistent = False  # whether the request in hand lets the connection live on

    async def run(self) -> None:
        """Serve requests until one side ends the connection; then wait for the last
        response to go.

        Raises:
            trio.BrokenResourceError, trio.ClosedResourceError: the connection is lost.
        """
        try:
            while (request := await self._next_request()) is not None:
                await self._serve(request)
                if not await self._next_cycle():
                    break
            else:
                return  # the peer closed between two requests: nothing is on its way to it
        except h11.RemoteProtocolError as error:
            await self.answer_error(HttpError(error.error_status_hint, str(error)))
        except HttpError as error:
            await self.answer_error(error)
        await self._see_off()

    async def _next_request(self) -> h11.Request | None:
        now = trio.current_time()
        policy = self.policy
        begun = self._begin()
        if begun:
            policy.enter(Phase.HEADERS, now)
        else:
            self.transport.wait_for(Phase.KEEP_ALIVE, policy)
        while True:
            event = self.h11.next_event()
            if isinstance(event, h11.Request):
                self.blank = 0
                ahead = len(self.h11.trailing_data[0])
                policy.request(trio.current_time(), ahead, self._fed - ahead)
                self._read, self._used = ahead, 0
                self._check(event)
                return event
            if event is not h11.NEED_DATA:
                return None  # ConnectionClosed
            data = await self.receive()
            if not begun and data:
                data, self.blank = useful_of(data, self.blank)
                if not data:
                    continue
                begun = True
            self._opening = (self._opening + data[: len(HEAD)])[: len(HEAD)]
            self._fed += len(data)
            self.h11.receive_data(data)
            if data and policy.phase is not Phase.HEADERS:
                policy.enter(Phase.HEADERS, trio.current_time())

    def _begin(self) -> bool:
        """Whether some of the next request is here already. Empty lines before it are
        dropped.
        """
        waiting, closed = self.h11.trailing_data
        useful, self.blank = useful_of(bytes(waiting), self.blank)
        if len(useful) != len(waiting):
            self.h11 = self._protocol()
            if useful:
                self.h11.receive_data(useful)
            if closed:
                self.h11.receive_data(b"")
        self._opening, self._fed = useful[: len(HEAD)], len(useful)
        return bool(useful)

    def _protocol(self) -> h11.Connection:
        return h11.Connection(
            h11.SERVER, max_incomplete_event_size=self.server.config.limits.max_header_bytes
        )

    def _check(self, request: h11.Request) -> None:
        self.server.counters.requests += 1
        limit = self.server.config.limits.max_header_bytes
        size = len(request.target) + sum(
            len(name) + len(value) + 4 for name, value in request.headers
        )
        if size > limit:  # h11 counts only what is incomplete; all of it may have come at once
            raise HttpError(431, f"{size} bytes of headers; at most {limit} are accepted")
        if not request.http_version.startswith(b"1."):
            raise HttpError(
                505, f"HTTP/{request.http_version.decode()}; 1.0 and 1.1 are spoken here"
            )

    async def _serve(self, request: h11.Request) -> None:
        exchange = Exchange(self, request)
        asked = _words(exchange.headers.get("connection", ""))
        self._persistent = request.http_version != b"1.0" and "close" not in asked
        if "content-length" in exchange.headers and "transfer-encoding" in exchange.headers:
            # This may be a smuggled request: trust nothing that follows (RFC 9112
            # section 6.1).
            self._last = True
        route = self._route(exchange.method, exchange.path)
        try:
            try:
                await route(exchange)
            finally:
                exchange.over()
        except (HttpError, h11.RemoteProtocolError):
            if not exchange.started:
                raise
            self._last = True
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise
        except Exception:
            self.server.counters.failures += 1
            log.exception("%s %s failed", exchange.method, exchange.path)
            if not exchange.started:
                raise HttpError(500) from None
            self._last = True

    async def _next_cycle(self) -> bool:
        """Get ready for the next request. Returns False if this was the last one."""
        if self._last or self.h11.our_state is not h11.DONE:
            return False
        if self.h11.their_state is h11.SEND_BODY and not await self._discard():
            return False
        if self.h11.their_state is not h11.DONE:
            return False
        self.h11.start_next_cycle()
        return True

    async def _discard(self) -> bool:
        """Read what is left of a body that the route did not want. False: it is too
        much.
        """
        if self.h11.they_are_waiting_for_100_continue:
            return False
        total = 0
        while isinstance(event := await self.next_body_event(), h11.Data):
            total += len(event.data)
            if total > DISCARD_BYTES:
                return False
        return True

    async def next_body_event(self) -> h11.Event | type[h11.PAUSED]:
        """The next piece of the request body, or the event that ends it.

        Lets the loop run once for every `PIECES_PER_PASS` pieces, also if none has to
        be waited for.

        Raises:
            HttpError: 413, far more came around the body than may come in it.
        """
        self._pieces += 1
        if self._pieces % PIECES_PER_PASS == 0:
            await trio.lowlevel.checkpoint()
        while (event := self.h11.next_event()) is h11.NEED_DATA:
            if self.h11.they_are_waiting_for_100_continue:
                answer = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
                await self.transport.send_all(self.h11.send(answer) or b"")
            self.policy.enter(Phase.BODY, trio.current_time())
            data = await self.receive()
            self.policy.enter(Phase.IN_FLIGHT, trio.current_time())
            self._read += len(data)
            limit = self.server.config.limits.max_body_bytes
            if limit and self._read - self._used > limit + OVERHEAD_BYTES:
                raise HttpError(413, f"more than {limit} bytes around a body")
            self.h11.receive_data(data)
        if isinstance(event, h11.Data):
            self._used += len(event.data)
        return event  # type: ignore[return-value]

    async def receive(self) -> bytes:
        """Receive bytes as they come, decrypted; empty at the end of file."""
        return bytes(await self.transport.receive_some(RECEIVE_BYTES))

    def head(self, status: int, headers: Headers) -> bytes:
        """The status line and headers of a response.

        They also say whether the connection goes on, and for how long.
        """
        config = self.server.config
        said = [("date", self.server.date()), ("server", SERVER), *headers]
        if (
            self._last
            or self.policy.retired is not None
            or self.server.draining
            or self.server.leaving
        ):
            self._last = True
            said.append(("connection", "close"))
        elif config.timeouts.keep_alive and config.timeouts.keep_alive_margin and self._persistent:
            # Advertise less than the truth, so that the client stops using the
            # connection before the server closes it.
            advertised = int(config.timeouts.keep_alive - config.timeouts.keep_alive_margin)
            if advertised >= 1:
                said.append(("keep-alive", f"timeout={advertised}"))
        self.server.counters.responses[status] += 1
        event = h11.Response(status_code=status, headers=said, reason=HTTPStatus(status).phrase)
        return self.h11.send(event) or b""

    def piece(self, data: bytes) -> bytes:
        """A piece of a response's body, as it is sent."""
        return self.h11.send(h11.Data(data)) or b""

    def end(self) -> bytes:
        """What ends a body that was sent in pieces."""
        return self.h11.send(h11.EndOfMessage()) or b""

    async def answer_error(self, error: HttpError) -> None:
        """Answer a request that cannot be served, unless a response has begun.

        It is the last answer of the connection.
        """
        if self.h11.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            # The state machine cannot write this answer: of a request that could not be
            # read it does not know whether it was a HEAD.
            self.h11.send_failed()
            self.policy.enter(Phase.IN_FLIGHT, trio.current_time())
            await self.transport.send_all(last_words(self.server, error, self._opening))

    def nudge(self) -> None:
        """Find out whether a peer that has shut its side is still there for its answer,
        if one is being made.

        It is sent 100 Continue, which any client of HTTP/1.1 passes over. If the client
        has closed, its kernel answers with a reset. Does nothing under TLS.
        """
        waits = self.h11.our_state is h11.SEND_RESPONSE and self.policy.phase is Phase.IN_FLIGHT
        if waits and self.h11.their_http_version == b"1.1" and not self.transport.secure:
            data = (
                self.h11.send(
                    h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
                )
                or b""
            )
            with suppress(OSError):
                self.transport.sent += self.transport.write_now(memoryview(data))

    async def _see_off(self) -> None:
        """Close lingering: read what still comes, so that no reset overtakes the last
        answer.

        With `timeouts.linger` off the connection is closed at once, at that risk.
        """
        if self.server.config.timeouts.linger:
            self.transport.wait_for(Phase.LINGER, self.policy)
            await self.transport.read_away()
        else:
            self.transport.shut_down()


def last_words(server: Shared, error: HttpError, head: bytes) -> bytes:
    """The answer to a request that ends here; *head* is what came of its head."""
    body = f"{error}\n".encode()
    headers = [
        *(("date", server.date()), ("server", SERVER)),
        *(("content-type", "text/plain; charset=utf-8"), ("content-length", str(len(body)))),
        ("connection", "close"),
    ]
    answer = h11.Response(
        status_code=error.status, headers=headers, reason=HTTPStatus(error.status).phrase
    )
    server.counters.responses[error.status] += 1
    return (h11.Connection(h11.SERVER).send(answer) or b"") + (
        b"" if head.startswith(HEAD) else body
    )


def _words(header: str) -> set[str]:
    """The members of a list in a header, in lower case."""
    return {word.strip().lower() for word in header.split(",")}


def useful_of(data: bytes, blank: int) -> tuple[bytes, int]:
    """Strip the empty lines before a request from *data*.

    Returns what is left, and how many bytes of empty lines there were, *blank* of them
    before *data*. If there are too many, nothing is stripped, because h11 refuses what
    begins with them.
    """
    useful = data.lstrip(b"\r\n")
    blank += len(data) - len(useful)
    return (useful if blank <= BLANK_BYTES else data), blank
