"""A TLS connection at rest gives back its buffers, and a busy one keeps them. The looks
are called by hand, so nothing waits.
"""

from __future__ import annotations

import asyncio
import asyncio.sslproto
import ctypes
import gc
import mmap
import random
import ssl
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve

import reaper.asyncio
import reaper.websockets
from reaper.asyncio import at_rest
from reaper.asyncio.at_rest import ROUND, SMALL, Resting
from reaper.asyncio.reaper import AsyncioReaper
from reaper.config import ReaperConfig
from reaper.config.settings import Reaper
from tests.helpers.echo import Echo

pytestmark = pytest.mark.anyio

LARGE = 3_000_000
FULL = asyncio.sslproto.SSLProtocol.max_size


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": False}


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()


async def by_guard(watcher: AsyncioReaper, context: ssl.SSLContext) -> Any:
    made = reaper.asyncio.guard(Echo, idle=60, reaper=watcher)
    return await watcher.loop.create_server(made, "127.0.0.1", 0, ssl=context)


async def by_start_server(watcher: AsyncioReaper, context: ssl.SSLContext) -> Any:
    return await reaper.asyncio.start_server(
        echo, "127.0.0.1", 0, idle=60, reaper=watcher, ssl=context
    )


async def by_protocol(watcher: AsyncioReaper, context: ssl.SSLContext) -> Any:
    made = partial(type("Own", (Echo, reaper.asyncio.Protocol), {"reaper": watcher}))
    return await watcher.loop.create_server(made, "127.0.0.1", 0, ssl=context)


WAYS = [by_guard, by_start_server, by_protocol]


