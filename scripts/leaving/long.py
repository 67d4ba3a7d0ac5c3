"""A handler that works for `LONG` seconds, and says for how long it has run.

As an ASGI application on asyncio and on trio; `python -m scripts.leaving.long PORT`
serves it with aiohttp.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import anyio

from scripts.lifespan import lifespan

LONG = 8.0
"""Seconds."""
BODY = b"done"


async def work(path: str) -> None:
    since = time.monotonic()
    try:
        await anyio.sleep(LONG)
    finally:
        print(f"{path} ran for {time.monotonic() - since:.1f}", flush=True)


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Works, and answers."""
    if scope["type"] == "lifespan":
        await lifespan(receive, send)
        return
    await receive()
    await work(scope["path"])
    headers = [(b"content-length", b"%d" % len(BODY))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": BODY, "more_body": False})


def main() -> None:
    from aiohttp import web

    async def handler(request: web.Request) -> web.Response:
        await work(request.path)
        return web.Response(body=BODY)

    app = web.Application()
    app.router.add_get("/{path:.*}", handler)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]))


if __name__ == "__main__":
    main()
