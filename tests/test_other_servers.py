"""aiohttp, websockets and hypercorn, guarded by their own extension points: real servers, real clients."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import time

import aiohttp.web
import pytest
import websockets.asyncio.client
import websockets.asyncio.server
from test_uvicorn import PATIENCE, a_pause_loses_no_request, all_end_and_none_early, connect, get, until

import reaper.aiohttp
import reaper.asyncio
import reaper.websockets
from reaper.config import ReaperConfig
from scripts.serving import free_port, serving

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

ATTACKS = ["mute", "slow_headers", "slow_second_headers", "stalled_body", "unread", "silent"]
SETTINGS = {f"timeouts.{name}": "500ms" for name in ("first_byte", "headers", "body", "keep_alive", "write", "tunnel")}


@pytest.fixture
def anyio_backend():
    return "asyncio"


def config():
    return ReaperConfig.load(environ={}, overrides={**SETTINGS, "reaper.tick": "100ms"})


@contextlib.asynccontextmanager
async def aiohttp_server():
    async def hello(request):
        return aiohttp.web.Response(text="hello")

    async def slow(request):
        await asyncio.sleep(2)
        return aiohttp.web.Response(text="hello")

    async def big(request):
        return aiohttp.web.Response(body=bytes(20_000_000))

    async def echo(request):
        return aiohttp.web.Response(body=await request.read())

    async def talk(request):
        websocket = aiohttp.web.WebSocketResponse()
        await websocket.prepare(request)
        async for message in websocket:
            await websocket.send_str(message.data)
        return websocket

    app = aiohttp.web.Application(client_max_size=10**8)
    app.add_routes([aiohttp.web.get("/", hello), aiohttp.web.get("/slow", slow), aiohttp.web.get("/big", big)])
    app.add_routes([aiohttp.web.post("/echo", echo), aiohttp.web.get("/ws", talk)])
    runner = aiohttp.web.AppRunner(app, keepalive_timeout=3600)
    await runner.setup()
    async with reaper.asyncio.open_reaper(config()) as r:
        factory = reaper.aiohttp.guard(runner.server, reaper=r)
        server = await asyncio.get_running_loop().create_server(factory, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1], r
        finally:
            server.close()
            await runner.cleanup()


async def test_aiohttp_is_rid_of_every_kind_and_none_ends_early():
    async with aiohttp_server() as (port, r):
        await all_end_and_none_early(ATTACKS, ("127.0.0.1", port), 0.5)
        assert {"first_byte", "headers", "body", "keep_alive", "write"} <= set(r.statistics().reasons)


async def test_aiohttp_keeps_a_websocket_on_which_something_moves():
    async with (
        aiohttp_server() as (port, _),
        aiohttp.ClientSession() as session,
        session.ws_connect(f"http://127.0.0.1:{port}/ws") as websocket,
    ):
        for _ in range(6):
            await asyncio.sleep(0.2)
            spoke = time.monotonic()
            await websocket.send_str("x")
            assert await websocket.receive_str(timeout=PATIENCE) == "x"
        message = await websocket.receive(timeout=PATIENCE)
        assert message.type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSE)
        assert time.monotonic() - spoke >= 0.5


@pytest.mark.parametrize("upgrade", ["", "upgrade: websocket\r\nconnection: upgrade\r\n"])
async def test_aiohttp_bounds_a_body_whatever_upgrade_was_asked_for(upgrade):
    async with aiohttp_server() as (port, r):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"POST /echo HTTP/1.1\r\nhost: h\r\n{upgrade}content-length: 9\r\n\r\nabc".encode())
        async with asyncio.timeout(PATIENCE):
            while not r.statistics().reasons:
                await asyncio.sleep(0.05)
        assert r.statistics().reasons == {"body": 1}
        writer.close()


APP = """
import asyncio, sys, aiohttp.web, reaper.aiohttp, reaper.asyncio
from dataclasses import replace
from reaper.config import ReaperConfig
async def hello(request):
    return aiohttp.web.Response(text='hello')
app = aiohttp.web.Application()
app.add_routes([aiohttp.web.get('/', hello)])
async def others(app):
    reaper.asyncio.reaper_of()  # the loop has one already, with other settings