class Client:
    """A client of an echo server, and what the server holds for it."""

    def __init__(self, watcher: AsyncioReaper, streams: Any) -> None:
        self.reader, self.writer = streams
        assert watcher.resting is not None
        self.resting = watcher.resting
        self.now = 0.0

    async def echoes(self, size: int) -> None:
        data = bytes(range(1, 251)) * (size // 250 + 1)
        self.writer.write(data)
        assert await self.reader.readexactly(len(data)) == data

    def look(self) -> None:
        self.now += ROUND
        self.resting.look(self.now)

    @property
    def held(self) -> Any:
        [reference] = self.resting._members
        return reference()


def contexts_of(certificate: tuple[str, str]) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a server, and of a client that trusts it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    trust = ssl.create_default_context(cafile=certificate[0])
    trust.check_hostname = False
    return context, trust


@asynccontextmanager
async def client_of(way: Callable[..., Any], certificate: tuple[str, str]) -> AsyncIterator[Client]:
    context, trust = contexts_of(certificate)
    # The tick is so long, and no client is asked whether it has vanished: no looks but
    # those of these tests, however long they take.
    said = {"timeouts.idle": "10m", "reaper.tick": "5m", "timeouts.vanished": "0s"}
    config = ReaperConfig.load(environ={}, overrides=said)
    async with reaper.asyncio.open_reaper(config=config) as watcher:
        server = await way(watcher, context)
        address = server.sockets[0].getsockname()
        client = Client(watcher, await asyncio.open_connection(*address, ssl=trust))
        await client.echoes(100)
        try:
            yield client
        finally:
            client.writer.close()
            server.close()


@pytest.mark.skipif(sys.platform != "linux", reason="no page can be given back at once")
@pytest.mark.parametrize("way", WAYS)
async def test_a_connection_is_lent_a_buffer_and_its_pages_go_when_it_is_at_rest(
    way: Any, certificate: tuple[str, str]
) -> None:
    async with client_of(way, certificate) as client:
        buffer = client.held._ssl_buffer
        assert isinstance(buffer, mmap.mmap)
        assert len(buffer) == len(client.held._ssl_buffer_view) == FULL
        for released in (1, 2):
            await client.echoes(LARGE)
            client.look()
            assert buffer[:].strip(b"\0")  # who knows when it was last read
            for _ in range(3):
                client.look()
                assert not buffer[:].strip(b"\0")
                assert client.resting.released == released
        await client.echoes(100)
        assert client.held._ssl_buffer is buffer


async def test_only_so_many_are_lent_a_buffer_and_none_where_the_system_has_none(
    certificate: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(at_rest, "LENT", 0)
    async with client_of(by_guard, certificate) as client:
        assert isinstance(client.held._ssl_buffer, bytearray)
    monkeypatch.undo()

    def none(*given: Any) -> None:
        raise OSError

    monkeypatch.setattr(mmap, "mmap", type("Refused", (mmap.mmap,), {"__new__": none}))
    async with client_of(by_guard, certificate) as client:
        assert isinstance(client.held._ssl_buffer, bytearray)


@pytest.mark.parametrize("way", WAYS)
async def test_who_is_lent_none_holds_none_at_rest_and_wakes_with_a_small_one(
    way: Any, certificate: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(at_rest, "LENT", 0)
    async with client_of(way, certificate) as client:
        assert len(client.held._ssl_buffer) == FULL
        client.look()
        assert len(client.held._ssl_buffer) == FULL  # who knows when it was last read
        client.look()
        assert (len(client.held._ssl_buffer), client.resting.released) == (0, 1)
        await client.echoes(100)
        assert len(client.held._ssl_buffer) == SMALL
        for _ in range(3):
            client.look()
        assert (len(client.held._ssl_buffer), client.resting.released) == (0, 2)
        await client.echoes(LARGE)


async def test_a_connection_that_is_read_from_between_two_looks_is_not_touched(
    certificate: tuple[str, str],
) -> None:
    async with client_of(by_guard, certificate) as client:
        buffer = client.held._ssl_buffer
        for _ in range(5):
            client.look()
            await client.echoes(100)
        assert client.held._ssl_buffer is buffer
        assert client.resting.released == 0


@pytest.mark.parametrize("byte", [0, 0xFF])
@pytest.mark.parametrize("lent", [0, at_rest.LENT])
async def test_a_read_that_begins_amid_a_record_is_one_whatever_its_first_byte(
    certificate: tuple[str, str], monkeypatch: pytest.MonkeyPatch, lent: int, byte: int
) -> None:
    monkeypatch.setattr(at_rest, "LENT", lent)
    async with client_of(by_guard, certificate) as client:
        for released in (1, 2, 3):
            await client.echoes(100)
            client.held._ssl_buffer[0] = byte
            client.look()
            assert client.resting.released == released - 1
            client.look()
            assert client.resting.released == released


async def test_a_connection_that_fills_its_small_buffer_gets_the_large_one_back(
    certificate: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(at_rest, "LENT", 0)
    async with client_of(by_guard, certificate) as client:
        client.look()
        client.look()
        await client.echoes(LARGE)
        assert len(client.held._ssl_buffer) == SMALL
        client.look()
        await client.echoes(100)
        assert len(client.held._ssl_buffer) == FULL


async def test_the_memory_of_openssl_is_given_back_but_what_is_not_yet_read(
    certificate: tuple[str, str],
) -> None:
    async with client_of(by_guard, certificate) as client:
        await client.echoes(LARGE)
        client.look()
        client.look()
        assert client.resting.released == 1
        await client.echoes(LARGE)
        held = client.held
        client.look()
        held._incoming.write(b"abc")
        before = held._incoming.pending
        client.look()
        assert held._incoming.pending == before == 3
        assert held._incoming.read() == b"abc"


SHRUNK = """
import ssl
from reaper.asyncio import at_rest

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

bios = [ssl.MemoryBIO() for _ in range(40)]
for bio in bios:
    bio.write(bytes(4_000_000))
    bio.read()
before = resident()
for bio in bios:
    at_rest._shrink(bio)
print(before - resident())
for bio in bios:
    bio.write(b"more")
    assert bio.read() == b"more"
"""
"""Prints the bytes that 40 memory buffers held beyond Python's own, in a process where
nothing else comes and goes.
"""


def test_an_empty_memory_buffer_shrinks_and_goes_on() -> None:
    command = [sys.executable, "-c", SHRUNK]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) > 100_000_000  # of 213 MB


def test_whole_pages_of_a_buffer_are_given_back_while_it_is_still_ours() -> None:
    buffer = bytearray(b"x") * 1_000_000
    address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    begin, end = 5_000, 900_000
    at_rest._give_back(address + begin, end - begin)
    assert set(buffer[:begin]) == set(buffer[end:]) == {ord("x")}
    assert buffer.count(0) >= end - begin - 2 * mmap.PAGESIZE
    at_rest._give_back(address, 10)  # no page is whole
    assert buffer[:10] == b"x" * 10


async def test_a_long_read_leaves_little_in_the_variable_of_a_loop() -> None:
    reader = asyncio.StreamReader()
    data = random.Random(1).randbytes(100_000)
    at_rest.leave_little(reader)
    reader.feed_data(data[:1000])
    assert await reader.read(65536) == data[:1000]
    reader.feed_data(data)
    found = [await reader.read(65536) for _ in range(3)]
    assert b"".join(found) == data
    assert len(found[-1]) == at_rest.LITTLE
    reader.feed_data(data[:10_000])
    reader.feed_eof()
    assert await reader.read(65536) == data[:10_000]
    assert reader.at_eof()
    at_rest.take_all(reader)
    assert "read" not in vars(reader)


async def test_a_connection_of_websockets_at_rest_holds_neither_buffer_nor_message(
    certificate: tuple[str, str],
) -> None:
    theirs: list[Any] = []

    async def back(connection: Any) -> None:
        theirs.append(connection)
        while True:
            await connection.send(await connection.recv())

    context, trust = contexts_of(certificate)
    message = random.Random(1).randbytes(100_000)
    async with reaper.asyncio.open_reaper(idle=600, tick=300.0) as watcher:
        guarded = reaper.websockets.connection(reaper=watcher)
        async with serve(back, "127.0.0.1", 0, ssl=context, create_connection=guarded) as server:
            [where] = server.sockets
            target = f"wss://127.0.0.1:{where.getsockname()[1]}"
            async with connect(target, ssl=trust) as client:
                await client.send(message)
                assert await client.recv() == message
                [connection] = theirs
                parser = connection.protocol.parser.gi_yieldfrom  # behind that of the handshake
                assert parser.gi_frame.f_locals["frame"].data == b""
                assert watcher.resting is not None
                watcher.resting.look(ROUND)
                watcher.resting.look(2 * ROUND)
                assert watcher.resting.released == 1
                await client.send(message)
                assert await client.recv() == message


@pytest.mark.parametrize("released", [True, False])
async def test_the_last_message_of_websockets_is_let_go_of_without_tls_too(released: bool) -> None:
    theirs: list[Any] = []

    async def back(connection: Any) -> None:
        theirs.append(connection)
        while True:
            await connection.send(await connection.recv())

    message = random.Random(1).randbytes(100_000)
    config = ReaperConfig(reaper=Reaper(release_buffers=released))
    async with reaper.asyncio.open_reaper(config) as watcher:
        guarded = reaper.websockets.connection(reaper=watcher)
        async with serve(back, "127.0.0.1", 0, create_connection=guarded) as server:
            [where] = server.sockets
            async with connect(f"ws://127.0.0.1:{where.getsockname()[1]}") as client:
                await client.send(message)
                assert await client.recv() == message
                [connection] = theirs
                parser = connection.protocol.parser.gi_yieldfrom  # behind that of the handshake
                held = parser.gi_frame.f_locals["frame"].data
                assert held == (b"" if released else message)


def test_a_connection_that_has_ended_is_forgotten() -> None:
    resting, protocol = Resting(), Held()
    for _ in range(3):
        resting.add(SimpleNamespace(_ssl_protocol=protocol))  # looked at once a round all the same
    resting.add(SimpleNamespace())
    assert len(resting) == 1
    del protocol
    gc.collect()
    resting.look(0.0)
    assert len(resting) == 0


class Held(asyncio.sslproto.SSLProtocol):
    """What asyncio holds for a connection, without one."""

    def __init__(self) -> None:
        self._ssl_buffer = bytearray(SMALL)
        self._ssl_buffer_view = memoryview(self._ssl_buffer)
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._write_backlog = deque()


def stuffed(count: int) -> tuple[Resting, list[Any], list[float]]:
    trims: list[float] = []
    resting = Resting(lambda: trims.append(0.0))
    protocols = [Held() for _ in range(count)]
    for protocol in protocols:
        resting.add(SimpleNamespace(_ssl_protocol=protocol))
    return resting, protocols, trims


def test_a_wake_releases_and_looks_at_only_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at_rest, "LOOKS_PER_WAKE", 10)
    monkeypatch.setattr(at_rest, "RELEASED_PER_WAKE", 4)
    resting, protocols, _ = stuffed(20)
    marked, released = [], []
    for _ in range(10):
        before = resting.released
        resting.look(0.0)
        marked.append(sum(each._ssl_buffer[0] for each in protocols) // 255)
        assert resting.released == before
    assert marked[:3] == [9, 19, 20]  # to begin a round takes one of them
    for _ in range(10):
        before = resting.released
        resting.look(ROUND)
        released.append(resting.released - before)
    assert released[:6] == [4, 4, 4, 4, 4, 0]


def test_the_allocator_is_told_when_it_is_worth_while_and_at_most_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resting, protocols, trims = stuffed(at_rest.WORTH_TRIMMING)
    now = 0.0

    def rest(some: list[Any]) -> None:
        nonlocal now
        for protocol in some:
            protocol._ssl_buffer = bytearray(SMALL)
        for _ in range(3):
            now += ROUND
            resting.look(now)

    protocols[0]._ssl_buffer = bytearray()
    rest(protocols[1:])
    assert trims == []
    rest(protocols[:1])
    assert len(trims) == 1
    monkeypatch.setattr(at_rest, "TRIM_PAUSE", 1e6)
    now += 1e5
    rest(protocols)
    rest(protocols)
    assert len(trims) == 2


async def test_where_a_name_is_missing_or_the_setting_is_off_nothing_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert at_rest.missing() == []
    assert AsyncioReaper().resting is not None
    off = ReaperConfig(reaper=Reaper(release_buffers=False))
    assert AsyncioReaper(off).resting is None
    with monkeypatch.context() as changed:
        changed.setitem(at_rest.NAMES, "SSLProtocol", ("_ssl_buffer", "_read_into"))
        assert at_rest.missing() == ["SSLProtocol._read_into"]
        assert AsyncioReaper().resting is None
    with monkeypatch.context() as changed:
        changed.setattr(asyncio.sslproto.SSLProtocol, "get_buffer", lambda self, n: bytearray())
        assert AsyncioReaper().resting is None
    assert not at_rest.fits(SimpleNamespace())


class Fresh(Held):
    """The same of a connection whose buffer nobody has filled yet."""

    max_size = SMALL


def made_for(resting: Resting, count: int) -> list[Any]:
    """What is held for new connections that *resting* looks at."""
    made = [Fresh() for _ in range(count)]
    for protocol in made:
        resting.add(SimpleNamespace(_ssl_protocol=protocol))
    return made


def test_a_connection_that_is_freed_leaves_nothing_behind_however_many_end() -> None:
    gc.collect()  # or those of a test before go between the two counts
    resting, before = Resting(), len(at_rest._BORROWERS)
    for wake in range(3):
        made = made_for(resting, at_rest.LOOKS_PER_WAKE + 100)
        assert len(resting) == len(made)
        del made
        gc.collect()
        resting.look(float(wake))
        assert len(resting) == 0
        assert len(at_rest._BORROWERS) == before


def test_the_loops_of_a_process_lend_no_more_buffers_than_it_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gc.collect()
    monkeypatch.setattr(at_rest, "LENT", len(at_rest._BORROWERS) + 5)
    made = [each for resting in (Resting(), Resting()) for each in made_for(resting, 4)]
    lent = [isinstance(protocol._ssl_buffer, mmap.mmap) for protocol in made]
    assert lent == [True] * 5 + [False] * 3
    del made[0]
    gc.collect()
    (another,) = made_for(Resting(), 1)
    assert isinstance(another._ssl_buffer, mmap.mmap)
