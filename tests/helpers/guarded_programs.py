"""Servers that others wrote, guarded as users do it:
`python -m tests.helpers.guarded_programs KIND HOST PORT SECONDS`.

SECONDS is the limit of whoever is silent: aiohttp's keep-alive, the one timeout of the
others.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace

import aiohttp.web
import websockets.asyncio.server
from hypercorn.asyncio import serve
from hypercorn.config import Config

import reaper.aiohttp
import reaper.asyncio
import reaper.websockets
from reaper.config import ReaperConfig
from tests.helpers.asgi import BIG, application


async def answer(request):
    """As tests/helpers/asgi.py does."""
    if request.path == "/ws":
        websocket = aiohttp.web.WebSocketResponse()
        await websocket.prepare(request)
        async for message in websocket:
            await websocket.send_str(message.data)
        return websocket
    if request.path == "/events":
        response = aiohttp.web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"data: tick")
            await asyncio.sleep(0.2)
    if request.path == "/slow":
        await asyncio.sleep(float(request.query_string or 2))
    return aiohttp.web.Response(
        body=BIG if request.path == "/big" else await request.read() or b"hello"
    )


def aiohttp_app() -> aiohttp.web.Application:
    app = aiohttp.web.Application(client_max_size=10**8)
    app.router.add_route("*", "/{path:.*}", answer)
    return app


def run_aiohttp(host, port, seconds):
    async def others(app):
        reaper.asyncio.reaper_of()  # the loop has one already, with other settings

    app = aiohttp_app()
    app.on_startup.append(others)
    config = ReaperConfig.load()
    config = replace(config, timeouts=replace(config.timeouts, keep_alive=seconds))
    reaper.aiohttp.run_app(app, config=config, host=host, port=port)


def run_websockets(host, port, seconds):
    async def listen(websocket):
        async for _ in websocket:
            pass

    async def talk():
        made = reaper.websockets.connection(idle=seconds)
        async with websockets.asyncio.server.serve(
            listen, host, port, create_connection=made, ping_interval=None
        ) as server:
            await server.serve_forever()

    asyncio.run(talk())


def run_hypercorn(host, port, seconds):
    config = Config()
    config.bind, config.keep_alive_timeout = [f"{host}:{port}"], 3600
    with asyncio.Runner(loop_factory=reaper.asyncio.loop_factory(idle=seconds)) as runner:
        runner.run(serve(application, config))


if __name__ == "__main__":
    globals()[f"run_{sys.argv[1]}"](sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
