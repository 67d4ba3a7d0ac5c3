"""An ASGI application for any server that `reaper run` guards: /slow answers late, everything else
at once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

Message = dict[str, Any]


async def app(
    scope: Message,
    receive: Callable[[], Awaitable[Message]],
    send: Callable[[Message], Awaitable[None]],
) -> None:
    if scope["type"] == "lifespan":
        for stage in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{stage}.complete"})
        return
    while (message := await receive())["type"] == "http.request" and message.get("more_body"):
        pass
    if message["type"] != "http.request":
        return
    if scope["path"] == "/slow":
        await anyio.sleep(float(os.environ["SLOW"]))
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
    )
    await send({"type": "http.response.body", "body": b"ok"})


def wsgi(environ: dict[str, Any], start_response: Callable[..., object]) -> list[bytes]:
    if environ["PATH_INFO"] == "/slow":
        time.sleep(float(os.environ["SLOW"]))
    environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]
