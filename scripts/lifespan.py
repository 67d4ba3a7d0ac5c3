"""The lifespan of an ASGI application that has nothing to begin and nothing to end."""

from __future__ import annotations

from typing import Any


async def lifespan(receive: Any, send: Any) -> None:
    """Say that it has started, and that it has ended, when the server asks for it."""
    while True:
        message = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return
