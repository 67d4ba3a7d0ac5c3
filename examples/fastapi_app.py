"""FastAPI under a guarded uvicorn: nothing in the application knows of it.

uvicorn examples.fastapi_app:app --http reaper.uvicorn:Auto
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

import reaper.uvicorn

app = FastAPI()
app.mount("/metrics", reaper.uvicorn.metrics)  # what was closed, and why


@app.get("/")
async def hello() -> dict[str, str]:
    return {"hello": "world"}


@app.post("/upload")
async def upload(request: Request) -> dict[str, int]:
    # A client that stops in the middle is told 408 after `timeouts.body`; this line
    # then raises ClientDisconnect.
    return {"bytes": len(await request.body())}


@app.get("/events")
async def events() -> StreamingResponse:
    async def ticks() -> AsyncIterator[str]:
        while not reaper.stopping():  # true from SIGTERM on: then this stream says goodbye
            yield "data: tick\n\n"  # a request in flight is never idle, however long it takes
            await anyio.sleep(1)
        yield "retry: 2000\ndata: goodbye\n\n"

    return StreamingResponse(ticks(), media_type="text/event-stream")
