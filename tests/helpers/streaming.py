"""An ASGI application with what is open when a server stops: streams, an answer, a
download.
"""

from __future__ import annotations

import asyncio
from typing import Any

import reaper


async def application(scope: Any, receive: Any, send: Any) -> None:
    """`/events` streams until it is told, `/stubborn` although it is told, `/declared`
    says so itself, `/goodbye` until the server stops; `/slow` answers after 3 s,
    `/download` sends for 3 s, neither with a length.
    """
    if scope["type"] == "lifespan":
        await lifespan(receive, send)
    elif scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        print(f"told {(await receive())['code']}", flush=True)
    elif scope["path"] == "/goodbye":
        await goodbye(receive, send)
    elif scope["path"] in ("/events", "/stubborn", "/declared"):
        await stream(scope, receive, send)
    else:
        await ordinary(scope["path"], receive, send)


async def lifespan(receive: Any, send: Any) -> None:
    while True:
        message = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            print("lifespan has ended", flush=True)
            return


async def stream(scope: Any, receive: Any, send: Any) -> None:
    kind = b"text/event-stream; charset=utf-8"
    if scope["path"] == "/declared":
        kind = b"text/plain"
        scope["extensions"]["reaper"]["stream"] = True
    start = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]}
    await receive()  # the request
    gone = asyncio.create_task(receive())
    await send(start)
    while not gone.done() or scope["path"] == "/stubborn":
        await send({"type": "http.response.body", "body": b"data: tick\n\n", "more_body": True})
        await asyncio.sleep(0.05)
    print(f"told {gone.result()['type']}", flush=True)
    await send({"type": "http.response.body", "body": b"data: bye\n\n", "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def goodbye(receive: Any, send: Any) -> None:
    headers = [(b"content-type", b"text/event-stream")]
    await receive()  # the request
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"data: tick\n\n", "more_body": True})
    await reaper.stopping()
    last = b"retry: 500\n\ndata: bye\n\n"
    await send({"type": "http.response.body", "body": last, "more_body": False})


async def ordinary(path: str, receive: Any, send: Any) -> None:
    await receive()  # the request
    gone = asyncio.create_task(receive())
    if path == "/slow":
        await asyncio.sleep(3)
    headers = [(b"content-type", b"application/octet-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for _ in range(30 if path == "/download" else 0):
        await send({"type": "http.response.body", "body": b"x" * 1000, "more_body": True})
        await asyncio.sleep(0.1)
    print(f"{path} was told: {gone.done()}", flush=True)
    gone.cancel()
    await send({"type": "http.response.body", "body": b"whole", "more_body": False})
