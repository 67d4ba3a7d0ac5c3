"""An ASGI application with what the tests of guarded servers ask for, and no framework."""

from __future__ import annotations

import asyncio
import os
import time

import reaper.uvicorn

BIG = b"x" * 20_000_000


async def application(scope, receive, send):
    """`/` says hello, `/slow` after a while, `/big` much, `/some?N` N bytes, `/echo` and `/ws` what they were sent."""
    if scope["type"] == "lifespan":
        await lifespan(receive, send)
    elif scope["type"] == "websocket":
        await websocket(receive, send)
    elif scope["path"] == "/metrics":
        await reaper.uvicorn.metrics(scope, receive, send)
    elif scope["path"] == "/status":
        await reaper.uvicorn.status(scope, receive, send)
    elif scope["path"] == "/events":
        await events(receive, send)
    else:
        await respond(send, await body_of(scope["path"], receive, scope["query_string"]))


async def body_of(path, receive, query):
    if path == "/some":
        return BIG[: int(query)]
    if path == "/big":
        return BIG
    if path == "/slow":
        await asyncio.sleep(float(query or 2))
    if path == "/block":
        time.sleep(float(query or 2))
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


async def respond(send, body):
    headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def events(receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    await receive()  # the request
    gone = asyncio.create_task(receive())
    while not gone.done():
        await send({"type": "http.response.body", "body": b"data: tick\n\n", "more_body": True})
        await asyncio.sleep(0.1)


async def websocket(receive, send):
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": message["text"]})


async def lifespan(receive, send):
    while True:
        message = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return
