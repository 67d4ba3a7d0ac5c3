"""What is open when a guarded server is told to stop: streams end, everything else is
answered.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from reaper import stops
from scripts.serving import Server, free_port
from scripts.serving import serving as start
from tests.helpers import streaming_aiohttp
from tests.helpers.hypercorn_here import Here
from tests.helpers.program_trials import connect
from tests.helpers.program_trials import heard as until
from tests.helpers.program_trials import rest as until_closed
from tests.helpers.server_process import wait_until
from tests.helpers.servers_here import SERVERS_HERE, server_here
from tests.servers.uvicorn.test_limits import UPGRADE, get

pytestmark = pytest.mark.slow

APP = "tests.helpers.streaming:application"
GUNICORN = ["gunicorn", APP, "--no-control-socket", "-k"]
HYPERCORN = ["reaper", "run", "--", sys.executable, "-m", "hypercorn", APP]
COMMANDS = {
    "HttpTools": ["uvicorn", APP, "--http", "reaper.uvicorn:HttpTools", "--port"],
    "H11": ["uvicorn", APP, "--http", "reaper.uvicorn:H11", "--port"],
    "ASGIWorker": [*GUNICORN, "reaper.gunicorn.ASGIWorker", "-b"],
    "UvicornWorker": [*GUNICORN, "reaper.gunicorn.UvicornWorker", "-b"],
    "hypercorn": [*HYPERCORN, "-b"],
}
OTHERS = {"aiohttp": ["tests.helpers.streaming_aiohttp"]}
LAST_CHUNK = b"\r\n0\r\n\r\n"


HERE = ["HttpTools", "H11", "ASGIWorker", "hypercorn"]
"""Those of `COMMANDS` that run in a thread of the test's process, but where a test
sends signals.
"""
EACH = [*HERE, "UvicornWorker"]


@contextlib.contextmanager
def process(kind: str, tmp_path: Path, app: str = APP, **timeouts: str) -> Iterator[Server]:
    port = free_port()
    limits = {f"REAPER_TIMEOUTS_{name}": value for name, value in timeouts.items()}
    environment = os.environ | {"REAPER_TICK": "250ms"} | limits
    words = (COMMANDS | OTHERS)[kind]
    where = f"127.0.0.1:{port}" if words[-1] == "-b" else str(port)
    command = [sys.executable, "-m", *(app if word == APP else word for word in words), where]
    with start(command, tmp_path / "log", port=port, environment=environment) as server:
        yield server


@contextlib.contextmanager
def serving(kind: str, tmp_path: Path, app: str = APP, **timeouts: str) -> Iterator[Server | Here]:
    """The server *kind*, in a thread if it can: then nothing but its stop begins as by
    a signal.
    """
    if kind not in SERVERS_HERE:
        with process(kind, tmp_path, app, **timeouts) as server:
            yield server
        return
    module, _, name = app.partition(":")
    application = getattr(importlib.import_module(module), name)
    others = streaming_aiohttp.application()
    limits = {f"TIMEOUTS_{name}": value for name, value in timeouts.items()}
    with server_here(
        kind, tmp_path / "log", application, others, {"TICK": "250ms"} | limits
    ) as here:
        yield here


@pytest.fixture(autouse=True)
def _nothing_stays_told() -> Iterator[None]:
    yield
    stops.forget()


def ended(server: Server | Here) -> None:
    """Wait until *server* has ended; a process has to do that by itself."""
    assert server.end() != -signal.SIGKILL


class Client(threading.Thread):
    """Asks for *path*, and hears all until the server ends the connection."""

    def __init__(self, server: Server | Here, path: str) -> None:
        super().__init__()
        self.client = connect(server)
        self.client.sendall(get(path.encode()))
        self.said = until(self.client, b"tick") if path not in ("/slow", "/download") else b""
        self.ended = 0.0
        self.reset = False
        self.start()

    def run(self) -> None:
        try:
            while data := self.client.recv(100_000):
                self.said += data
        except ConnectionResetError:
            self.reset = True
        self.ended = time.monotonic()
        self.client.close()


@pytest.fixture(params=EACH)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


STOPS = [
    (kind, number)
    for kind in COMMANDS
    for number in (signal.SIGTERM, signal.SIGINT)
    if not (kind.endswith("Worker") and number == signal.SIGINT)
]
"""The servers, and the signals at which each of them waits: gunicorn's SIGINT is its
quick stop, at which nothing is waited for.
"""


@pytest.mark.parametrize(("kind", "number"), STOPS)
def test_a_stop_ends_the_stream_and_answers_the_others(
    kind: str, tmp_path: Path, number: signal.Signals
) -> None:
    with process(kind, tmp_path) as server:
        stream, slow, download = (
            Client(server, path) for path in ("/events", "/slow", "/download")
        )
        time.sleep(0.5)
        os.kill(server.pid, number)
        for client in (stream, slow, download):
            client.join()
        wait_until(lambda: server.process.poll() is not None)
        log = server.log.read_text()
    assert stream.said.endswith(b"data: bye\n\n" + LAST_CHUNK)
    assert slow.said.endswith(b"whole" + LAST_CHUNK)
    assert download.said.count(b"x") == 30_000
    assert download.said.endswith(b"whole" + LAST_CHUNK)
    assert stream.ended < min(slow.ended, download.ended)
    assert "told http.disconnect" in log
    assert "/slow was told: False" in log
    assert "/download was told: False" in log
    assert "lifespan has ended" in log
    assert "Traceback" not in log


def test_an_application_that_awaits_the_stop_says_goodbye(kind: str, tmp_path: Path) -> None:
    with serving(kind, tmp_path, DRAIN_STREAMS="1s", DRAIN_IDLE="2s") as server:
        stream = Client(server, "/goodbye")
        server.stop()
        stream.join()
        ended(server)
    assert b"retry: 500" in stream.said
    assert stream.said.endswith(LAST_CHUNK)


@pytest.mark.parametrize("kind", [*EACH, "hypercorn on trio"])
def test_the_streams_of_fastapi_that_ask_for_the_stop_say_goodbye(
    kind: str, tmp_path: Path
) -> None:
    app = "tests.helpers.streaming_fastapi:app"
    with serving(kind, tmp_path, app, DRAIN_STREAMS="4s") as server:
        streams = [Client(server, path) for path in ("/async", "/thread", "/events")]
        endless = Client(server, "/endless")
        server.stop()
        for client in (*streams, endless):
            client.join()
        ended(server)
        log = server.log.read_text()
    assert all(b"goodbye" in client.said and b"retry: 500" in client.said for client in streams)
    assert all(client.said.endswith(LAST_CHUNK) for client in (*streams, endless))
    assert all(client.ended < endless.ended for client in streams)
    assert "Traceback" not in log


@pytest.mark.parametrize("path", ["/stubborn", "/declared"])
def test_a_stop_ends_a_stream_that_does_not_listen_and_one_that_says_what_it_is(
    kind: str, tmp_path: Path, path: str
) -> None:
    with serving(kind, tmp_path, DRAIN_STREAMS="1s") as server:
        stream = Client(server, path)
        told = time.monotonic()
        server.stop()
        stream.join()
        ended(server)
        log = server.log.read_text()
    assert stream.said.endswith(LAST_CHUNK)
    assert path == "/declared" or stream.ended - told >= 1
    assert "lifespan has ended" in log
    assert "Traceback" not in log


def test_a_stream_is_any_response_where_drain_streams_is_off(kind: str, tmp_path: Path) -> None:
    with serving(kind, tmp_path, DRAIN_STREAMS="0s", DRAIN="2s") as server:
        stream = Client(server, "/events")
        server.stop()
        stream.join()
    assert not stream.said.endswith(LAST_CHUNK)


def test_aiohttp_ends_its_streams_and_answers_the_others(tmp_path: Path) -> None:
    with serving("aiohttp", tmp_path) as server:
        stream, goodbye, slow, download = (
            Client(server, path) for path in ("/events", "/goodbye", "/slow", "/download")
        )
        time.sleep(0.5)
        server.stop()
        for client in (stream, goodbye, slow, download):
            client.join()
        ended(server)
        log = server.log.read_text()
    assert stream.said.endswith(b"data: tick\n\n" + LAST_CHUNK)
    assert goodbye.said.endswith(b"data: bye\n\n" + LAST_CHUNK)
    assert slow.said.endswith(b"whole" + LAST_CHUNK)
    assert download.said.endswith(b"whole" + LAST_CHUNK)
    assert "lifespan has ended" in log


def all_end(clients: list[socket.socket]) -> tuple[list[bytes], float]:
    """What each of *clients* hears until its end; the seconds between the first end and
    the last.
    """
    said: list[bytes] = []
    ended: list[float] = []

    def listen(client: socket.socket) -> None:
        said.append(until_closed(client))
        ended.append(time.monotonic())
        client.close()

    listening = [threading.Thread(target=listen, args=(client,)) for client in clients]
    for each in listening:
        each.start()
    for each in listening:
        each.join()
    return said, max(ended) - min(ended)


@pytest.mark.parametrize("kind", ["HttpTools", "H11"])
def test_idle_connections_are_closed_spread_over_the_window(kind: str, tmp_path: Path) -> None:
    patient = {"FIRST_BYTE": "60s", "KEEP_ALIVE": "60s", "DRAIN_IDLE": "100ms"}
    with serving(kind, tmp_path, DRAIN_WINDOW="3s", **patient) as server:
        clients = [connect(server) for _ in range(20)]
        for client in clients[:10]:
            client.sendall(get(b"/"))
            until(client, LAST_CHUNK)
        server.stop()
        _, spread = all_end(clients)
        ended(server)
    assert spread > 1


@pytest.mark.parametrize("kind", [*EACH, *OTHERS])
def test_websockets_are_told_that_the_server_restarts_spread_over_the_window(
    kind: str, tmp_path: Path
) -> None:
    with serving(kind, tmp_path, DRAIN_WINDOW="3s") as server:
        clients = [connect(server) for _ in range(20)]
        for client in clients:
            client.sendall(UPGRADE)
            until(client, b"\r\n\r\n")
        server.stop()
        said, spread = all_end(clients)
        ended(server)
    assert all(re.match(rb"\x88.\x03\xf4", each) for each in said)  # a close frame with 1012
    assert spread > 1
