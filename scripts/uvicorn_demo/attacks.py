"""Fourteen ways to hold a connection of an HTTP server without doing anything with it.

The rule of this module: *only the client's side is looked at*. An attack knows nothing of the server; it reports how
long it was borne, from the instant that a correct server would count from, to the close as its own kernel saw it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from time import monotonic

PAUSE = 0.2
"""Seconds between two dripped bytes, or two sips."""

LOOK = 0.02
"""Seconds between two looks at a connection that must not be read."""

HOST = b"host: attacked\r\n"
BIG = b"GET /big HTTP/1.1\r\n" + HOST + b"\r\n"
WEBSOCKET = (
    b"GET /ws HTTP/1.1\r\n" + HOST + b"connection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
ESTABLISHED, CLOSE_WAIT = 1, 8
SMALL_BUFFER = 4096
"""Bytes that an attacker's kernel may hold for it, so that a response stops soon."""


@dataclass(frozen=True, slots=True)
class Borne:
    """What became of one attack."""

    seconds: float | None
    """From the instant a correct server would count from, to the close; None: the connection was still open."""
    said: bytes = b""
    """What the server said last."""


class Client:
    """One attacking connection to *port* of 127.0.0.1."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.since = 0.0
        self.said = b""

    async def connect(self, buffer: int = 0) -> None:
        """Connect; a correct server counts from here."""
        self.socket = socket.socket()
        self.socket.setblocking(False)
        if buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        loop = asyncio.get_running_loop()
        self.count()
        await loop.sock_connect(self.socket, ("127.0.0.1", self.port))

    def count(self) -> None:
        """A correct server counts from this instant, or later."""
        self.since = monotonic()

    async def send(self, data: bytes) -> None:
        """Send *data*."""
        await asyncio.get_running_loop().sock_sendall(self.socket, data)

    async def receive(self, most: int = 65536) -> bytes:
        """Some bytes; empty when it was closed."""
        try:
            data = await asyncio.get_running_loop().sock_recv(self.socket, most)
        except OSError:
            return b""
        self.said = (self.said + data)[-1000:]
        return data

    async def request(self, path: bytes = b"/") -> None:
        """One whole request, and its response read."""
        self.count()
        await self.send(b"GET " + path + b" HTTP/1.1\r\n" + HOST + b"\r\n")
        said = b""
        while not said.endswith(b"hello"):
            data = await self.receive()
            if not data:
                raise ConnectionError("closed before it answered")
            said += data
        self.said = b""

    async def until_closed(self) -> None:
        """Read until it is closed."""
        while await self.receive():
            pass

    async def until_closed_unread(self) -> None:
        """Read nothing until it is closed."""
        while self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] not in (7, CLOSE_WAIT):
            await asyncio.sleep(LOOK)

    async def drip(self, data: bytes) -> None:
        """*data* again and again, a byte at a time, until it is closed."""
        with contextlib.suppress(OSError):
            while True:
                for byte in data:
                    await self.send(bytes([byte]))
                    await asyncio.sleep(PAUSE)

    @contextlib.asynccontextmanager
    async def dripping(self, data: bytes) -> AsyncIterator[None]:
        """`drip` for the length of the block."""
        task = asyncio.create_task(self.drip(data))
        try:
            yield
        finally:
            task.cancel()


Attack = Callable[[Client], Awaitable[None]]


async def says_nothing(client: Client) -> None:
    """Connects and says nothing."""
    await client.connect()
    await client.until_closed()


async def drips_headers(client: Client) -> None:
    """Sends its headers a byte at a time."""
    await client.connect()
    client.count()
    await client.send(b"GET / HTTP/1.1\r\n" + HOST)
    async with client.dripping(b"x-a: b\r\n"):
        await client.until_closed()


async def drips_second_headers(client: Client) -> None:
    """The same, of a second request."""
    await client.connect()
    await client.request()
    client.count()
    await client.send(b"GET / HTTP/1.1\r\n" + HOST)
    async with client.dripping(b"x-a: b\r\n"):
        await client.until_closed()


async def stops_in_body(client: Client) -> None:
    """Announces a body and stops in the middle of it."""
    await client.connect()
    await client.send(b"POST /echo HTTP/1.1\r\n" + HOST + b"content-length: 100000\r\n\r\n")
    await asyncio.sleep(PAUSE)
    client.count()
    await client.send(b"x" * 1000)
    await client.until_closed()


async def drips_body(client: Client) -> None:
    """Sends a body a byte at a time."""
    await client.connect()
    client.count()
    await client.send(b"POST /echo HTTP/1.1\r\n" + HOST + b"content-length: 100000\r\n\r\n")
    async with client.dripping(b"x"):
        await client.until_closed()


async def does_not_read(client: Client) -> None:
    """Asks for much and reads nothing of it."""
    await client.connect(SMALL_BUFFER)
    client.count()
    await client.send(BIG)
    await client.until_closed_unread()


async def reads_a_trickle(client: Client) -> None:
    """Asks for much and reads a few bytes per second."""
    await client.connect(SMALL_BUFFER)
    client.count()
    await client.send(BIG)
    while await client.receive(10):
        await asyncio.sleep(PAUSE)
        if client.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in (7, CLOSE_WAIT):
            return


async def shuts_and_does_not_read(client: Client) -> None:
    """Asks for much, half-closes, and reads nothing."""
    await client.connect(SMALL_BUFFER)
    client.count()
    await client.send(BIG)
    await asyncio.sleep(PAUSE)
    client.socket.shutdown(socket.SHUT_WR)
    while client.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] not in (7, 6):  # reset, or FIN from it
        await asyncio.sleep(LOOK)


async def stays_idle(client: Client) -> None:
    """One request, then silence."""
    await client.connect()
    await client.request()
    await client.until_closed()


async def grows_old(client: Client) -> None:
    """One request after the other, for ever."""
    await client.connect()
    since = client.since
    with contextlib.suppress(ConnectionError):
        while True:
            await client.request()
            await asyncio.sleep(PAUSE)
    client.since = since


async def drips_websocket_handshake(client: Client) -> None:
    """Sends the handshake of a WebSocket a byte at a time."""
    await client.connect()
    client.count()
    await client.send(WEBSOCKET)
    async with client.dripping(b"x-a: b\r\n"):
        await client.until_closed()


async def leaves_websocket_open(client: Client) -> None:
    """Opens a WebSocket and answers nothing, no ping either."""
    await client.connect()
    client.count()
    await client.send(WEBSOCKET + b"\r\n")
    await client.until_closed()


async def stops_in_tls_handshake(client: Client) -> None:
    """Begins a TLS handshake and stops."""
    await client.connect()
    await client.send(b"\x16\x03\x01")
    await client.until_closed()


async def ignores_close_notify(client: Client) -> None:
    """One request over TLS, then silence, and it never closes by itself."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(incoming, outgoing)
    await client.connect()

    async def until_done(step: Callable[[], object]) -> None:
        while True:
            try:
                step()
                return
            except ssl.SSLWantReadError:
                await client.send(outgoing.read())
                incoming.write(await client.receive())

    await until_done(session.do_handshake)
    client.count()
    session.write(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
    await client.send(outgoing.read())
    await until_done(lambda: session.read(65536))
    await client.until_closed()


PLAIN: tuple[Attack, ...] = (
    says_nothing,
    drips_headers,
    drips_second_headers,
    stops_in_body,
    drips_body,
    does_not_read,
    reads_a_trickle,
    shuts_and_does_not_read,
    stays_idle,
    grows_old,
    drips_websocket_handshake,
    leaves_websocket_open,
)
OVER_TLS: tuple[Attack, ...] = (stops_in_tls_handshake, ignores_close_notify)


async def borne(attack: Attack, port: int, patience: float) -> Borne:
    """Attack the server at *port* of 127.0.0.1 once, and give up after *patience* seconds."""
    client = Client(port)
    try:
        async with asyncio.timeout(patience) as limit:
            with contextlib.suppress(ConnectionError):  # a reset ends it as well
                await attack(client)
        return Borne(monotonic() - client.since, client.said)
    except TimeoutError:
        if not limit.expired():
            raise
        return Borne(None, client.said)
    finally:
        client.socket.close()


async def all_borne(
    attacks: tuple[Attack, ...], port: int, patience: float, each: int = 1
) -> dict[Attack, list[Borne]]:
    """Every one of *attacks*, *each* times, all at once."""
    found = await asyncio.gather(*(borne(attack, port, patience) for attack in attacks for _ in range(each)))
    return {attack: list(found[i * each : (i + 1) * each]) for i, attack in enumerate(attacks)}
