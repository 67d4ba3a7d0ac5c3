"""What a guarded protocol is told, and in which order, beside what asyncio and uvloop
tell it themselves: a client's last words, cut at every place.

The client shakes hands, writes two records, says goodbye, and ends the connection by
FIN or by RST. Its last flight goes out in one piece, or in two, between which the
server reads all that has come; or the client leaves in the middle of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

import reaper.asyncio
from reaper.asyncio import AsyncioReaper, tls
from reaper.asyncio.guards import OnTransport, guard_server
from reaper.policy import Phase
from tests.helpers.program_trials import reset

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

HOUR = 3600.0
PASSES = 8
"""Of the loop: by then it has read what has come, and told of it."""
RECORDS = b"first", b"second"
Contexts = tuple[ssl.SSLContext, ssl.SSLContext]


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture(params=[ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
def contexts(certificate: tuple[str, str], request: pytest.FixtureRequest) -> Contexts:
    """The server's and the client's."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(*certificate)
    client = ssl.create_default_context(cafile=certificate[0])
    client.minimum_version = client.maximum_version = request.param
    return server, client


# ---- who is told


class Noting(asyncio.BaseProtocol):
    """Notes what it is told, and what its transport says then. Answers what it gets.

    Args:
        heard: Where it notes.
    """

    def __init__(self, heard: list[Any]) -> None:
        self.heard = heard

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.heard.append(("made", transport.is_closing()))

    def took(self, data: bytes) -> None:
        self.heard.append(("data", data, self.transport.is_closing()))
        self.transport.write(data.upper())

    def eof_received(self) -> None:
        self.heard.append(("eof", self.transport.is_closing()))

    def connection_lost(self, exc: Exception | None) -> None:
        self.heard.append(("lost", type(exc).__name__))


class Recorder(Noting, asyncio.Protocol):
    """The same of a protocol that is handed bytes."""

    def data_received(self, data: bytes) -> None:
        self.took(data)


class Buffered(Noting, asyncio.BufferedProtocol):
    """The same of a protocol that owns its buffer."""

    def get_buffer(self, sizehint: int) -> bytearray:
        self.buffer = bytearray(1024)
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.took(bytes(self.buffer[:nbytes]))


class Later(Recorder):
    """Reads only some passes after the connection was made."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.pause_reading()
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, transport.resume_reading)


class Leaving(Recorder):
    """Closes as soon as it has heard something."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.transport.close()


KINDS: dict[str, type[Noting]] = {
    "plain": Recorder,
    "buffered": Buffered,
    "later": Later,
    "leaving": Leaving,
}

# ---- who stands around it

Factory = Callable[[], Any]
Around = Callable[[Factory, ssl.SSLContext, AsyncioReaper], Awaitable[Any]]
"""Makes the server."""


async def stock(factory: Factory, context: ssl.SSLContext, _: AsyncioReaper) -> Any:
    return await asyncio.get_running_loop().create_server(factory, "127.0.0.1", 0, ssl=context)


async def a_door(factory: Factory, context: ssl.SSLContext, watcher: AsyncioReaper) -> Any:
    create, options = watcher.loop.create_server, {"ssl": context}
    return await tls.create_server(create, factory, options, 10.0, lambda: watcher, "127.0.0.1", 0)


async def a_guard(factory: Factory, context: ssl.SSLContext, watcher: AsyncioReaper) -> Any:
    return await stock(reaper.asyncio.guard(factory, HOUR, reaper=watcher), context, watcher)


class Works(OnTransport):
    """A connection whose server works."""

    __slots__ = ()

    def phase(self) -> Phase:
        return Phase.IN_FLIGHT


def served_by(make: Around) -> Around:
    async def instead(factory: Factory, context: ssl.SSLContext, watcher: AsyncioReaper) -> Any:
        return await make(guard_server(factory, Works, lambda: watcher), context, watcher)

    return instead


AROUND = {
    "a door": a_door,
    "a guard": a_guard,
    "a guard of HTTP": served_by(stock),
    "both": served_by(a_door),
}


