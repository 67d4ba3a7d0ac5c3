"""A body that drips is closed by `limits.min_in_rate`, and a second head by `headers`,
in every server that is asked what a connection waits for; one that comes fast enough is
answered.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import reaper.gunicorn
from scripts.lifespan import lifespan
from scripts.serving import PATIENCE
from tests.helpers.hypercorn_here import configured
from tests.helpers.lagging import Lagged, in_time
from tests.helpers.servers_here import SERVERS_HERE, server_here, worker

pytestmark = pytest.mark.slow

SETTINGS = {
    **{f"TIMEOUTS_{phase}": "1h" for phase in ("FIRST_BYTE", "KEEP_ALIVE", "BODY", "WRITE")},
    "TIMEOUTS_HEADERS": "300ms",
    "TICK": "100ms",
    "LIMITS_MIN_IN_RATE": "240",
    "LIMITS_MIN_IN_GRACE": "400ms",
}
SIZE = 600
BORNE = 0.25
"""Seconds by which a client that keeps the rate may be late with its bytes: the grace
pays for more.
"""
POST = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % SIZE


async def application(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await lifespan(receive, send)
        return
    while (await receive()).get("more_body"):
        pass
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


def called(environ: Any, start_response: Any) -> list[bytes]:
    """The same for WSGI."""
    environ["wsgi.input"].read()
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]


async def handle(request: web.Request) -> web.Response:
    """The same for aiohttp."""
    await request.read()
    return web.Response(text="ok")


@contextmanager
def serving(kind: str, tmp_path: Path) -> Iterator[tuple[str, int]]:
    """The address of the server *kind*."""
    if kind == "ThreadWorker":
        with (
            configured(SETTINGS),
            worker(reaper.gunicorn.ThreadWorker, called, keepalive="5") as running,
        ):
            yield running.address
        return
    app = web.Application()
    app.router.add_route("*", "/", handle)
    with server_here(kind, tmp_path / "log", application, app, SETTINGS) as here:
        yield here.address


def posted(address: tuple[str, int], piece: int, pause: float) -> tuple[bytes, float]:
    """What a client hears that sends its body in pieces of so many bytes, and by how
    many seconds it was late itself with one of them, or with its end, at most.
    """
    heard, late = b"", 0.0
    with socket.create_connection(address, PATIENCE) as client:
        began = time.monotonic()
        client.sendall(POST)
        client.settimeout(pause)
        for place in range(1, SIZE // piece + 1):
            with suppress(TimeoutError, ConnectionResetError):
                heard = client.recv(1000)
            late = max(late, time.monotonic() - began - place * pause)
            if heard:
                break
            with suppress(OSError):
                client.sendall(b"x" * piece)
        client.settimeout(PATIENCE)
        with suppress(ConnectionResetError):
            heard = heard or client.recv(1000)
    return heard, late


def posted_in_time(address: tuple[str, int], piece: int, pause: float) -> bytes:
    """What such a client hears that was not late itself, or is answered."""

    def once() -> bytes:
        heard, late = posted(address, piece, pause)
        if late >= BORNE and not heard.startswith(b"HTTP/1.1 200 "):
            raise Lagged
        return heard

    return in_time(once)


@pytest.mark.parametrize("kind", [*SERVERS_HERE, "ThreadWorker"])
def test_a_body_that_drips_is_told_408_and_one_that_keeps_the_rate_is_answered(
    kind: str, tmp_path: Path
) -> None:
    heard: dict[str, bytes] = {}
    with serving(kind, tmp_path) as address:

        def fast() -> None:
            heard["fast"] = posted_in_time(address, 40, 0.05)

        beside = threading.Thread(target=fast)
        beside.start()
        heard["slow"], _ = posted(address, 1, 0.3)
        beside.join()
    assert heard["slow"].startswith(b"HTTP/1.1 408 ")
    assert heard["fast"].startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("kind", [*SERVERS_HERE, "ThreadWorker"])
def test_half_a_head_after_a_rest_is_closed_by_its_own_limit(kind: str, tmp_path: Path) -> None:
    """And not by that of the rest, an hour here."""
    with (
        serving(kind, tmp_path) as address,
        socket.create_connection(address, PATIENCE) as client,
    ):
        client.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
        answer = b""
        while not answer.endswith(b"ok"):
            answer += client.recv(1000)
        time.sleep(0.7)  # the guard has found it at rest
        client.sendall(b"GET / HT")
        assert client.recv(1000).startswith(b"HTTP/1.1 408 ")
