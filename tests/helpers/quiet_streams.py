"""Applications whose streams pause, as their request says: for ASGI on either loop, and
aiohttp. Those of `/gzip` say that they are encoded, those of `/length` how long they
are, and those of `/trailers` end with a trailer (ASGI only).
"""

from __future__ import annotations

import json
from typing import Any

import anyio
from aiohttp import web

TRAILER = (b"checked", b"yes")
"""What those of `/trailers` end with."""
PLAN = "plan"
"""The name in the query: a list of pieces in hexadecimal, and of pauses in seconds."""


def query_of(plan: list[bytes | float]) -> str:
    """*plan* as a request names it."""
    words = [step.hex() if isinstance(step, bytes) else step for step in plan]
    return f"{PLAN}={json.dumps(words, separators=(',', ':'))}".replace('"', "%22")


def plan_of(text: str) -> list[bytes | float]:
    """What `query_of` has written."""
    return [bytes.fromhex(word) if isinstance(word, str) else word for word in json.loads(text)]


async def application(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    text = scope["query_string"].decode().partition("=")[2].replace("%22", '"')
    headers = [(b"content-type", b"text/event-stream")]
    plan = plan_of(text)
    if scope["path"] == "/gzip":
        headers.append((b"content-encoding", b"gzip"))
    if scope["path"] == "/length":
        headers.append((b"content-length", b"%d" % length_of(plan)))
    trails = scope["path"] == "/trailers"
    begin = {"type": "http.response.start", "status": 200, "headers": headers}
    await send({**begin, "trailers": True} if trails else begin)
    for step in plan:
        if isinstance(step, bytes):
            await send({"type": "http.response.body", "body": step, "more_body": True})
        else:
            await anyio.sleep(step)
    await send({"type": "http.response.body", "body": b"", "more_body": False})
    if trails:
        await send({"type": "http.response.trailers", "headers": [TRAILER]})


def length_of(plan: list[bytes | float]) -> int:
    """How many bytes a response to *plan* has."""
    return sum(len(step) for step in plan if isinstance(step, bytes))


async def handler(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    if request.path == "/gzip":
        response.headers["Content-Encoding"] = "gzip"
    plan = plan_of(request.query[PLAN])
    if request.path == "/length":
        response.content_length = length_of(plan)
    await response.prepare(request)
    for step in plan:
        if isinstance(step, bytes):
            if request.method != "HEAD":  # aiohttp would send it
                await response.write(step)
        else:
            await anyio.sleep(step)
    return response


def for_aiohttp() -> web.Application:
    """The same for aiohttp."""
    app = web.Application()
    app.router.add_get("/{path:.*}", handler)
    return app
