"""At a stop, each answer says that it is the last of its connection, and a request that
was on its way is answered.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiohttp import web

import reaper
import reaper.gunicorn
from reaper import stops
from scripts.lifespan import lifespan
from scripts.serving import PATIENCE, ROOT, Server
from tests.helpers.hypercorn_here import configured
from tests.helpers.reaper_run import guarded
from tests.helpers.server_process import wait_until
from tests.helpers.servers_here import SERVERS_HERE, server_here, worker

pytestmark = pytest.mark.slow

SETTINGS = {"TICK": "100ms", "TIMEOUTS_DRAIN_IDLE": "4s"}
"""`drain_idle` is longer than a machine holds up a client that asks after the stop."""
GET = b"GET /%s HTTP/1.1\r\nHost: h\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok"


class Running(NamedTuple):
    """A server.

    Attributes:
        address: Where it listens.
        stop: Tells it to stop, and returns at once.
        asked: Set when it has been asked for `/slow`.
        goes_on: Set, it answers that.
    """

    address: tuple[str, int]
    stop: Callable[[], object]
    asked: threading.Event
    goes_on: threading.Event


@contextmanager
def serving(kind: str, tmp_path: Path, keepalive: str = "5") -> Iterator[Running]:
    asked, goes_on = threading.Event(), threading.Event()

    async def slowly() -> None:
        asked.set()
        while not goes_on.is_set():
            if kind.endswith("trio"):
                import trio

                await trio.sleep(0.02)
            else:
                await asyncio.sleep(0.02)

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
            return
        if scope["path"] == "/slow":
            await slowly()
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    def called(environ: Any, start_response: Any) -> list[bytes]:
        if environ["PATH_INFO"] == "/slow":
            asked.set()
            goes_on.wait()
        start_response("200 OK", [("Content-Length", "2")])
        return [b"ok"]

    async def handle(request: web.Request) -> web.Response:
        if request.path == "/slow":
            await slowly()
        return web.Response(text="ok")

    try:
        if kind == "ThreadWorker":
            with (
                configured(SETTINGS),
                worker(reaper.gunicorn.ThreadWorker, called, keepalive=keepalive) as made,
            ):
                yield Running(made.address, made.stop, asked, goes_on)
            return
        app = web.Application()
        app.router.add_route("*", "/{any:.*}", handle)
        with server_here(kind, tmp_path / "log", application, app, SETTINGS) as here:
            yield Running(here.address, here.stop, asked, goes_on)
    finally:
        goes_on.set()


@pytest.fixture(autouse=True)
def _nothing_stays_told() -> Iterator[None]:
    stops.forget()
    yield
    stops.forget()


AT_ONCE = ("ASGIWorker", "ThreadWorker")
"""Those that read gunicorn's flag, which our `stop` sets itself."""


def has_begun(kind: str) -> None:
    """Wait until the stop of the server *kind*, which has been told, has begun: its
    loop hears of it a moment later, and may be held up in between.
    """
    wait_until(lambda: kind in AT_ONCE or reaper.stopping(), "the stop")


def answer(client: socket.socket) -> bytes:
    heard = b""
    while not heard.endswith(b"ok") and (data := client.recv(1000)):
        heard += data
    return heard.lower()


@pytest.mark.parametrize("kind", [*SERVERS_HERE, "ThreadWorker"])
def test_an_answer_that_is_given_after_the_stop_is_the_last(kind: str, tmp_path: Path) -> None:
    with (
        serving(kind, tmp_path) as server,
        socket.create_connection(server.address, PATIENCE) as client,
    ):
        client.sendall(GET % b"slow")
        assert server.asked.wait(PATIENCE)
        server.stop()
        has_begun(kind)
        time.sleep(0.3)
        server.goes_on.set()
        assert b"connection: close" in answer(client)
        assert client.recv(1) == b""


# gunicorn's ASGI worker looks once a second whether it is to stop: gunicorn/test_stops.
HEAR_AT_ONCE = [kind for kind in SERVERS_HERE if kind != "ASGIWorker"]


@pytest.mark.parametrize("kind", [*HEAR_AT_ONCE, "ThreadWorker"])
def test_a_request_that_was_on_its_way_at_the_stop_is_answered(kind: str, tmp_path: Path) -> None:
    with (
        serving(kind, tmp_path) as server,
        socket.create_connection(server.address, PATIENCE) as client,
    ):
        client.sendall(GET % b"")
        assert b"connection: close" not in answer(client)
        server.stop()
        has_begun(kind)
        time.sleep(0.5)
        client.sendall(POST)
        assert b"connection: close" in answer(client)
        assert client.recv(1) == b""


def test_gunicorns_threads_wait_for_drain_idle_and_not_for_gunicorns_two_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SETTINGS, "TIMEOUTS_DRAIN_IDLE", "15s")
    with (
        serving("ThreadWorker", tmp_path, keepalive="60") as server,
        socket.create_connection(server.address, PATIENCE) as client,
    ):
        client.sendall(GET % b"")
        assert b"connection: close" not in answer(client)
        server.stop()
        time.sleep(3.5)  # it notices within a second
        client.sendall(POST)
        assert b"connection: close" in answer(client)


PROGRAMS = ["sanic", "tornado"]


def told(
    program: str, tmp_path: Path, drain_idle: str = "4s"
) -> AbstractContextManager[tuple[Server, Path]]:
    """*program* of `tests.helpers.stopped_programs`, guarded, and the file of what it
    says.
    """
    pytest.importorskip(program)
    command = [sys.executable, "-m", "tests.helpers.stopped_programs", program, "{port}"]
    limits = ["--tick", "100ms", "--drain-idle", drain_idle]
    return guarded(command, tmp_path, limits=limits, before=[ROOT])


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_programs_answer_that_is_given_after_the_stop_is_the_last(
    program: str, tmp_path: Path
) -> None:
    with (
        told(program, tmp_path) as (server, log),
        socket.create_connection(server.address, PATIENCE) as client,
    ):
        client.sendall(GET % b"slow")
        wait_until(lambda: "asked" in log.read_text(), "the request")
        server.process.send_signal(signal.SIGTERM)
        assert b"connection: close" in answer(client)
        assert client.recv(1) == b""


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_request_that_was_on_its_way_to_a_program_is_answered(
    program: str, tmp_path: Path
) -> None:
    with (
        told(program, tmp_path) as (server, log),
        socket.create_connection(server.address, PATIENCE) as client,
    ):
        client.sendall(GET % b"")
        assert b"connection: close" not in answer(client)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "stops" in log.read_text(), "the stop")
        time.sleep(0.5)
        client.sendall(POST)
        assert b"connection: close" in answer(client)
        assert client.recv(1) == b""


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_whose_clients_rest_ends_after_drain_idle(program: str, tmp_path: Path) -> None:
    with (
        told(program, tmp_path, "2s") as (server, _),
        socket.create_connection(server.address, PATIENCE) as client,
    ):
        client.sendall(GET % b"")
        answer(client)
        server.process.send_signal(signal.SIGTERM)
        assert client.recv(1) == b""
        assert server.process.wait(PATIENCE) == 0
