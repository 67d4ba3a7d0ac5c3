"""A request that does not come in time is answered 408 by every guard that closes its
connection, and one whose answer has begun gets no second one.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import reaper.gunicorn
from scripts.lifespan import lifespan
from tests.helpers.hypercorn_here import configured
from tests.helpers.servers_here import SERVERS_HERE, server_here, worker

pytestmark = pytest.mark.slow

SETTINGS = {
    **{f"TIMEOUTS_{phase}": "200ms" for phase in ("HEADERS", "BODY", "KEEP_ALIVE")},
    "TIMEOUTS_FIRST_BYTE": "1h",  # a slow machine's client is late with it
    "TICK": "100ms",
}
SERVERS = [*SERVERS_HERE, "ThreadWorker"]
TWO = {"content-length": "2"}


async def application(scope: Any, receive: Any, send: Any) -> None:
    """`/early` begins its answer before it reads the body."""
    if scope["type"] == "lifespan":
        await lifespan(receive, send)
        return
    start = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
    if scope["path"] == "/early":
        await send(start)
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        await _rest(receive)
    else:
        await _rest(receive)
        await send(start)
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
    await send({"type": "http.response.body", "body": b"b"})


async def _rest(receive: Any) -> None:
    while (await receive()).get("more_body"):
        pass


async def in_aiohttp(request: web.Request) -> web.StreamResponse:
    """The same for aiohttp."""
    response = web.StreamResponse(headers=TWO)
    if request.path == "/early":
        await response.prepare(request)
        await response.write(b"a")
    with contextlib.suppress(ConnectionError):
        await request.read()
        await response.prepare(request)
        await response.write(b"ab"[int(request.path == "/early") :])
    return response


def in_wsgi(environ: Any, start_response: Any) -> Iterator[bytes]:
    """The same for WSGI."""
    start_response("200 OK", list(TWO.items()))
    if environ["PATH_INFO"] == "/early":
        yield b"a"
        environ["wsgi.input"].read()
    else:
        environ["wsgi.input"].read()
        yield b"a"
    yield b"b"


@contextmanager
def address_of(kind: str, log: Path) -> Iterator[tuple[str, int]]:
    """Where the server *kind* listens."""
    if kind == "ThreadWorker":
        with configured(SETTINGS), worker(reaper.gunicorn.ThreadWorker, in_wsgi) as running:
            yield running.address
        return
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", in_aiohttp)
    with server_here(kind, log, application, app, SETTINGS) as here:
        yield here.address


@pytest.fixture(scope="module", params=SERVERS)
def address(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, int]]:
    with address_of(request.param, tmp_path_factory.mktemp("late") / "log") as found:
        yield found


def says(address: tuple[str, int], what: bytes) -> bytes:
    """What the server says to a client that has said *what*, until the end."""
    heard = b""
    with socket.create_connection(address, timeout=10) as client:
        client.sendall(what)
        with contextlib.suppress(ConnectionResetError):
            while more := client.recv(1000):
                heard += more
    return heard


POST = b"POST %s HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nhalf"


@pytest.mark.parametrize("what", [b"POST / HT", POST % b"/"], ids=["head", "body"])
def test_half_a_request_is_answered_408(address: tuple[str, int], what: bytes) -> None:
    heard = says(address, what)
    assert heard.startswith(b"HTTP/1.1 408 ")
    assert heard.count(b"HTTP/1.1") == 1


def test_half_a_body_whose_answer_has_begun_is_answered_no_second_time(
    address: tuple[str, int],
) -> None:
    heard = says(address, POST % b"/early")
    assert heard.startswith(b"HTTP/1.1 200 ")
    assert heard.endswith(b"a")


SHOWS = [kind for kind in SERVERS if kind != "aiohttp"]
"""Those whose parser says what it has."""


@pytest.mark.parametrize("address", SHOWS, indirect=True)
def test_half_a_head_behind_a_whole_request_is_answered_408(address: tuple[str, int]) -> None:
    heard = says(address, b"GET / HTTP/1.1\r\nHost: h\r\n\r\nGET / HT")
    assert heard.startswith(b"HTTP/1.1 200 ")
    assert b"abHTTP/1.1 408 " in heard
