"""The same as `asgi`, as a WSGI application."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from .asgi import pieces_of
from .heard import tell, told
from .objects import fork, objects

Start = Callable[[str, list[tuple[str, str]]], Any]


def app(environ: dict[str, Any], start: Start) -> Iterable[bytes]:
    """The application."""
    path, number = environ["PATH_INFO"], float(environ["QUERY_STRING"] or 0)
    if path == "/events":
        start("200 OK", [("content-type", "text/event-stream")])
        return _pieces(*pieces_of(path, number))
    if path in ("/drops", "/pause"):
        pieces, rest = pieces_of(path, number)
        length = str(sum(map(len, pieces)))
        start("200 OK", [("content-type", "text/plain"), ("content-length", length)])
        return _pieces(pieces, rest)
    body = b"hello"
    if path in ("/slow", "/late"):
        time.sleep(number)
    if path in ("/echo", "/late"):
        body = environ["wsgi.input"].read()
    elif path == "/some":
        body = bytes(int(number))
    elif path == "/objects":
        body = objects()
    elif path == "/fork":
        body = fork(number)
    elif path == "/tell":
        body = tell(number)
    elif path == "/told":
        body = told(number)
    if path != "/early":
        environ["wsgi.input"].read()
    start("200 OK", [("content-type", "text/plain"), ("content-length", str(len(body)))])
    return [body]


def _pieces(pieces: list[bytes], rest: float) -> Iterable[bytes]:
    for place, piece in enumerate(pieces):
        if place:
            time.sleep(rest)
        yield piece
