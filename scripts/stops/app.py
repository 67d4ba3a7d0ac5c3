"""An ASGI application with what is open when a server stops: streams, an answer, a
download, and WebSockets. It runs on asyncio and on trio.
"""

from __future__ import annotations

from typing import Any

import anyio

from .words import ANSWER, CHUNK, CHUNKS, ENDED, LAST, TICK, WHOLE


async def application(scope: Any, receive: Any, send: Any) -> None:
    """`/events` streams until it is told, `/slow` answers late, `/download` sends for
    as long; neither names a length. Any other path is answered at once.
    """
    if scope["type"] == "lifespan":
        await _lifespan(receive, send)
    elif scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        while (await receive())["type"] != "websocket.disconnect":
            pass
    elif scope["path"] == "/events":
        await _stream(receive, send)
    else:
        await receive()  # the request
        if scope["path"] == "/slow":
            await anyio.sleep(ANSWER)
        await _begin(send, b"application/octet-stream")
        for _ in range(CHUNKS if scope["path"] == "/download" else 0):
            await _body(send, CHUNK)
            await anyio.sleep(ANSWER / CHUNKS)
        await _body(send, WHOLE, more=False)


async def _lifespan(receive: Any, send: Any) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.shutdown":
            print(ENDED, flush=True)
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _stream(receive: Any, send: Any) -> None:
    """An event each second, until `http.disconnect`: as sse-starlette and others do
    it.
    """
    await receive()  # the request
    told = anyio.Event()

    async def listen() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        told.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listen)
        await _begin(send, b"text/event-stream")
        while not told.is_set():
            await _body(send, TICK)
            with anyio.move_on_after(1):
                await told.wait()
        await _body(send, LAST, more=False)


async def _begin(send: Any, kind: bytes) -> None:
    headers = [(b"content-type", kind)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def _body(send: Any, data: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})
