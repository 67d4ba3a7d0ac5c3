"""The same quiet event stream, pinged by nobody or by its application: one event, and
then nothing until the client leaves.

One rule: *each imports only what it serves with*, for its memory is measured.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from scripts.lifespan import lifespan

PING = float(os.environ.get("STREAMS_PING", "15"))
"""Seconds between two pings of an application that pings by itself."""
FIRST = b"data: first\n\n"
COMMENT = b":\n\n"
HEADERS = [(b"content-type", b"text/event-stream")]


async def quiet(scope: Any, receive: Any, send: Any) -> None:
    """Nobody pings it."""
    if scope["type"] == "lifespan":
        await lifespan(receive, send)
        return
    await _begin(send)
    await _leaves(receive)


async def own(scope: Any, receive: Any, send: Any) -> None:
    """Each stream has a task that sleeps and pings."""
    if scope["type"] == "lifespan":
        await lifespan(receive, send)
        return
    await _begin(send)
    pinging = asyncio.create_task(_ping(send))
    try:
        await _leaves(receive)
    finally:
        pinging.cancel()


async def _begin(send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": FIRST, "more_body": True})


async def _leaves(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _ping(send: Any) -> None:
    while True:
        await asyncio.sleep(PING)
        await send({"type": "http.response.body", "body": COMMENT, "more_body": True})


def starlette() -> Any:
    """Starlette's `StreamingResponse`: nobody pings it."""
    from starlette.responses import StreamingResponse

    return _answers(lambda: StreamingResponse(_event(FIRST), media_type="text/event-stream"))


def sse_starlette() -> Any:
    """sse-starlette's `EventSourceResponse`, which pings by itself."""
    from sse_starlette import EventSourceResponse

    return _answers(lambda: EventSourceResponse(_event("first"), ping=PING))


def _answers(response: Any) -> Any:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
        else:
            await response()(scope, receive, send)

    return application


async def _event(first: Any) -> Any:
    yield first
    await asyncio.Event().wait()
