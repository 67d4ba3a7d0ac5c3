"""A client that reads all the time behind a full buffer takes its whole answer: its
kernel opens the window seldom, and no `write` is over before that. One that has stopped
is closed.
"""

from __future__ import annotations

import asyncio
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop
from aiohttp import web

import reaper.asyncio
import reaper.gunicorn
import reaper.uvicorn
from reaper.config import ReaperConfig
from scripts.lifespan import lifespan
from scripts.serving import PATIENCE
from tests.helpers.hypercorn_here import configured
from tests.helpers.servers_here import SERVERS_HERE, server_here, uvicorn_here, worker

pytestmark = pytest.mark.slow

SIZE = 5_000_000
"""Bytes; more than a kernel takes of an answer that waits."""
ENOUGH = 400_000
BUFFER = 65_536
RATE = 120_000
"""Bytes per second that the client reads, in small pieces. Its kernel opens the window
after 94,826, which take 0.8 s.
"""
SETTINGS = {
    **{f"TIMEOUTS_{phase}": "1h" for phase in ("FIRST_BYTE", "HEADERS", "BODY", "KEEP_ALIVE")},
    "TIMEOUTS_WRITE": "300ms",
    "TIMEOUTS_LINGER": "300ms",
    "TICK": "100ms",
    "LIMITS_MIN_OUT_RATE": "80000",
}
ASKED = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
KINDS = [*SERVERS_HERE, "HttpTools on uvloop", "ThreadWorker", "guard", "guard on uvloop"]


async def application(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await lifespan(receive, send)
        return
    headers = [(b"content-length", b"%d" % SIZE)]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": bytes(SIZE)})


def called(environ: Any, start_response: Any) -> list[bytes]:
    """The same for WSGI."""
    start_response("200 OK", [("Content-Length", str(SIZE))])
    return [bytes(SIZE)]


async def handle(request: web.Request) -> web.Response:
    """The same for aiohttp."""
    return web.Response(body=bytes(SIZE))


class Flood(asyncio.Protocol):
    """The same for plain bytes."""

    def connection_made(self, transport: Any) -> None:
        transport.write(bytes(SIZE))


def plain(kind: str, use: Callable[[tuple[str, int]], object]) -> None:
    """Call *use* in a thread with the address of a server of plain bytes."""
    config = ReaperConfig.load(
        environ={f"REAPER_{name}": value for name, value in SETTINGS.items()}
    )

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        guarded = reaper.asyncio.guard(Flood, idle=0.3, config=config)
        server = await loop.create_server(guarded, "127.0.0.1", 0)
        await asyncio.to_thread(use, server.sockets[0].getsockname())
        server.close()

    factory = uvloop.new_event_loop if kind.endswith("uvloop") else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(serve())


def with_server(kind: str, tmp_path: Path, use: Callable[[tuple[str, int]], object]) -> None:
    """Call *use* with the address of the server *kind*, guarded."""
    app = web.Application()
    app.router.add_get("/", handle)
    made: AbstractContextManager[Any]
    if kind.startswith("guard"):
        plain(kind, use)
        return
    if kind == "ThreadWorker":
        with configured(SETTINGS), worker(reaper.gunicorn.ThreadWorker, called) as running:
            use(running.address)
        return
    if kind == "HttpTools on uvloop":
        config = ReaperConfig.load(
            environ={f"REAPER_{name}": value for name, value in SETTINGS.items()}
        )
        made = uvicorn_here(
            reaper.uvicorn.HttpTools, tmp_path / "log", application, config, loop="uvloop"
        )
    else:
        made = server_here(kind, tmp_path / "log", application, app, SETTINGS)
    with made as here:
        use(here.address)


def asked(address: tuple[str, int]) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
    client.settimeout(PATIENCE)
    client.connect(address)
    with suppress(ConnectionError):  # a server of plain bytes
        client.sendall(ASKED)
    return client


def read_slowly(client: socket.socket) -> tuple[int, float]:
    """How many bytes of `ENOUGH` come to a client that reads `RATE` bytes a second, and
    by how many seconds it was late itself at most.
    """
    begun = looked = time.monotonic()
    got, late = 0, 0.0
    with suppress(ConnectionError):
        while got < ENOUGH and looked < begun + PATIENCE:
            due = int((looked - begun) * RATE) - got
            if due > 0 and select.select([client], [], [], 0)[0]:
                came = len(client.recv(min(due, 4096)))
                if not came:
                    break
                got += came
            else:
                time.sleep(0.01)
            now = time.monotonic()
            late, looked = max(late, now - looked), now
    return got, late


def reads_all(address: tuple[str, int]) -> None:
    """Read slowly, until all has come. A client that was so late itself that its kernel
    could not open the window in time proves nothing, and asks again.
    """
    while True:
        with asked(address) as reads:
            got, late = read_slowly(reads)
        if got >= ENOUGH:
            return
        assert late > 0.25, f"closed after {got} bytes"


def was_closed(client: socket.socket) -> bool:
    """Wait until the kernel says that a client who reads nothing was reset."""
    ends = time.monotonic() + PATIENCE
    while time.monotonic() < ends:
        if client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) or is_over(client):
            return True
        time.sleep(0.05)
    return False


def is_over(client: socket.socket) -> bool:
    return client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] in (7, 8)


@pytest.mark.parametrize("kind", KINDS)
def test_a_reader_behind_a_full_buffer_lives_and_one_that_stopped_does_not(
    kind: str, tmp_path: Path
) -> None:
    seen: dict[str, Any] = {}

    def use(address: tuple[str, int]) -> None:
        with asked(address) as stopped:
            waits = threading.Thread(target=lambda: seen.update(closed=was_closed(stopped)))
            waits.start()
            reads_all(address)
            waits.join()

    with_server(kind, tmp_path, use)
    assert seen == {"closed": True}