app.on_startup.append(others)
config = ReaperConfig.load()
config = replace(config, timeouts=replace(config.timeouts, keep_alive=float(sys.argv[2])))
reaper.aiohttp.run_app(app, config=config, host='127.0.0.1', port=int(sys.argv[1]))
"""


@contextlib.contextmanager
def aiohttp_program(tmp_path, keep_alive, **settings):
    program, port = tmp_path / "program.py", free_port()
    program.write_text(APP)
    environment = os.environ | {"REAPER_TICK": "100ms", "PYTHONPATH": os.getcwd()}
    environment |= {f"REAPER_TIMEOUTS_{name}": value for name, value in settings.items()}
    command = [sys.executable, str(program), str(port), str(keep_alive)]
    with serving(command, tmp_path / "log", port=port, environment=environment) as server:
        yield server


def ask(client):
    client.sendall(get())
    return until(client)


def test_aiohttp_answers_all_that_waited_while_the_process_was_paused(tmp_path):
    with aiohttp_program(tmp_path, 1.0) as server:
        a_pause_loses_no_request(server, 10)


def test_run_apps_config_holds_although_the_loop_has_a_reaper_and_its_age_is_announced(tmp_path):
    with aiohttp_program(tmp_path, 0.5) as server, connect(server) as client:
        spoke = time.monotonic()
        assert b"Keep-Alive" not in ask(client)  # there is no whole second to name
        assert client.recv(1) == b""  # by the default it would be open for 95 s
        assert time.monotonic() - spoke >= 0.5
    (tmp_path / "old").mkdir()
    with (
        aiohttp_program(tmp_path / "old", 30, MAX_AGE="1s", DRAIN_IDLE="20s") as server,
        connect(server) as client,
    ):
        said = ask(client)
        assert b"Keep-Alive: timeout=29\r\n" in said
        while b"Connection: close" not in said:
            said = ask(client)
            time.sleep(0.1)
        assert client.recv(1) == b""


async def test_websockets_closes_a_silent_connection_although_pings_are_answered():
    async with talking(echo, ping_interval=0.1) as (r, port, _):
        async with websockets.asyncio.client.connect(f"ws://127.0.0.1:{port}") as client:
            for _ in range(6):
                await asyncio.sleep(0.2)
                spoke = time.monotonic()
                await client.send("x")
                assert await client.recv() == "x"
            with pytest.raises(websockets.exceptions.ConnectionClosed, match="reaped: tunnel"):
                await client.recv()
            assert time.monotonic() - spoke >= 0.5
        assert len(r.core) == 0


async def echo(websocket):
    async for message in websocket:
        await websocket.send(message)


@contextlib.asynccontextmanager
async def talking(handler, limits=None, **options):
    """A websockets server with *handler*, guarded; the reaper, its port, and itself."""
    config = ReaperConfig.load(environ={}, overrides={"reaper.tick": "100ms"} | (limits or {}))
    async with reaper.asyncio.open_reaper(config) as r:
        options |= {"create_connection": reaper.websockets.connection(idle=0.5, reaper=r), "max_size": None}
        async with websockets.asyncio.server.serve(handler, "127.0.0.1", 0, **options) as server:
            yield r, server.sockets[0].getsockname()[1], server


async def one_steady_frame(r, port, server):
    """Sends a message of one frame for four times as long as silence is borne."""
    async with websockets.asyncio.client.connect(f"ws://127.0.0.1:{port}", compression=None) as client:
        client.transport.write(bytes([0x82, 0x80 | 126]) + (2000).to_bytes(2, "big") + bytes(4))
        for _ in range(20):
            await asyncio.sleep(0.1)
            client.transport.write(bytes(100))
        assert len(await client.recv()) == 2000


async def only_broadcasts(r, port, server):
    """Is sent something by nothing but `broadcast`."""
    async with websockets.asyncio.client.connect(f"ws://127.0.0.1:{port}") as client:
        for _ in range(15):
            await asyncio.sleep(0.1)
            websockets.asyncio.server.broadcast(server.connections, "x")
            assert await client.recv() == "x"


async def takes_a_long_message(r, port, server):
    """Takes a message of megabytes, a bit at a time, for four times as long as silence is borne."""
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 100_000)
        client.connect(("127.0.0.1", port))
        client.setblocking(False)
        client.send(
            b"GET / HTTP/1.1\r\nhost: h\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
            b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        assert b"101" in await loop.sock_recv(client, 65536)
        sending = asyncio.create_task(next(iter(server.connections)).send(bytes(12_000_000)))
        got = 0
        while got < 12_000_000:
            await asyncio.sleep(0.008)
            data = await loop.sock_recv(client, 50_000)
            assert data, f"closed after {got} bytes"
            got += len(data)
        await sending


@pytest.mark.parametrize("peer", [one_steady_frame, only_broadcasts, takes_a_long_message])
async def test_websockets_keeps_a_peer_on_whose_messages_something_moves(peer):
    async with talking(echo) as (r, port, server):
        async with asyncio.timeout(PATIENCE):
            await peer(r, port, server)
        assert r.statistics().reasons == {}


async def test_websockets_ends_a_peer_whose_message_drips_slower_than_the_least_rate():
    async with talking(echo, {"limits.min_in_rate": 1000, "limits.min_in_grace": "500ms"}) as (r, port, _):
        client = await websockets.asyncio.client.connect(f"ws://127.0.0.1:{port}", compression=None)
        client.transport.write(bytes([0x82, 0x80 | 126]) + (2000).to_bytes(2, "big") + bytes(4))
        async with asyncio.timeout(PATIENCE):
            while not client.protocol.close_rcvd:
                client.transport.write(b"x")  # ten bytes a second, and never silent for as long as is borne
                await asyncio.sleep(0.1)
        assert "reaped: tunnel" in client.protocol.close_rcvd.reason
        client.transport.abort()
        assert r.statistics().reasons == {"tunnel": 1}


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nhost"])
async def test_websockets_lets_go_of_a_client_that_never_shakes_hands_when_it_says_so(said):
    async with talking(None) as (r, port, _):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setblocking(False)
            await asyncio.get_running_loop().sock_sendall(client, said)
            async with asyncio.timeout(PATIENCE):
                assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
        assert r.statistics().reasons == {"tunnel": 1}  # it was not websockets itself, which gives it 10 s


def test_hypercorn_is_guarded_by_its_loop(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import asyncio, sys\n"
        "from hypercorn.asyncio import serve\nfrom hypercorn.config import Config\n"
        "import reaper.asyncio\nfrom tests.asgi import application\n"
        "config = Config()\nconfig.bind = [f'127.0.0.1:{sys.argv[1]}']\nconfig.keep_alive_timeout = 3600\n"
        "with asyncio.Runner(loop_factory=reaper.asyncio.loop_factory(idle=1)) as runner:\n"
        "    runner.run(serve(application, config))\n"
    )
    port = free_port()
    environment = os.environ | {"REAPER_TICK": "100ms", "PYTHONPATH": os.getcwd()}
    command = [sys.executable, str(program), str(port)]
    with serving(command, tmp_path / "log", port=port, environment=environment) as server:
        asyncio.run(all_end_and_none_early(["stalled_body", "unread", "silent"], server.address))
