"""`python -m tests.helpers.streaming_aiohttp PORT`: tests/helpers/streaming.py, for
aiohttp.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from aiohttp import web

import reaper
import reaper.aiohttp


async def events(request: web.Request) -> web.StreamResponse:
    """Streams until it is cancelled; `/goodbye` until the server stops."""
    response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    while not (request.path == "/goodbye" and reaper.stopping()):
        await response.write(b"data: tick\n\n")
        await asyncio.sleep(0.05)
    await response.write(b"data: bye\n\n")
    return response


async def ordinary(request: web.Request) -> web.StreamResponse:
    """`/slow` answers after 3 s, `/download` sends for 3 s."""
    if request.path == "/slow":
        await asyncio.sleep(3)
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(30 if request.path == "/download" else 0):
        await response.write(b"x" * 1000)
        await asyncio.sleep(0.1)
    await response.write(b"whole")
    return response


async def talk(request: web.Request) -> web.WebSocketResponse:
    websocket = web.WebSocketResponse()
    await websocket.prepare(request)
    async for _ in websocket:
        pass
    return websocket


async def ended(app: web.Application) -> None:
    print("lifespan has ended", flush=True)


def application() -> web.Application:
    app = web.Application()
    for path in ("/events", "/goodbye"):
        app.router.add_get(path, events)
    app.router.add_get("/ws", talk)
    app.router.add_get("/{path:.*}", ordinary)
    app.on_cleanup.append(ended)
    return app


def main() -> None:
    where: dict[str, Any] = {"host": "127.0.0.1", "port": int(sys.argv[1])}
    reaper.aiohttp.run_app(application(), **where, handle_signals=True)


if __name__ == "__main__":
    main()
