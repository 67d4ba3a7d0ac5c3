"""The application that is attacked: FastAPI, with nothing in it against idle
clients.
"""

from __future__ import annotations

import asyncio

from fastapi import FastAPI, Request, Response, WebSocket, WebSocketDisconnect

import reaper.uvicorn

app = FastAPI()
app.mount("/metrics", reaper.uvicorn.metrics)
BIG = bytes(20_000_000)


@app.get("/")
async def hello() -> Response:
    return Response("hello")


@app.get("/big")
async def big() -> Response:
    return Response(BIG)


@app.api_route("/echo", methods=["GET", "POST"])
async def echo(request: Request) -> Response:
    return Response(await request.body())


@app.websocket("/ws")
async def talk(websocket: WebSocket) -> None:
    await websocket.accept()
    try:
        while True:
            await websocket.send_text(await websocket.receive_text())
    except WebSocketDisconnect:
        pass


@app.websocket("/feed")
async def feed(websocket: WebSocket) -> None:
    """Speaks a hundred times per second to a client that only listens."""
    await websocket.accept()
    try:
        while True:
            await websocket.send_text("news")
            await asyncio.sleep(0.01)
    except WebSocketDisconnect:
        pass
