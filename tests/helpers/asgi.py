"""An ASGI application with what the tests of guarded servers ask for, and no
framework.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import anyio

import reaper.asyncio
import reaper.uvicorn
from reaper.config import ReaperConfig
from scripts.lifespan import lifespan

BIG = b"x" * 20_000_000


def tls_loop() -> asyncio.AbstractEventLoop:
    """For `--loop tests.helpers.asgi:tls_loop`: as `reaper.uvicorn:loop`, on asyncio's
    own.
    """
    return reaper.asyncio.loop_factory(config=ReaperConfig.load(), base=asyncio.SelectorEventLoop)()


async def application(scope: Any, receive: Any, send: Any) -> None:
    """`/` says hello, `/slow` after a while, `/big` much, `/some?N` N bytes, `/echo`
    and `/ws` what they were sent.
    """
    if scope["type"] == "lifespan":
        await lifespan(receive, send)
    elif scope["type"] == "websocket":
        await websocket(receive, send, scope["path"])
    elif scope["path"] in ("/metrics", "/status", "/ready"):
        await getattr(reaper.uvicorn, scope["path"][1:])(scope, receive, send)
    elif scope["path"] == "/events":
        await events(receive, send)
    elif scope["path"] == "/stream":
        await stream(int(scope["query_string"]), receive, send)
    else:
        await respond(send, await body_of(scope["path"], receive, scope["query_string"]))


async def body_of(path: str, receive: Any, query: bytes) -> bytes:
    if path in ("/big", "/some"):
        return BIG[: int(query or len(BIG))]
    if path == "/slow":
        await anyio.sleep(float(query or 2))
    if path == "/pid":
        return str(os.getpid()).encode()
    if path == "/echo":
        found = b""
        more = True
        while more:
            message = await receive()
            found += message.get("body", b"")
            more = message.get("more_body", False)
        return found
    return b"hello"


async def respond(send: Any, body: bytes) -> None:
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def events(receive: Any, send: Any) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-type", b"text/event-stream")],
        }
    )
    await receive()  # the request
    gone = asyncio.create_task(receive())
    while not gone.done():
        await send({"type": "http.response.body", "body": b"data: tick\n\n", "more_body": True})
        await asyncio.sleep(0.1)
    print("the client has gone", flush=True)


async def stream(count: int, receive: Any, send: Any) -> None:
    """Thousands of bytes, *count* of them, ten a second; like a framework it listens
    for the disconnect meanwhile.
    """
    headers = [(b"content-length", str(1000 * count).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await receive()  # the request
    gone = asyncio.create_task(receive())
    for left in reversed(range(count)):
        await asyncio.sleep(0.1)
        await send({"type": "http.response.body", "body": b"x" * 1000, "more_body": left > 0})
    gone.cancel()


async def websocket(receive: Any, send: Any, path: str) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    while path == "/push":
        await asyncio.sleep(0.01)
        await send({"type": "websocket.send", "bytes": b"x" * 100})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": message["text"]})
