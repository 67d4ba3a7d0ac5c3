"""A client of gunicorn's that waits for `100 Continue` owes no byte of its body before
it is told to send one, however long gunicorn takes for that.
"""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import suppress
from typing import Any

import pytest
from gunicorn.http.message import Request

import reaper.gunicorn
from tests.helpers import wsgi
from tests.helpers.lagging import Lagged, in_time
from tests.helpers.program_trials import connect, heard, rest
from tests.helpers.servers_here import worker

pytestmark = pytest.mark.slow

POST = b"POST %s HTTP/1.1\r\nhost: h\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n"
CONTINUE = b"100 Continue\r\n\r\n"


LATE = 1.5
"""Seconds after which the application that takes its time asks for the body."""


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Takes its time before it reads the body, and says what it read."""
    if scope["type"] == "http":
        await asyncio.sleep(LATE)
        event = await receive()
        body = event.get("body", b"")
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REAPER_TICK", "100ms")
    monkeypatch.setenv("REAPER_TIMEOUTS_BODY", "1s")


def is_answered(client: socket.socket, pause: float, until: float) -> None:
    """*client* is answered, which sends its body *pause* seconds after it was told to,
    and before *until*: afterwards it may be cut.
    """
    heard(client, CONTINUE)
    time.sleep(pause)
    with suppress(ConnectionError):
        client.sendall(b"hello")
    sent = time.monotonic()
    try:
        assert b" 200 " in heard(client)
    except (AssertionError, ConnectionError) as error:
        if sent < until:
            raise
        raise Lagged from error


def test_of_an_application_that_asks_late() -> None:
    with worker(reaper.gunicorn.ASGIWorker, application) as server:

        def serves() -> None:
            with connect(server) as client:
                asked = time.monotonic()  # it is told `LATE` seconds later at the soonest
                client.sendall(POST % b"/")
                is_answered(client, 0.4, asked + LATE + 1)

        in_time(serves)


def test_of_threads_that_are_all_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REAPER_TIMEOUTS_BODY", "2s")  # it is looked at after 2 s, and after 4
    with worker(reaper.gunicorn.ThreadWorker, wsgi.application, threads="1") as server:

        def serves() -> None:
            with connect(server) as first, connect(server) as client:
                asked = time.monotonic()
                first.sendall(b"GET /slow?3 HTTP/1.1\r\nhost: h\r\n\r\n")
                client.sendall(POST % b"/echo")
                is_answered(client, 1.3, asked + 3 + 2)

        in_time(serves)


def test_of_a_thread_that_takes_its_time_over_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head has waited longer than `headers` for the thread, and is read by then."""
    monkeypatch.setenv("REAPER_TIMEOUTS_HEADERS", "300ms")
    parse = Request.parse_headers

    def slowly(self: Any, *arguments: Any, **options: Any) -> Any:
        time.sleep(0.5)
        return parse(self, *arguments, **options)

    with (
        worker(reaper.gunicorn.ThreadWorker, wsgi.application, threads="1") as server,
        connect(server) as first,
        connect(server) as client,
    ):
        first.sendall(b"GET /slow?1 HTTP/1.1\r\nhost: h\r\n\r\n")
        time.sleep(0.2)
        monkeypatch.setattr(Request, "parse_headers", slowly)
        client.sendall(POST % b"/echo")
        heard(client, CONTINUE)
        client.sendall(b"hello")
        assert b" 200 " in heard(client)


@pytest.mark.parametrize("kind", ["ASGIWorker", "ThreadWorker"])
def test_who_is_told_and_sends_nothing_is_cut(kind: str) -> None:
    made, told_after = (application, LATE) if kind == "ASGIWorker" else (wsgi.application, 0)
    with worker(getattr(reaper.gunicorn, kind), made) as server, connect(server) as client:
        asked = time.monotonic()  # when it is told, only the server knows
        client.sendall(POST % b"/echo")
        heard(client, CONTINUE)
        rest(client)
        assert time.monotonic() - asked >= told_after + 1
