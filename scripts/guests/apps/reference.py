"""The reference server with the routes that the kinds of clients ask for: `python -m
scripts.guests.apps.reference http --port PORT ...`, otherwise as `server_example`.
"""

from __future__ import annotations

import sys
from typing import Any

import trio

from server_example.__main__ import main
from server_example.http import routes
from server_example.http.connection import Exchange

from .asgi import pieces_of
from .heard import tell, told
from .objects import fork, objects

TEXT = "text/plain"


async def _body(exchange: Exchange) -> bytes:
    return b"".join([data async for data in exchange.body()])


async def answer(exchange: Exchange) -> None:
    """The routes with one answer."""
    path, number = exchange.path, float(next(iter(exchange.query), 0) or 0)
    if path in ("/slow", "/late"):
        await trio.sleep(number)
    said = tell(number) if path == "/tell" else b"hello"  # before its client can be missed
    body = b"" if path == "/early" else await _body(exchange)
    if path == "/some":
        body = bytes(int(number))
    elif path == "/objects":
        body = objects()
    elif path == "/fork":
        body = fork(number)
    elif path == "/told":
        body = told(number)
    elif path not in ("/echo", "/late"):
        body = said
    await exchange.respond(200, body, TEXT)


async def pieces(exchange: Exchange) -> None:
    """The routes whose answer comes in pieces."""
    number = float(next(iter(exchange.query), 0) or 0)
    sent, rest = pieces_of(exchange.path, number)
    headers = [("content-length", str(sum(map(len, sent))))]
    if exchange.path == "/events":
        headers = [("content-type", "text/event-stream")]
    await exchange.start(200, headers)
    for place, piece in enumerate(sent):
        await trio.sleep(rest if place else 0)
        await exchange.send(piece)
    await exchange.finish()


def added() -> None:
    """Put the routes in."""
    known: Any = routes.ROUTES
    any_method: Any = answer
    any_method.methods = ("GET", "HEAD", "POST")
    plain = ("/", "/slow", "/late", "/early", "/echo", "/some", "/objects", "/fork", "/tell")
    known.update(dict.fromkeys((*plain, "/told"), answer))
    known.update(dict.fromkeys(("/pause", "/events"), pieces))


if __name__ == "__main__":
    added()
    sys.exit(main())
