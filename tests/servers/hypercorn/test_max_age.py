"""A connection of hypercorn that is too old: its client is told, and loses nothing."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from loadgen.playing.client import Gone
from scripts.lifespan import lifespan
from tests.helpers.http2_clients import Http2
from tests.helpers.hypercorn_here import FLAVOURS, hypercorn_here
from tests.helpers.lagging import Lagged, in_time

pytestmark = pytest.mark.slow
DRAIN_IDLE = 0.5
OLD_AT_ONCE = {
    "TIMEOUTS_MAX_AGE": "100ms",
    "LIMITS_MAX_AGE_JITTER": "0",
    "TIMEOUTS_DRAIN_IDLE": f"{DRAIN_IDLE}s",
    "TICK": "100ms",
}
"""Every other limit is much longer than a test takes."""
GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"


async def application(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await lifespan(receive, send)
        return
    headers = [(b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


@contextmanager
def client_of(kind: str, log: Path) -> Iterator[Callable[[], socket.socket]]:
    """What connects to hypercorn of the flavour *kind*, which logs no traceback."""
    with hypercorn_here(kind, log, application, OLD_AT_ONCE, keep_alive=600) as here:
        yield lambda: socket.create_connection(here.address, timeout=20)
    assert "Traceback" not in here.said()


Act = Callable[[socket.socket, float], None]


def tried(connect: Callable[[], socket.socket], act: Act) -> None:
    """Have a new client *act*, which is told since when it is silent."""

    def once() -> None:
        came = time.monotonic()
        with connect() as client:
            act(client, came)

    in_time(once)


def hears_of_the_last(client: socket.socket, spoke: float) -> None:
    """Ask until an answer says that it is the last."""
    heard = b""
    while b"connection: close" not in heard.lower():
        before, spoke, heard = spoke, time.monotonic(), b""
        with suppress(ConnectionError):
            client.sendall(GET)
        lag = time.monotonic() - before
        while not heard.endswith(b"\r\n\r\nok"):
            data = b""
            with suppress(ConnectionError):
                data = client.recv(4096)
            if not data and lag >= DRAIN_IDLE:
                raise Lagged
            assert data, "closed without a word"
            heard += data
    assert client.recv(4096) == b""


@pytest.mark.parametrize("kind", FLAVOURS)
def test_whoever_asks_when_too_old_is_told_that_the_answer_is_the_last(
    kind: str, tmp_path: Path
) -> None:
    with client_of(kind, tmp_path / "log") as connect:
        tried(connect, hears_of_the_last)


@pytest.mark.parametrize("kind", FLAVOURS)
def test_whoever_is_silent_when_too_old_is_closed(kind: str, tmp_path: Path) -> None:
    with client_of(kind, tmp_path / "log") as connect, connect() as client:
        client.sendall(GET)
        while client.recv(4096):
            pass


def hears_goaway(sock: socket.socket, came: float) -> None:
    """Speak HTTP/2 until GOAWAY comes, and the end behind it."""
    spoke = 0.0
    try:
        with closing(Http2(sock)) as client:
            if not client.told:
                client.asks("/")
            spoke = time.monotonic()
            client.is_told()
            client.rests()
    except Gone:
        if (spoke or time.monotonic()) - came >= DRAIN_IDLE:
            raise Lagged from None
        raise


@pytest.mark.parametrize("kind", FLAVOURS)
def test_over_http2_a_client_that_is_too_old_is_told_goaway(kind: str, tmp_path: Path) -> None:
    with client_of(kind, tmp_path / "log") as connect:
        tried(connect, hears_goaway)
