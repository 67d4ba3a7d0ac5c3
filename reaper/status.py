"""The status of a server, for `python -m reaper top`: its document, and the HTTP that
carries it.

The rule of this module: *bytes in, bytes out*. An adapter reads a request and writes
the answer. Who is connected, and from where, is for the operator alone; so the adapters
listen on loopback unless they are told otherwise.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from http import HTTPStatus
from typing import Any

SCHEMA = "reaper-status/1"

IDLE_BOUNDS = (1.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0)
"""The upper bounds of the columns of silence, seconds; a last column is for longer
silences.
"""

LONGEST_REQUEST = 8192
"""The most bytes that a request may have; a longer one is refused."""

PATIENCE = 5.0
"""Seconds that a client has for its request, and for taking the answer."""

JSON = "application/json"


class Unavailable(Exception):
    """Raised by a page to answer 503, as a server does that is no longer ready."""


log: logging.Logger = logging.getLogger("reaper")

Page = Callable[[], Awaitable[tuple[str, bytes]]]
"""Makes the answer to a request: its content type and its body."""


def document(
    server: str, workers: Iterable[Mapping[str, Any]], missing: Iterable[int] = ()
) -> bytes:
    """The status document of *server*, as JSON.

    Args:
        server: Its name.
        workers: What its workers said, see `reaper.driver.status`.
        missing: The numbers of the workers that said nothing.
    """
    found = {"schema": SCHEMA, "server": server, "workers": list(workers), "missing": list(missing)}
    return json.dumps(found).encode() + b"\n"


def complete(received: bytes) -> bool:
    """Whether *received* is a whole request, or more than will be read of one."""
    return b"\r\n\r\n" in received or b"\n\n" in received or len(received) > LONGEST_REQUEST


async def answer(received: bytes, pages: Mapping[str, Page]) -> bytes:
    """The bytes to send back for the request *received*, before the connection is
    closed.

    Args:
        received: The request, as far as it was read.
        pages: What is served, by path. A page that raises is logged, and answered 500.
    """
    method, _, rest = received.partition(b"\r\n")[0].decode("latin-1").partition(" ")
    target = rest.rpartition(" ")[0]
    if len(received) > LONGEST_REQUEST:
        return _response(431)
    if not target.startswith("/"):
        return _response(400)
    page = pages.get(target.partition("?")[0])
    if page is None:
        return _response(404, f"here are {', '.join(pages)}\n".encode())
    if method not in ("GET", "HEAD"):
        return _response(405, allow="GET, HEAD")
    try:
        content_type, body = await page()
    except Unavailable:
        return _response(503)
    except Exception:
        log.exception("a status page failed")  # A page that fails must not end the server.
        return _response(500)
    return _response(200, body, content_type, head_only=method == "HEAD")


def _response(
    status: int,
    body: bytes = b"",
    content_type: str = "text/plain; charset=utf-8",
    *,
    head_only: bool = False,
    allow: str = "",
) -> bytes:
    phrase = HTTPStatus(status).phrase
    allowed = f"allow: {allow}\r\n" if allow else ""
    body = body or f"{status} {phrase}\n".encode()
    head = (
        f"HTTP/1.1 {status} {phrase}\r\ncontent-type: {content_type}\r\n"
        f"content-length: {len(body)}\r\n{allowed}"
        "cache-control: no-store\r\nconnection: close\r\n\r\n"
    ).encode()
    return head if head_only else head + body
