"""The asyncio adapter on real sockets: streams, protocols, the guard; asyncio and uvloop, with TLS and without."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import ssl
import time
from pathlib import Path

import pytest
from pyarrow import parquet

import reaper.asyncio
from reaper.config import ReaperConfig
from reaper.journal import Journal
from reaper.policy import Phase
from reaper.servers import polled

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

IDLE = 0.3
TICK = 0.1


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request):
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture(scope="module")
def tls(certificate):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    return context


async def echo(reader, writer):
    while data := await reader.read(1000):
        writer.write(data)
    writer.close()


class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


class Picky(Echo):
    """Whoever derives from it must say more than that."""

    def __init_subclass__(cls, *, name):
        pass


class WatchedEcho(reaper.asyncio.Protocol):
    idle = IDLE

    def connection_made(self, transport):
        super().connection_made(transport)
        self.transport = transport

    def data_received(self, data):
        super().data_received(data)
        self.transport.write(data)


async def streams(r, **options):
    return await reaper.asyncio.start_server(echo, "127.0.0.1", 0, idle=IDLE, reaper=r, **options)


async def guarded(r, **options):
    loop = asyncio.get_running_loop()
    return await loop.create_server(reaper.asyncio.guard(Echo, IDLE, reaper=r), "127.0.0.1", 0, **options)


async def mixin(r, **options):
    WatchedEcho.reaper = r
    return await asyncio.get_running_loop().create_server(WatchedEcho, "127.0.0.1", 0, **options)


SERVERS = {"streams": streams, "guard": guarded, "mixin": mixin}


@pytest.fixture(params=SERVERS)
def serve(request):
    @contextlib.asynccontextmanager
    async def serve(**options):
        async with reaper.asyncio.open_reaper(tick=TICK) as r:
            server = await SERVERS[request.param](r, **options)
            async with server:
                yield r, server.sockets[0].getsockname()[1]

    return serve


@pytest.mark.parametrize("how", ["close", "shut"])
async def test_a_peer_hears_of_its_close_before_the_loop_goes_on(how):
    async with reaper.asyncio.open_reaper(tick=TICK) as r:
        server = await guarded(r)
        with contextlib.closing(server), socket.create_connection(server.sockets[0].getsockname()) as client:
            client.settimeout(10)  # blocks this loop, too
            client.send(b"x")
            while await asyncio.sleep(0.01, not polled.transports_of(r)):
                pass
            [connection] = r.driver.connections.values()
            if how == "close":
                connection.reap("idle")
            else:
                connection.shut()
            while client.recv(1):
                pass


async def test_silence_counts_from_the_last_byte_or_the_opening_and_is_closed_never_early(serve):
    async with serve() as (r, port):
        opened = time.monotonic()
        silent, writes = await asyncio.open_connection("127.0.0.1", port)
        assert await silent.read() == b""
        assert time.monotonic() - opened >= IDLE
        writes.write(b"too late")
        writes.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(6):
            await asyncio.sleep(IDLE / 3)
            last = time.monotonic()
            writer.write(b"x")
            assert await reader.read(1) == b"x"
        assert await reader.read() == b""
        assert time.monotonic() - last >= IDLE
        writer.close()
        assert r.statistics().reasons == {"idle": 2}


async def test_with_tls_it_is_the_same_and_an_unanswered_close_notify_holds_nothing(serve, tls, certificate):
    async with serve(ssl=tls) as (r, port):
        start = time.monotonic()
        trust = ssl.create_default_context(cafile=certificate[0])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
        writer.write(b"x")
        assert await reader.read(1) == b"x"
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        assert time.monotonic() - start >= IDLE
        writer.close()
        await eventually(lambda: len(r.core) == 0)


async def eventually(true):
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.01)


async def test_bytes_that_wait_in_the_kernel_while_the_loop_is_blocked_are_read_first(serve):
    """The loop is blocked for longer than the timeout; a client that sent something meanwhile is answered."""
    async with serve() as (_, port):
        loop = asyncio.get_running_loop()
        clients = []
        for _ in range(30):
            client = socket.create_connection(("127.0.0.1", port))
            client.setblocking(False)
            client.send(b"a")
            assert await loop.sock_recv(client, 1) == b"a"
            clients.append(client)
        for client in clients:
            client.send(b"b")
        time.sleep(3 * IDLE)
        answers = [await loop.sock_recv(client, 1) for client in clients]
        assert answers == [b"b"] * 30
        for client in clients:
            client.close()


@contextlib.asynccontextmanager
async def serving(factory, config=None, **options):
    """The reaper and the address of a server of what *factory* makes for that reaper."""
    async with reaper.asyncio.open_reaper(config, tick=TICK) as r:
        server = await asyncio.get_running_loop().create_server(factory(r), "127.0.0.1", 0, **options)
        with contextlib.closing(server):
            yield r, server.sockets[0].getsockname()


async def test_over_tls_a_guarded_protocol_hears_of_its_end_although_nobody_holds_it(tls, certificate):
    ended = asyncio.Event()

    class Ends(Echo):
        def connection_lost(self, exc):
            ended.set()

    async with serving(lambda r: reaper.asyncio.guard(Ends, IDLE, reaper=r), ssl=tls) as (_, address):
        trust = ssl.create_default_context(cafile=certificate[0])
        _, writer = await asyncio.open_connection(*address, ssl=trust)
        async with asyncio.timeout(30):
            await ended.wait()
        writer.close()


def flooding(size):
    """What makes guarded connections that answer with *size* bytes before they are asked."""

    class Flood(asyncio.Protocol):
        def connection_made(self, transport):
            transport.write(bytes(size))

    return lambda r: reaper.asyncio.guard(Flood, IDLE, reaper=r)


async def test_a_client_that_takes_a_long_response_is_not_idle_for_the_guard():
    async with serving(flooding(2_000_000)) as (_, address):
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            client.connect(address)
            client.setblocking(False)
            start, got = time.monotonic(), 0
            while got < 2_000_000:
                got += len(await asyncio.get_running_loop().sock_recv(client, 100_000))
                await asyncio.sleep(IDLE / 8)
            assert time.monotonic() - start > 2 * IDLE


async def test_the_guard_asks_whether_the_server_is_busy():
    busy = True
    async with serving(lambda r: reaper.asyncio.guard(Echo, IDLE, busy=lambda _: busy, reaper=r)) as (_, address):
        reader, writer = await asyncio.open_connection(*address)
        await asyncio.sleep(4 * IDLE)
        writer.write(b"x")
        assert await reader.read(1) == b"x"
        busy = False
        assert await reader.read() == b""
        writer.close()


async def test_a_drain_tells_the_handler_that_waits_for_bytes_from_the_one_that_works():
    async with reaper.asyncio.open_reaper(tick=TICK) as r:
        done = []

        async def handler(reader, writer):
            await reader.readline()
            await asyncio.sleep(0.5)
            done.append(await reader.read())

        server = await reaper.asyncio.start_server(handler, "127.0.0.1", 0, idle=60, reaper=r)
        port = server.sockets[0].getsockname()[1]
        idle = await asyncio.open_connection("127.0.0.1", port)
        works = await asyncio.open_connection("127.0.0.1", port)
        works[1].write(b"go\n")
        await eventually(lambda: len(r) == 2)
        await asyncio.sleep(0.1)
        draining = asyncio.create_task(r.drain(30))
        assert await idle[0].read() == b""
        assert len(r) == 1
        await draining
        assert r.statistics().reasons == {"drain": 2}
        assert done == []
        for _, writer in (idle, works):
            writer.close()
        server.close()


async def test_two_drains_at_once_both_return_and_guarded_connections_are_drained_when_the_server_has_answered():
    class Slow(Echo):
        def data_received(self, data):
            asyncio.get_running_loop().call_later(0.5, self.transport.write, data)

    async with serving(lambda r: reaper.asyncio.guard(Slow, 60, reaper=r)) as (r, address):
        idle, works = await asyncio.open_connection(*address), await asyncio.open_connection(*address)
        await eventually(lambda: len(r) == 2)
        works[1].write(b"x")
        await asyncio.sleep(0.1)
        await asyncio.gather(r.drain(30), r.drain(30))
        assert await works[0].read() == b"x"
        assert await idle[0].read() == b""
        assert r.statistics().reasons == {"drain": 2}
        for _, writer in (idle, works):
            writer.close()


class Flooding(reaper.asyncio.Protocol):
    idle = IDLE

    def connection_made(self, transport):
        super().connection_made(transport)
        transport.write(bytes(5_000_000))


async def floods(reader, writer):
    writer.write(bytes(5_000_000))
    try:
        await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


async def floods_and_ends(reader, writer):
    writer.write(bytes(5_000_000))
    writer.close()


@pytest.mark.parametrize("handler", [floods, floods_and_ends, Flooding, "guard"])
async def test_what_a_silent_client_does_not_take_keeps_no_connection_open(handler):
    given = {"reaper.tick": "100ms", "timeouts.linger": "300ms", "timeouts.write": "300ms"}
    async with reaper.asyncio.open_reaper(ReaperConfig.load(environ={}, overrides=given)) as r:
        if handler in (Flooding, "guard"):
            Flooding.reaper = r
            factory = flooding(30_000_000)(r) if handler == "guard" else Flooding
            server = await asyncio.get_running_loop().create_server(factory, "127.0.0.1", 0)
        else:
            server = await reaper.asyncio.start_server(handler, "127.0.0.1", 0, idle=IDLE, reaper=r)
        with socket.create_connection(server.sockets[0].getsockname()) as client:
            ports = f":{client.getpeername()[1]:04X}", f":{client.getsockname()[1]:04X}"
            await eventually(lambda: has_a_descriptor(*ports))
            await eventually(lambda: not has_a_descriptor(*ports))
        server.close()


def has_a_descriptor(local, remote):
    """Whether a process has one of the connection's end at *local*: the kernel names the socket's inode only then."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(local) and fields[2].endswith(remote):
            return fields[9] != "0"
    return False


