"""A connection of hypercorn that is too old: its client is told, and loses nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from scripts.lifespan import lifespan
from tests.helpers.http2_clients import Http2
from tests.helpers.hypercorn_here import FLAVOURS, hypercorn_here

pytestmark = pytest.mark.slow
OLD_AT_ONCE = {
    "TIMEOUTS_MAX_AGE": "100ms",
    "LIMITS_MAX_AGE_JITTER": "0",
    "TIMEOUTS_DRAIN_IDLE": "500ms",
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
def client_of(kind: str, log: Path) -> Iterator[socket.socket]:
    """A client of hypercorn of the flavour *kind*, which logs no traceback."""
    with (
        hypercorn_here(kind, log, application, OLD_AT_ONCE, keep_alive=600) as here,
        socket.create_connection(here.address, timeout=20) as client,
    ):
        yield client
    assert "Traceback" not in here.said()


@pytest.mark.parametrize("kind", FLAVOURS)
def test_whoever_asks_when_too_old_is_told_that_the_answer_is_the_last(
    kind: str, tmp_path: Path
) -> None:
    with client_of(kind, tmp_path / "log") as client:
        heard = b""
        while b"connection: close" not in heard.lower():
            client.sendall(GET)
            heard = b""
            while not heard.endswith(b"\r\n\r\nok"):
                data = client.recv(4096)
                assert data, "closed without a word"
                heard += data
        assert client.recv(4096) == b""


@pytest.mark.parametrize("kind", FLAVOURS)
def test_whoever_is_silent_when_too_old_is_closed(kind: str, tmp_path: Path) -> None:
    with client_of(kind, tmp_path / "log") as client:
        client.sendall(GET)
        while client.recv(4096):
            pass


@pytest.mark.parametrize("kind", FLAVOURS)
def test_over_http2_a_client_that_is_too_old_is_told_goaway(kind: str, tmp_path: Path) -> None:
    with client_of(kind, tmp_path / "log") as sock, closing(Http2(sock)) as client:
        if not client.told:
            client.asks("/")
        client.is_told()
        client.rests()
