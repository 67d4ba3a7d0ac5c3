"""A FastAPI application whose event streams say goodbye when the server stops, as
somebody writes it who has read one page: it runs on asyncio and on trio.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator

import anyio
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent

import reaper

app = FastAPI()
SSE = "text/event-stream"
PAUSE = 0.3
"""Seconds between two events."""


@app.get("/async")
async def asynchronous() -> StreamingResponse:
    async def events() -> AsyncIterator[str]:
        while not reaper.stopping():
            yield "data: tick\n\n"
            await anyio.sleep(PAUSE)
        yield "retry: 500\ndata: goodbye\n\n"

    return StreamingResponse(events(), media_type=SSE)


@app.get("/thread")
def in_a_thread() -> StreamingResponse:
    def events() -> Iterator[str]:
        while not reaper.stopping():
            yield "data: tick\n\n"
            time.sleep(PAUSE)
        yield "retry: 500\ndata: goodbye\n\n"

    return StreamingResponse(events(), media_type=SSE)


@app.get("/events", response_class=EventSourceResponse)
async def events() -> AsyncIterator[ServerSentEvent]:
    while not reaper.stopping():
        yield ServerSentEvent(data="tick")
        await anyio.sleep(PAUSE)
    yield ServerSentEvent(data="goodbye", retry=500)


@app.get("/endless")
async def endless() -> StreamingResponse:
    async def events() -> AsyncIterator[str]:
        while True:
            yield "data: tick\n\n"
            await anyio.sleep(PAUSE)

    return StreamingResponse(events(), media_type=SSE)
