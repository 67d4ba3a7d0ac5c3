"""An application whose requests go on for a while, and say in the log how they
ended.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import anyio
from aiohttp import web

import reaper.aiohttp
from scripts.lifespan import lifespan

LONG = float(os.environ.get("LEAVING_LONG", "3"))
"""Seconds that a handler works."""
ENDLESS = 600.0
"""Seconds that it would work for `/closes` and `/resets`, whose clients leave: however
late a busy machine cancels them, they have not come to their end before.
"""
BEGAN = "is being worked on"
CANCELLED = "was cancelled"
ENDED = "came to its end"


def say(path: str, how: str) -> None:
    print(f"{path} {how}", flush=True)


async def work(path: str) -> None:
    say(path, BEGAN)
    try:
        await anyio.sleep(ENDLESS if path in ("/closes", "/resets") else LONG)
        say(path, ENDED)
    except anyio.get_cancelled_exc_class():
        say(path, CANCELLED)
        raise


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Works, and answers. `/kept` must not be cancelled, `/background` answers first,
    `/begun` begins its response first.
    """
    if scope["type"] == "lifespan":
        await lifespan(receive, send)
        return
    path = scope["path"]
    if path == "/kept":
        scope["extensions"]["reaper"]["abandoned"] = False
    await receive()
    start = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]}
    rest = {"type": "http.response.body", "body": b"done", "more_body": False}
    if path == "/background":
        await send(start)
        await send(rest)
        await work(path)
        return
    if path == "/begun":
        await send(start)
        await send({"type": "http.response.body", "body": b"do", "more_body": True})
        rest["body"] = b"ne"
    await work(path)
    if path != "/begun":
        await send(start)
    await send(rest)


async def handler(request: web.Request) -> web.StreamResponse:
    """The same for aiohttp."""
    if request.path == "/kept":
        request["reaper"] = {"abandoned": False}
    response = web.Response(text="done")
    if request.path == "/background":
        await response.prepare(request)
        await response.write_eof()
    if request.path == "/begun":
        stream = web.StreamResponse(headers={"content-length": "4"})
        await stream.prepare(request)
        await stream.write(b"do")
        await work(request.path)
        await stream.write(b"ne")
        return stream
    await work(request.path)
    return response


def aiohttp_app() -> web.Application:
    app = web.Application()
    app.router.add_get("/{path:.*}", handler)
    return app


def main() -> None:
    """`python -m tests.helpers.leaving [--stock] PORT`: aiohttp serves it, guarded or
    not.
    """
    run = web.run_app if "--stock" in sys.argv else reaper.aiohttp.run_app
    run(aiohttp_app(), host="127.0.0.1", port=int(sys.argv[-1]), handle_signals=True)


if __name__ == "__main__":
    main()
