"""An ASGI application for any server: /slow answers late, an answer to /pause stops
halfway, everything else is answered at once.
"""

from __future__ import annotations

import os
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
    path = scope["path"].strip("/")  # litestar ends the path below a mount with a slash
    if path == "slow":
        await anyio.sleep(float(os.environ["SLOW"]))
    parts = [b"first", b"last"] if path == "pause" else [b"ok"]
    length = b"%d" % sum(map(len, parts))
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]}
    )
    await send({"type": "http.response.body", "body": parts[0], "more_body": len(parts) > 1})
    for part in parts[1:]:
        await anyio.sleep(float(os.environ["SLOW"]))
        await send({"type": "http.response.body", "body": part})
