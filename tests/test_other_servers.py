"""aiohttp, websockets and hypercorn, guarded by their own extension points: real servers, real clients."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import time

import aiohttp.web
import aiohttp.web_protocol
import pytest
import websockets.asyncio.client
import websockets.asyncio.server

import reaper.aiohttp
import reaper.asyncio
import reaper.servers.aiohttp
import reaper.websockets
from reaper.config import ReaperConfig
from scripts.serving import free_port, serving
from scripts.uvicorn_demo.attacks import (
    all_borne,
    does_not_read,
    drips_headers,
    drips_second_headers,
    says_nothing,
    stays_idle,
    stops_in_body,
)

pytestmark = pytest.mark.slow

ATTACKS = (says_nothing, drips_headers, drips_second_headers, stops_in_body, does_not_read, stays_idle)
SETTINGS = {f"timeouts.{name}": "500ms" for name in ("first_byte", "headers", "body", "keep_alive", "write", "tunnel")}
PATIENCE = 45.0


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


def test_aiohttp_is_rid_of_every_kind_and_none_ends_early():
    async def body():
        async with aiohttp_server() as (port, r):
            found = await all_borne(ATTACKS, port, PATIENCE)
            assert not [attack.__name__ for attack, borne in found.items() if borne[0].seconds is None]
            assert not [attack.__name__ for attack, borne in found.items() if borne[0].seconds < 0.5]
            assert {"first_byte", "headers", "body", "keep_alive", "write"} <= set(r.statistics().reasons)

    asyncio.run(body())


def test_aiohttp_answers_a_request_that_takes_longer_than_every_timeout():
    async def body():
        async with (
            aiohttp_server() as (port, _),
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port}/slow") as response,
        ):
            assert await response.text() == "hello"

    asyncio.run(body())


def test_aiohttp_keeps_a_websocket_on_which_something_moves():
    async def body():
        async with (
            aiohttp_server() as (port, _),
            aiohttp.ClientSession() as session,
            session.ws_connect(f"http://127.0.0.1:{port}/ws") as websocket,
        ):
            for _ in range(6):
                await asyncio.sleep(0.2)
                await websocket.send_str("x")
                assert await websocket.receive_str(timeout=PATIENCE) == "x"
            start = time.monotonic()
            message = await websocket.receive(timeout=PATIENCE)
            assert message.type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSE)
            assert time.monotonic() - start >= 0.4

    asyncio.run(body())


def test_every_name_of_aiohttps_that_is_used_is_there():
    assert set(reaper.servers.aiohttp.NAMES) <= set(aiohttp.web_protocol.RequestHandler.__slots__)


def test_run_app_is_aiohttps_with_guarded_connections(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, aiohttp.web, reaper.aiohttp\n"
        "async def hello(request):\n    return aiohttp.web.Response(text='hello')\n"
        "app = aiohttp.web.Application()\n"
        "app.add_routes([aiohttp.web.get('/', hello)])\n"
        "reaper.aiohttp.run_app(app, host='127.0.0.1', port=int(sys.argv[1]))\n"
    )
    port = free_port()
    environment = os.environ | {
        "REAPER_TIMEOUTS_FIRST_BYTE": "500ms",
        "REAPER_TICK": "100ms",
        "PYTHONPATH": os.getcwd(),
    }
    command = [sys.executable, str(program), str(port)]
    with serving(command, tmp_path / "log", port=port, environment=environment) as server:
        start = time.monotonic()
        with socket.create_connection(server.address, timeout=PATIENCE) as client:
            assert client.recv(1) == b""
            assert time.monotonic() - start >= 0.5


def test_websockets_closes_a_silent_connection_although_pings_are_answered():
    async def echo(websocket):
        async for message in websocket:
            await websocket.send(message)

    async def body():
        async with reaper.asyncio.open_reaper(tick=0.1) as r:
            kind = reaper.websockets.connection(idle=0.5, reaper=r)
            serve = websockets.asyncio.server.serve
            async with serve(echo, "127.0.0.1", 0, create_connection=kind, ping_interval=0.1) as server:
                port = server.sockets[0].getsockname()[1]
                async with websockets.asyncio.client.connect(f"ws://127.0.0.1:{port}") as client:
                    for _ in range(6):
                        await asyncio.sleep(0.2)
                        await client.send("x")
                        assert await client.recv() == "x"
                    start = time.monotonic()
                    with pytest.raises(websockets.exceptions.ConnectionClosed, match="reaped: tunnel"):
                        await client.recv()
                    assert time.monotonic() - start >= 0.4
            assert len(r.core) == 0

    asyncio.run(asyncio.wait_for(body(), 60))


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
        attacks = (stops_in_body, does_not_read, stays_idle)
        found = asyncio.run(all_borne(attacks, server.port, PATIENCE))
        assert not [attack.__name__ for attack, borne in found.items() if borne[0].seconds is None]
        assert not [attack.__name__ for attack, borne in found.items() if borne[0].seconds < 1]
