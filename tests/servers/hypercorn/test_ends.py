"""When hypercorn's connections are let go."""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest

from scripts.lifespan import lifespan
from scripts.tools import certificate
from tests.helpers.hypercorn_here import FLAVOURS, hypercorn_here

pytestmark = pytest.mark.slow
HEADERS = [(b"content-length", b"2")]


@pytest.mark.parametrize("kind", FLAVOURS)
def test_a_stop_does_not_wait_for_a_request_behind_the_last_answer(
    kind: str, tmp_path: Path
) -> None:
    asked, told = threading.Event(), threading.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
            return
        asked.set()
        while not told.is_set():
            await anyio.sleep(0.01)
        await anyio.sleep(0.3)  # until the server knows
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await send({"type": "http.response.body", "body": b"ok"})

    request = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
    with hypercorn_here(kind, tmp_path / "log", application, {"TIMEOUTS_DRAIN": "10m"}) as here:
        with socket.create_connection(here.address, timeout=20) as client:
            client.sendall(2 * request)
            assert asked.wait(20)
            here.stop()
            told.set()
            heard = b""
            while data := client.recv(1000):
                heard += data
        assert heard.startswith(b"HTTP/1.1 200")
        here.end()
    assert "Traceback" not in here.said()


def test_a_silent_client_over_tls_on_trio_ends_alone(tmp_path: Path) -> None:
    """asyncio has a limit of its own for the handshake."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await send({"type": "http.response.body", "body": b"ok"})

    settings = {"TIMEOUTS_FIRST_BYTE": "1s", "TICK": "100ms"}
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with hypercorn_here(
        "trio", tmp_path / "log", application, settings, certificate=certificate(tmp_path)
    ) as here:
        with socket.create_connection(here.address, timeout=20) as silent:
            assert silent.recv(1) == b""  # in the handshake, which it has not begun
        with (
            socket.create_connection(here.address, timeout=20) as plain,
            context.wrap_socket(plain) as client,
        ):
            client.sendall(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n")
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
