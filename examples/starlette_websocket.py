"""A Starlette WebSocket under a guarded uvicorn: it is closed when nothing moves on it
for `timeouts.tunnel`.

uvicorn examples.starlette_websocket:app --http reaper.uvicorn:Auto
"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket


async def echo(websocket: WebSocket) -> None:
    await websocket.accept()
    async for text in websocket.iter_text():
        await websocket.send_text(text)


app = Starlette(routes=[WebSocketRoute("/ws", echo)])
