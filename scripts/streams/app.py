"""An ASGI application whose streams say something at their beginning and at their end:
`/quiet/60` is silent for 60 seconds between. With a name in the query it prints when
its handler begins, with the port of its client, and when it ends.
"""

from __future__ import annotations

import asyncio
from typing import Any

from .words import BEGINS, ENDS, FIRST, LAST


async def application(scope: Any, receive: Any, send: Any) -> None:
    """`/quiet/SECONDS?NAME`."""
    if scope["type"] == "lifespan":
        for kind in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{kind}.complete"})
        return
    name = scope["query_string"].decode()
    if name:
        print(f"{BEGINS} {name} {scope['client'][1]}", flush=True)
    try:
        await _stream(float(scope["path"].rpartition("/")[2]), send)
    finally:
        if name:
            print(f"{ENDS} {name}", flush=True)


async def _stream(seconds: float, send: Any) -> None:
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": FIRST, "more_body": True})
    await asyncio.sleep(seconds)
    await send({"type": "http.response.body", "body": LAST, "more_body": False})