class Play(NamedTuple):
    """What a client does after its hello.

    Attributes:
        place: Where its last flight is cut: each even number is between two of its
            pieces, each odd one in the middle of one. The pieces are the end of the
            handshake, the records, and the goodbye.
        goes_on: Whether the rest follows.
        end: How it leaves.
    """

    place: int
    goes_on: bool
    end: Callable[[socket.socket], object]


def fin(client: socket.socket) -> None:
    client.shutdown(socket.SHUT_WR)


ENDS = fin, reset


async def passes() -> None:
    for _ in range(PASSES):
        await asyncio.sleep(0)


PLACES = range(2 * (len(RECORDS) + 2) + 1)
PLAYS = [
    Play(place, goes_on, end)
    for place, goes_on, end in itertools.product(PLACES, [True, False], ENDS)
    if goes_on or place != PLACES[-1]
]


def cut(pieces: list[bytes], place: int) -> tuple[bytes, bytes]:
    """What goes out before *place*, and what after it."""
    whole, (piece, inside) = b"".join(pieces), divmod(place, 2)
    at = len(b"".join(pieces[:piece])) + inside * (len(b"".join(pieces[piece : piece + 1])) // 2)
    return whole[:at], whole[at:]


async def perform(address: Any, play: Play, context: ssl.SSLContext) -> bytes:
    """Do what *play* says. Returns what was answered, decrypted."""
    came, goes, answer = ssl.MemoryBIO(), ssl.MemoryBIO(), b""
    there = context.wrap_bio(came, goes, server_hostname="127.0.0.1")
    with socket.create_connection(address) as client:
        client.setblocking(False)
        # Or a slow machine's kernel keeps a piece until the one before is acknowledged,
        # and a reset takes it back.
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def take() -> None:
            with contextlib.suppress(BlockingIOError):
                while data := client.recv(65536):
                    came.write(data)

        while True:
            with contextlib.suppress(ssl.SSLWantReadError):
                there.do_handshake()
                break
            client.send(goes.read())
            await passes()
            take()
        pieces = [goes.read()]  # empty before TLS 1.3
        for record in RECORDS:
            there.write(record)
            pieces.append(goes.read())
        with contextlib.suppress(ssl.SSLWantReadError):
            there.unwrap()
        first, rest = cut([*pieces, goes.read()], play.place)
        client.send(first)
        if play.goes_on and rest:
            await passes()
            client.send(rest)
        play.end(client)
        await passes()
        if play.end is fin:
            take()
            with contextlib.suppress(ssl.SSLError):
                while data := there.read():
                    answer += data
    await passes()
    return answer


@asynccontextmanager
async def served(
    around: Around, kind: type[Noting], context: ssl.SSLContext
) -> AsyncIterator[tuple[list[Any], Any]]:
    """What the protocols of a server note, and its address."""
    heard: list[Any] = []
    async with reaper.asyncio.open_reaper(tick=1.0) as watcher:
        server = await around(lambda: kind(heard), context, watcher)
        yield heard, server.sockets[0].getsockname()
        server.close()
        assert len(watcher) == len(watcher.core) == 0


async def heard_of(around: Around, kind: type[Noting], contexts: Contexts) -> dict[Play, Any]:
    """What is heard of every play, and what is answered."""
    found = {}
    server, client = contexts
    async with served(around, kind, server) as (heard, address):
        for play in PLAYS:
            heard.clear()
            answer = await perform(address, play, client)
            found[play] = tuple(heard), answer
    return found


@pytest.mark.parametrize("kind", KINDS)
async def test_over_tls_a_protocol_is_told_what_the_loop_itself_would_tell_it(
    kind: str, contexts: Contexts
) -> None:
    wanted = await heard_of(stock, KINDS[kind], contexts)
    for name, around in AROUND.items():
        found = await heard_of(around, KINDS[kind], contexts)
        differ = {
            play: (told, wanted[play]) for play, told in found.items() if told != wanted[play]
        }
        assert not differ, name
