"""Answers say for how long their connection is kept: a second less than it is, so that
who heeds it never asks on a connection that is being closed.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gunicorn")

import reaper.gunicorn
from reaper.config import ReaperConfig
from reaper.servers.configured import advertised_of
from scripts.lifespan import lifespan
from scripts.serving import PATIENCE
from tests.helpers.hypercorn_here import FLAVOURS, hypercorn_here
from tests.helpers.servers_here import worker

GET = b"GET / HTTP/1.1\r\nHost: h\r\n%s\r\n"
OWN = [(b"content-length", b"2")]
SERVERS = ["gunicorn, asgi", "gunicorn, threads", *(f"hypercorn, {kind}" for kind in FLAVOURS)]


async def application(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await lifespan(receive, send)
        return
    more = [(b"keep-alive", b"timeout=1")] if scope["path"] == "/own" else []
    await send({"type": "http.response.start", "status": 200, "headers": [*OWN, *more]})
    await send({"type": "http.response.body", "body": b"ok"})


def wsgi(environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]


@contextmanager
def serving(name: str, seconds: int, log: Path) -> Iterator[tuple[str, int]]:
    """The server with a keep-alive of its own of so many *seconds*."""
    if name.startswith("gunicorn"):
        threads = name.endswith("threads")
        kind = reaper.gunicorn.ThreadWorker if threads else reaper.gunicorn.ASGIWorker
        with worker(kind, wsgi if threads else application, keepalive=str(seconds)) as running:
            yield running.address
    else:
        flavour = name.rpartition(" ")[2]
        with hypercorn_here(flavour, log, application, {}, keep_alive=seconds) as here:
            yield here.address


def answer(address: tuple[str, int], *headers: bytes, path: bytes = b"/") -> bytes:
    with socket.create_connection(address, PATIENCE) as client:
        client.sendall(GET.replace(b"/", path, 1) % b"".join(headers))
        heard = b""
        while not heard.endswith(b"ok") and (data := client.recv(4096)):
            heard += data
    return heard.lower()


@pytest.mark.parametrize("name", SERVERS)
def test_an_answer_says_a_second_less_than_its_connection_is_kept(
    name: str, tmp_path: Path
) -> None:
    with serving(name, 6, tmp_path / "log") as address:
        assert answer(address).count(b"\r\nkeep-alive: timeout=5\r\n") == 1
        assert b"\r\nkeep-alive:" not in answer(address, b"Connection: close\r\n")
        if not name.endswith("threads"):  # where gunicorn takes it from no application
            own = answer(address, path=b"/own")
            assert own.count(b"keep-alive:") == own.count(b"keep-alive: timeout=1\r\n") == 1


@pytest.mark.parametrize("name", SERVERS)
def test_a_second_that_is_the_margin_is_not_said(name: str, tmp_path: Path) -> None:
    with serving(name, 1, tmp_path / "log") as address:
        assert b"keep-alive: timeout" not in answer(address)


@pytest.mark.parametrize(
    ("ours", "own", "said"),
    [(75, 5.0, 4), (3, 5.0, 2), (3, None, 2), (3, float("inf"), 2), (0, 5.0, 4), (0, None, 0)],
)
def test_of_two_keep_alives_the_shorter_is_said(ours: int, own: float | None, said: int) -> None:
    config = ReaperConfig.load(environ={}, overrides={"timeouts.keep_alive": f"{ours}s"})
    assert advertised_of(config, own) == said
