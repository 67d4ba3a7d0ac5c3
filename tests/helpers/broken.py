"""Small servers that are right, but for one thing each: what judges of servers are
judged by.

One rule: *a fault is one place in the code of an honest server*, named by `FAULTS`.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import socket
import ssl
from contextlib import suppress
from typing import Any

from loadgen.playing.client import reset_on_close

LIMIT = 0.6
"""Seconds of each of its limits."""
LINGER = 0.3
"""Seconds for which it reads on after it was told to stop: a request may be on its
way.
"""
PIECE = 1 << 16
EVENT = b"data: tick\n\n"

FAULTS = {
    "closes 100 ms before its keep-alive": r"`keep_alive`|says nothing after|at a distance of 20",
    "forgets a connection after a POST": r"says nothing after (a POST|an answer that came)",
    "answers 408 after a whole answer": r"says nothing after|half-closes after an answer",
    "loses the second of two pipelined": r"pipelin",
    "closes after four requests, and does not say so": r"five times|half of a third|three requests"
    r"|three pipelined|asks all the time|posts at a distance",
    "resets with an answer unread": r"says close|HTTP/1.0|takes|half-closes",
    "holds a dripped head": r"drips",
    "counts the second head from the first request": r"second head|third|half a request",
    "cuts a route that is slower than its keep-alive": r"route|pauses",
    "cuts an answer that pauses": r"pauses|events",
    "never says continue": r"100 Continue|told to continue",
    "loses who half-closes": r"half-closes",
    "bounds a body as a whole": r"body|chunks|uploads slowly",
    "holds half a body": r"no body|half a body|half a chunk|last chunk|sends no body",
    "holds who says nothing": r"connects, and sends nothing|has never asked",
    "answers HEAD with a body": r"by HEAD",
    "refuses an empty line": r"empty line",
    "takes trailers for a request": r"trailers|no chunk but the last",
    "holds who takes nothing": r"takes nothing|takes no more",
    "cuts who takes slowly": r"takes (6 MB slowly|a big message slowly)",
    "answers pipelined requests in the wrong order": r"pipelin",
    "answers no Ping": r"WebSocket: pings",
    "answers no goodbye": r"WebSocket: says goodbye",
    "holds a WebSocket": r"WebSocket: (says nothing|sends half a frame)",
    "cuts what is asked when told to stop": r"at a stop: .*(route|pauses|takes 6|body|head|all the time|events)",
    "closes idle connections at once when told to stop": r"at a stop: asks all the time",
    "ends an event stream amid an event": r"at a stop: listens",
    "stays when told to stop": r"at a stop: (says|has connected|ends when)",
}
"""Each fault, and which kinds of clients may find it: one of them at least, and no
other.
"""


def answer_of(path: str, number: float, body: bytes) -> tuple[list[bytes], float]:
    """The pieces of the answer of *path*, and the seconds between two of them."""
    if path == "/pause":
        return [b"first", b"after"], number
    if path == "/drops":
        return [b"0123456789"] * int(number), 0.004
    if path == "/some":
        return [bytes(int(number))], 0.0
    return [body if path in ("/echo", "/late") else b"hello"], 0.0


class Gone(Exception):
    """The connection is over."""


class Broken:
    """A server of HTTP/1.1 with the routes of `conform`, and one *fault*; "": none."""

    faults = FAULTS

    def __init__(self, fault: str = "", context: ssl.SSLContext | None = None) -> None:
        """*context*: of a server that speaks TLS."""
        self.fault, self.context = fault, context
        self.stopping = asyncio.Event()
        self.open: set[asyncio.Task[None]] = set()
        self.server: asyncio.Server | None = None

    def __repr__(self) -> str:
        return f"<Broken: {self.fault or 'honest'}>"

    def has(self, fault: str) -> bool:
        """Whether it has that fault."""
        assert fault in self.faults or fault in FAULTS
        return self.fault == fault

    async def start(self) -> tuple[str, int]:
        """Listen; where."""
        tls: dict[str, Any] = {}
        if self.context is not None:
            tls = {"ssl": self.context, "ssl_handshake_timeout": LIMIT}
        self.server = await asyncio.start_server(
            self.connection, "127.0.0.1", 0, limit=1 << 20, **tls
        )
        address: tuple[str, int] = self.server.sockets[0].getsockname()[:2]
        return address

    async def end(self) -> None:
        """Let go of everybody."""
        assert self.server is not None
        self.server.close()
        while self.open:
            tasks = tuple(self.open)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        await asyncio.sleep(0.02)  # for the transports to close

    @property
    def status(self) -> int | None:
        """0 once it was told to stop, and nobody is there."""
        return 0 if self.stopping.is_set() and not self.open else None

    def told(self, number: int) -> None:
        """Stop."""
        if self.server is not None:
            self.server.close()
        self.stopping.set()
        if self.has("cuts what is asked when told to stop"):
            for task in self.open:
                task.cancel()

    # ---- a connection
    async def connection(self, reader: Any, writer: Any) -> None:
        """Serve it, until it is over."""
        task: Any = asyncio.current_task()
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PIECE)
        self.open.add(task)
        try:
            await self.serve(reader, writer)
        except (Gone, OSError, asyncio.IncompleteReadError, ValueError):
            pass
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            with suppress(OSError, RuntimeError):
                writer.close()
            self.open.discard(task)

    async def serve(self, reader: Any, writer: Any) -> None:
        """Serve a connection that is up."""
        await Connection(self, reader, writer).serve()


class Connection:
    """One connection of a server."""

    def __init__(self, server: Broken, reader: Any, writer: Any) -> None:
        self.server, self.reader, self.writer = server, reader, writer
        self.count = 0
        self.posted = False
        self.ends = False
        self.began = asyncio.get_running_loop().time()
        self.head_began = 0.0
        self.held: list[bytes] = []

    def has(self, fault: str) -> bool:
        """Whether the server has that fault."""
        return self.server.has(fault)

    async def serve(self) -> None:
        """Answer request after request."""
        while not self.ends:
            line, headers = await self.head()
            self.count += 1
            stopping = self.server.stopping.is_set()
            method, path, version = line.split()
            asked = headers.get("connection", "").lower()
            self.ends = asked == "close" or version == "HTTP/1.0" or stopping
            if "upgrade" in headers:
                await self.websocket(headers)
                return
            await self.answer(method, path, headers)
            if self.count >= 4 and self.has("closes after four requests, and does not say so"):
                return
            self.head_began = asyncio.get_running_loop().time()

    async def within(self, seconds: float | None, what: Any) -> Any:
        """Await *what* for so long. Raises TimeoutError."""
        async with asyncio.timeout(seconds):
            return await what

    async def first(self) -> bytes:
        """The first byte of a head. Raises Gone: none came in time."""
        limit: float | None = LIMIT
        if self.count == 0 and self.has("holds who says nothing"):
            limit = None
        if self.count and self.has("closes 100 ms before its keep-alive"):
            limit = LIMIT - 0.1
        if self.posted and self.has("forgets a connection after a POST"):
            limit = None
        coming = asyncio.ensure_future(self.reader.read(1))
        stopping = asyncio.ensure_future(self.server.stopping.wait())
        try:
            done, _ = await asyncio.wait(
                (coming, stopping), timeout=limit, return_when=asyncio.FIRST_COMPLETED
            )
            if coming not in done and stopping in done:
                wait = LINGER
                if self.has("closes idle connections at once when told to stop"):
                    wait = 0.0
                if self.has("stays when told to stop"):
                    wait = 10.0
                await asyncio.wait((coming,), timeout=wait)
            if coming.done() and coming.result():
                return bytes(coming.result())
        finally:
            coming.cancel()
            stopping.cancel()
        if self.count and self.has("answers 408 after a whole answer"):
            self.writer.write(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
        raise Gone

    async def head(self) -> tuple[str, dict[str, str]]:
        """The request line, and the headers."""
        data = await self.first()
        loop = asyncio.get_running_loop()
        until = loop.time() + LIMIT
        if self.count and self.has("counts the second head from the first request"):
            until = self.head_began + LIMIT
        try:
            while not data.endswith(b"\r\n\r\n"):
                if self.has("holds a dripped head"):
                    data += await self.within(LIMIT, self.reader.readexactly(1))
                    continue
                data += await self.within(until - loop.time(), self.reader.readuntil(b"\r\n"))
                if not self.has("refuses an empty line"):
                    data = data.removeprefix(b"\r\n")
        except TimeoutError:
            self.refuse(408)
        lines = data.decode().split("\r\n")
        if len(lines[0].split()) != 3:
            self.refuse(400)
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        headers = {name.lower(): value for name, value in headers.items()}
        return lines[0], headers

    def refuse(self, status: int) -> None:
        """Say so, and end. Raises Gone."""
        head = f"HTTP/1.1 {status} No\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        self.writer.write(head.encode())
        raise Gone

    async def body(self, headers: dict[str, str]) -> bytes:
        """The body of a request. Raises Gone: it did not come in time."""
        loop = asyncio.get_running_loop()
        until = loop.time() + LIMIT

        async def piece(what: Any) -> bytes:
            limit: float | None = LIMIT
            if self.has("holds half a body"):
                limit = None
            elif self.has("bounds a body as a whole"):
                limit = until - loop.time()
            try:
                data: bytes = await self.within(limit, what)
            except TimeoutError:
                self.refuse(408)
            if not data:
                raise Gone
            return data

        body = b""
        if headers.get("transfer-encoding") == "chunked":
            while True:
                size = int((await piece(self.reader.readline())).strip() or b"0", 16)
                if not size:
                    break
                chunk = b""
                while len(chunk) < size + 2:
                    chunk += await piece(self.reader.read(size + 2 - len(chunk)))
                body += chunk[:-2]
            while not self.has("takes trailers for a request"):
                if not (await piece(self.reader.readline())).strip():
                    break
            return body
        size = int(headers.get("content-length", 0))
        while len(body) < size:
            body += await piece(self.reader.read(size - len(body)))
        return body

    async def answer(self, method: str, path: str, headers: dict[str, str]) -> None:
        """Answer a request."""
        path, _, query = path.partition("?")
        number = float(query or 0)
        self.posted = method == "POST"
        route = self.rest(number) if path in ("/slow", "/late") else None
        if route is not None:
            await route
        expects = headers.get("expect") == "100-continue"
        if expects and not self.has("never says continue"):
            self.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = b"" if path == "/early" else await self.body(headers)
        if self.reader.at_eof() and self.has("loses who half-closes"):
            raise Gone
        if path == "/events":
            await self.events(int(number))
            return
        pieces, rest = answer_of(path, number, body)
        behind = b"HTTP/1.1" in bytes(self.reader._buffer)
        if behind and self.has("answers pipelined requests in the wrong order"):
            self.held.append(self.made(pieces))
            return
        if self.count == 2 and self.pipelined and self.has("loses the second of two pipelined"):
            return
        self.pipelined = behind
        self.writer.write(self.made(pieces, head_only=True))
        if method != "HEAD" or self.has("answers HEAD with a body"):
            for place, piece in enumerate(pieces):
                if place:
                    await self.pause(rest)
                await self.send(piece)
        while self.held:
            self.writer.write(self.held.pop())
        if path == "/early":
            await self.body(headers)
        if self.ends and self.has("resets with an answer unread"):
            self.reset()

    pipelined = False

    async def rest(self, seconds: float) -> None:
        """What a slow route does."""
        if self.has("cuts a route that is slower than its keep-alive") and seconds > LIMIT:
            await asyncio.sleep(LIMIT)
            raise Gone
        await asyncio.sleep(seconds)

    async def pause(self, seconds: float) -> None:
        """Wait between two pieces of an answer."""
        if self.has("cuts an answer that pauses") and seconds > LIMIT / 3:
            raise Gone
        await asyncio.sleep(seconds)

    def made(self, pieces: list[bytes], *, head_only: bool = False) -> bytes:
        """An answer."""
        close = b"Connection: close\r\n" if self.ends else b""
        head = b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n\r\n"
        made = head % (close, sum(map(len, pieces)))
        return made if head_only else made + b"".join(pieces)

    async def send(self, data: bytes) -> None:
        """Send *data* as the client takes it. Raises Gone: it takes nothing."""
        loop = asyncio.get_running_loop()
        until = loop.time() + LIMIT
        reset = self.ends and self.has("resets with an answer unread")
        for place in range(0, len(data), PIECE):
            self.writer.write(data[place : place + PIECE])
            if reset:
                continue
            if self.has("cuts who takes slowly"):
                limit: float | None = until - loop.time()
            else:
                limit = None if self.has("holds who takes nothing") else LIMIT
            try:
                await self.within(limit, self.writer.drain())
            except TimeoutError:
                self.reset()
        transport = self.writer.transport
        until = loop.time() + LIMIT
        while transport.get_write_buffer_size() and not reset:
            await asyncio.sleep(0.02)
            held = self.has("holds who takes nothing")
            left = transport.get_write_buffer_size()
            if loop.time() > until and left and not held:
                self.reset()

    def reset(self) -> None:
        """End by RST: nothing waits for the client in the kernel. Raises Gone."""
        reset_on_close(self.writer.get_extra_info("socket"))
        self.writer.transport.abort()
        raise Gone

    async def events(self, count: int) -> None:
        """An event stream in chunks."""
        self.writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        for place in range(count):
            if place:
                with suppress(TimeoutError):
                    await self.pause(0)
                    await self.within(0.4, self.server.stopping.wait())
            if self.server.stopping.is_set():
                if self.has("ends an event stream amid an event"):
                    self.writer.write(b"5\r\ndata:\r\n")
                break
            self.writer.write(b"%x\r\n%b\r\n" % (len(EVENT), EVENT))
        self.writer.write(b"0\r\n\r\n")

    async def websocket(self, headers: dict[str, str]) -> None:
        """Answer each message with itself."""
        key = headers["sec-websocket-key"].encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key).digest())
        self.writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: %b\r\n\r\n" % accept
        )
        message = b""
        stop = asyncio.ensure_future(self.server.stopping.wait())
        coming: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            while True:
                limit = None if self.has("holds a WebSocket") else LIMIT
                coming = asyncio.ensure_future(self.frame())
                done, _ = await asyncio.wait(
                    (coming, stop), timeout=limit, return_when=asyncio.FIRST_COMPLETED
                )
                if coming not in done:
                    coming.cancel()
                    self.writer.write(b"\x88\x02\x03\xe9")
                    return
                first, data = coming.result()
                opcode = first & 0x0F
                if opcode == 9 and not self.has("answers no Ping"):
                    self.writer.write(bytes([0x8A, len(data)]) + data)
                elif opcode == 8:
                    if not self.has("answers no goodbye"):
                        self.writer.write(bytes([0x88, len(data)]) + data)
                    return
                elif opcode in (0, 1):
                    message += data
                    if first & 0x80:
                        if message == b"big":
                            size = (1_000_000).to_bytes(8, "big")
                            await self.send(b"\x82\x7f" + size + bytes(1_000_000))
                        else:
                            self.writer.write(bytes([0x81, len(message)]) + message)
                        message = b""
        finally:
            stop.cancel()
            coming.cancel()
            with suppress(BaseException):
                await coming

    async def frame(self) -> tuple[int, bytes]:
        """The first byte of a frame, and its data, which is masked by zeros."""
        first, size = await self.reader.readexactly(2)
        return first, (await self.reader.readexactly(4 + (size & 0x7F)))[4:]
