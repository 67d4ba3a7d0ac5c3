"""A connection of gunicorn's asgi worker that is to end says so in its last answer."""

from __future__ import annotations

import socket
from typing import Any

import pytest

pytest.importorskip("gunicorn")

import reaper.gunicorn
from reaper.servers.gunicorn.asgi import Asgi
from scripts.lifespan import lifespan
from scripts.serving import PATIENCE
from tests.helpers.served import bare
from tests.helpers.servers_here import worker

GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"


@pytest.mark.parametrize("when", ["the answer has begun", "the answer is complete"])
def test_the_answer_after_the_one_that_has_begun_is_the_last(when: str) -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
            return
        protocol = receive.__self__._receive.__self__.protocol  # below our exchange
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if when == "the answer has begun":
            bare(Asgi, protocol.transport).be_last()
        await send({"type": "http.response.body", "body": b"ok"})
        if when == "the answer is complete":  # before the task of the connection goes on
            bare(Asgi, protocol.transport).be_last()

    with (
        worker(reaper.gunicorn.ASGIWorker, application) as running,
        socket.create_connection(running.address, PATIENCE) as client,
    ):
        answers = []
        for _ in range(2):
            client.sendall(GET)
            answers.append(client.recv(4096))
        rest = client.recv(4096)
    assert [b"connection: close" in answer.lower() for answer in answers] == [False, True]
    assert rest == b""