@pytest.fixture
def no_collector():
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("closes", ["client", "server"])
@pytest.mark.parametrize("base", [WatchedEcho, Echo, Picky, None], ids=["mixin", "guard", "picky", "streams"])
async def test_the_journal_says_at_once_who_has_closed(base, closes, tmp_path):
    ends = {"client": lambda self, data: None, "server": lambda self, data: self.transport.close()}

    async def handler(reader, writer):
        await reader.read(-1 if closes == "client" else 1)
        writer.close()

    with Journal(tmp_path, tick=TICK, clock_ns=reaper.asyncio.journal_clock()) as journal:
        async with reaper.asyncio.open_reaper(tick=TICK, journal=journal) as r:
            if base is None:
                server = await reaper.asyncio.start_server(handler, "127.0.0.1", 0, idle=60, reaper=r)
            else:
                more = {"name": "Ends"} if base is Picky else {}
                made = type("Ends", (base,), {"data_received": ends[closes], "reaper": r}, **more)
                made.circle = made  # what the collector would have to find
                factory = made if base is WatchedEcho else reaper.asyncio.guard(made, 60, reaper=r)
                server = await asyncio.get_running_loop().create_server(factory, "127.0.0.1", 0)
            _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            await eventually(lambda: len(r) == 1)
            writer.write(b"x")
            if closes == "client":
                writer.close()
            await eventually(lambda: len(r) == 0)
            server.close()
            writer.close()
    kinds = [row["kind"] for file in tmp_path.glob("**/*.parquet") for row in parquet.read_table(file).to_pylist()]
    assert [kind for kind in kinds if kind.startswith("close")] == ["close_peer" if closes == "client" else "close_app"]


async def test_after_an_answer_that_was_taken_slowly_the_keep_alive_is_in_force():
    """`write`, an hour here, held in its place."""
    given = {"reaper.tick": "100ms", "timeouts.keep_alive": "400ms", "timeouts.write": "1h"}

    class Answers(Echo):
        def data_received(self, data):
            self.transport.write(bytes(8_000_000))

    def factory(r):
        return polled.guard(Answers, lambda transport: Phase.KEEP_ALIVE, reaper=r)

    loop = asyncio.get_running_loop()
    async with serving(factory, ReaperConfig.load(environ={}, overrides=given)) as (r, address):
        with socket.create_connection(address) as client:
            client.setblocking(False)
            await loop.sock_sendall(client, b"x")
            await eventually(lambda: any("write" in one._reason() for one in r.driver.connections.values()))
            while await loop.sock_recv(client, 1_000_000):
                pass
        assert r.statistics().reasons == {"keep_alive": 1}


def test_the_reaper_of_a_loop_is_one_and_runs():
    async def body():
        assert reaper.asyncio.reaper_of() is reaper.asyncio.reaper_of()

    for _ in range(5):
        asyncio.run(body())
    assert len(reaper.asyncio.reaper._OF_LOOPS) < 3  # those of closed loops are forgotten
