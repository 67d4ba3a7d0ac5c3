"""The asyncio adapter on real sockets: streams, protocols, the guard; asyncio and uvloop, with TLS and without."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time

import pytest
import uvloop

import reaper.asyncio
from reaper.errors import InvalidArgument

pytestmark = pytest.mark.slow

IDLE = 0.3
TICK = 0.1
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=LOOPS)
def run(request):
    def run(body):
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            return runner.run(asyncio.wait_for(body(), 60))

    return run


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


def test_a_silent_client_is_closed_and_never_early(run, serve):
    async def body():
        async with serve() as (r, port):
            start = time.monotonic()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await reader.read() == b""
            assert time.monotonic() - start >= IDLE
            writer.write(b"too late")
            writer.close()
            assert r.statistics().reasons == {"idle": 1}

    run(body)


def test_silence_counts_from_the_last_byte(run, serve):
    async def body():
        async with serve() as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(6):
                await asyncio.sleep(IDLE / 3)
                last = time.monotonic()
                writer.write(b"x")
                assert await reader.read(1) == b"x"
            assert await reader.read() == b""
            assert time.monotonic() - last >= IDLE
            writer.close()

    run(body)


def test_with_tls_it_is_the_same_and_an_unanswered_close_notify_holds_nothing(run, serve, tls, certificate):
    async def body():
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

    run(body)


async def eventually(true):
    while not true():
        await asyncio.sleep(0.01)


def test_a_client_that_leaves_is_forgotten_at_once(run, serve):
    async def body():
        async with serve() as (r, port):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            await eventually(lambda: len(r.core) == 1)
            writer.close()
            await eventually(lambda: len(r.core) == 0)
            assert r.statistics().reasons == {}

    run(body)


def test_bytes_that_wait_in_the_kernel_while_the_loop_is_blocked_are_read_first(run, serve):
    """The loop is blocked for longer than the timeout; a client that sent something meanwhile is answered."""

    async def body():
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

    run(body)


def test_a_client_that_takes_a_long_response_is_not_idle_for_the_guard(run):
    async def body():
        class Flood(asyncio.Protocol):
            def connection_made(self, transport):
                transport.write(bytes(2_000_000))

        loop = asyncio.get_running_loop()
        async with reaper.asyncio.open_reaper(tick=TICK) as r:
            server = await loop.create_server(reaper.asyncio.guard(Flood, IDLE, reaper=r), "127.0.0.1", 0)
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            client.connect(server.sockets[0].getsockname())
            client.setblocking(False)
            start, got = time.monotonic(), 0
            while got < 2_000_000:
                got += len(await loop.sock_recv(client, 100_000))
                await asyncio.sleep(IDLE / 8)
            assert time.monotonic() - start > 2 * IDLE
            client.close()
            server.close()

    run(body)


def test_a_client_that_takes_nothing_of_a_long_response_is_closed_by_the_guard(run):
    async def body():
        class Flood(asyncio.Protocol):
            def connection_made(self, transport):
                transport.write(bytes(30_000_000))

        loop = asyncio.get_running_loop()
        async with reaper.asyncio.open_reaper(tick=TICK) as r:
            server = await loop.create_server(reaper.asyncio.guard(Flood, IDLE, reaper=r), "127.0.0.1", 0)
            client = socket.create_connection(server.sockets[0].getsockname())
            await eventually(lambda: r.statistics().reasons == {"idle": 1})
            await eventually(lambda: len(r.core) == 0)
            client.close()
            server.close()

    run(body)


def test_the_guard_asks_whether_the_server_is_busy(run):
    async def body():
        async with reaper.asyncio.open_reaper(tick=TICK) as r:
            busy = True
            factory = reaper.asyncio.guard(Echo, IDLE, busy=lambda transport: busy, reaper=r)
            server = await asyncio.get_running_loop().create_server(factory, "127.0.0.1", 0)
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            await asyncio.sleep(4 * IDLE)
            writer.write(b"x")
            assert await reader.read(1) == b"x"
            busy = False
            assert await reader.read() == b""
            writer.close()
            server.close()

    run(body)


def test_a_drain_tells_the_handler_that_waits_for_bytes_from_the_one_that_works(run):
    async def body():
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

    run(body)


def test_a_bad_timeout_is_refused_before_anything_listens(run):
    async def body():
        with pytest.raises(InvalidArgument, match="idle must be"):
            await reaper.asyncio.start_server(echo, "127.0.0.1", 0, idle=-1)
        with pytest.raises(InvalidArgument, match="idle must be"):
            reaper.asyncio.guard(Echo, float("nan"))

    run(body)


def test_the_reaper_of_a_loop_is_one_and_runs(run):
    async def body():
        assert reaper.asyncio.reaper_of() is reaper.asyncio.reaper_of()

    for _ in range(5):
        run(body)
    assert len(reaper.asyncio.reaper._OF_LOOPS) < 3  # those of closed loops are forgotten
