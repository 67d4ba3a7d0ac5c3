"""A worker of gunicorn that is told to stop: when its streams hear of it."""

from __future__ import annotations

import queue
import socket
from typing import Any

import pytest

import reaper
import reaper.gunicorn
from scripts.lifespan import lifespan
from tests.helpers.servers_here import worker

pytestmark = pytest.mark.slow

REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


def polite(steps: list[str]) -> Any:
    """A stream that ends when it is told, which is noted in *steps*."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
            return
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        await reaper.stopping()
        await send({"type": "http.response.body", "body": b"data: bye\n\n", "more_body": False})
        steps.append("the stream was told")

    return application


def test_streams_of_the_asgi_worker_are_told_at_the_signal() -> None:
    beats: queue.Queue[Any] = queue.Queue()
    steps: list[str] = []  # by the worker: when its client reads is the client's affair

    class Noted(reaper.gunicorn.ASGIWorker):
        """Says when it has looked whether it is to stop: once a second."""

        def notify(self) -> None:
            super().notify()
            beats.put(self)

        async def _shutdown(self) -> None:
            steps.append("gunicorn has looked")
            await super()._shutdown()

    heard = b""
    with (
        worker(Noted, polite(steps)) as running,
        socket.create_connection(running.address, timeout=20) as client,
    ):
        client.sendall(REQUEST)
        while b"data: 1" not in heard:
            heard += client.recv(1000)
        while not beats.empty():
            beats.get()
        noted = beats.get()
        noted.loop.call_soon_threadsafe(noted.handle_exit_signal)
        while data := client.recv(1000):
            heard += data
        running.end()
    assert b"data: bye" in heard
    assert heard.endswith(b"0\r\n\r\n")
    assert steps == ["the stream was told", "gunicorn has looked"]
