"""The same as `app`, as an aiohttp application: `python -m scripts.stops.app_aiohttp
PORT`.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

from aiohttp import web

from .words import ANSWER, CHUNK, CHUNKS, ENDED, TICK, WHOLE


async def events(request: web.Request) -> web.StreamResponse:
    """An event each second, until the handler is cancelled: aiohttp has no message for
    it.
    """
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            await response.write(TICK)
            await asyncio.sleep(1)
    return response


async def ordinary(request: web.Request) -> web.StreamResponse:
    """`/slow` and `/download`."""
    if request.path == "/slow":
        await asyncio.sleep(ANSWER)
    response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    for _ in range(CHUNKS if request.path == "/download" else 0):
        await response.write(CHUNK)
        await asyncio.sleep(ANSWER / CHUNKS)
    await response.write(WHOLE)
    return response


async def talk(request: web.Request) -> web.WebSocketResponse:
    """A WebSocket that waits for messages."""
    websocket = web.WebSocketResponse()
    await websocket.prepare(request)
    async for _ in websocket:
        pass
    return websocket


async def ended(app: web.Application) -> None:
    """The server has stopped."""
    print(ENDED, flush=True)


def main() -> None:
    """Serve it."""
    app = web.Application()
    app.router.add_get("/events", events)
    app.router.add_get("/ws", talk)
    app.router.add_get("/{name:.*}", ordinary)
    app.on_cleanup.append(ended)
    if "--guarded" in sys.argv:
        import reaper.aiohttp

        reaper.aiohttp.run_app(app, host="127.0.0.1", port=int(sys.argv[1]))
    else:
        web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]))


if __name__ == "__main__":
    main()
