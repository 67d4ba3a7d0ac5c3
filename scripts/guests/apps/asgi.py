"""An ASGI application with what the kinds of clients ask for; on asyncio and on trio.

`/` says hello, `/slow?S` after S seconds, `/some?N` N bytes, `/echo` what it was sent,
`/late?S` the same S seconds later, `/early` hello before it reads, `/pause?S` halfway
waits, `/events?N` N events, `/drops?N` N small pieces; `/told?N` how many asked for
`/tell?N`. A WebSocket answers with what it was sent, and `big` with a million bytes.
"""

from __future__ import annotations

from typing import Any

import anyio

from scripts.lifespan import lifespan

from .heard import tell, told
from .objects import fork, objects

BIG = b"x" * 1_000_000
EVERY = 0.4
"""Seconds between two events."""


def pieces_of(path: str, number: float) -> tuple[list[bytes], float]:
    """What `/events`, `/drops` and `/pause` send, and the seconds between two
    pieces.
    """
    if path == "/events":
        return [b"data: tick\n\n"] * int(number), EVERY
    if path == "/drops":
        return [b"0123456789"] * int(number), 0.004
    return [b"first", b"after"], number


async def app(scope: Any, receive: Any, send: Any) -> None:
    """The application."""
    if scope["type"] == "lifespan":
        await lifespan(receive, send)
    elif scope["type"] == "websocket":
        await _websocket(receive, send)
    else:
        path, number = scope["path"], float(scope["query_string"] or 0)
        if scope["method"] != "POST":
            receive = _nothing  # uvicorn's zttp says nothing of a stream without a body
        if path in ("/pause", "/events", "/drops"):
            await _pieces(path, number, receive, send)
        else:
            await _respond(send, await _answer(path, number, receive))
            if path == "/early":
                await _body(receive)


async def _answer(path: str, number: float, receive: Any) -> bytes:
    if path == "/tell":  # before it can be known that who tells it has left
        return tell(number)
    if path in ("/slow", "/late"):
        await anyio.sleep(number)
    if path in ("/echo", "/late"):
        return await _body(receive)
    if path != "/early":
        await _body(receive)
    if path == "/objects":
        return objects()
    if path == "/fork":
        return fork(number)
    if path == "/told":
        return told(number)
    return bytes(int(number)) if path == "/some" else b"hello"


async def _body(receive: Any) -> bytes:
    found, more = b"", True
    while more:
        message = await receive()
        found += message.get("body", b"")
        more = message.get("more_body", False)
    return found


async def _nothing() -> Any:
    return {"type": "http.request"}


async def _respond(send: Any, body: bytes) -> None:
    length = str(len(body)).encode()
    await _begin(send, (b"content-type", b"text/plain"), (b"content-length", length))
    await send({"type": "http.response.body", "body": body})


async def _begin(send: Any, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def _pieces(path: str, number: float, receive: Any, send: Any) -> None:
    """An answer in pieces, with rests between them."""
    await _body(receive)
    pieces, rest = pieces_of(path, number)
    length = str(sum(map(len, pieces))).encode()
    if path == "/events":
        await _begin(send, (b"content-type", b"text/event-stream"))
    else:
        await _begin(send, (b"content-type", b"text/plain"), (b"content-length", length))
    for place, piece in enumerate(pieces):
        if place:
            await anyio.sleep(rest)
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _websocket(receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        text = message.get("text")
        if text == "big":
            await send({"type": "websocket.send", "bytes": BIG})
        elif text == "tell":
            tell()
        elif text == "told":
            await send({"type": "websocket.send", "bytes": told()})
        elif text is not None:
            await send({"type": "websocket.send", "text": text})
        else:
            await send({"type": "websocket.send", "bytes": message["bytes"]})
