"""gunicorn's worker with threads, guarded: what is left of a connection once it is
over.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from gunicorn.http2.connection import HTTP2ServerConnection
from gunicorn.workers import gthread
from gunicorn.workers.gthread import TConn

import reaper.gunicorn
from reaper.core.lease import Lease
from reaper.driver.ends import Books
from reaper.servers.gunicorn.http2_threads import Judge
from reaper.servers.gunicorn.threads import Threaded, ThreadWire
from tests.helpers import wsgi
from tests.helpers.http2_clients import talking
from tests.helpers.program_trials import connect, heard, rest
from tests.helpers.server_process import wait_until
from tests.helpers.servers_here import Worker, worker
from tests.servers.gunicorn.test_http2 import CLEAR
from tests.servers.uvicorn.test_limits import get

pytestmark = pytest.mark.slow

KINDS = (TConn, ThreadWire, Threaded, Lease, Judge, HTTP2ServerConnection)
CONNECTIONS = 20


PROTOCOLS = {"HTTP/1": {}, "HTTP/2": CLEAR}


@pytest.fixture(params=list(PROTOCOLS))
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(protocol: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    """A worker that speaks *protocol*, and closes who rests for 1 s."""
    monkeypatch.setenv("REAPER_TICK", "250ms")
    monkeypatch.setenv("REAPER_TIMEOUTS_KEEP_ALIVE", "1s")
    given = {"keepalive": "3600", **PROTOCOLS[protocol]}
    with worker(reaper.gunicorn.ThreadWorker, wsgi.application, **given) as made:
        yield made


def there_are() -> Counter[str]:
    """How many objects of `KINDS` there are, by kind."""
    return Counter(type(thing).__name__ for thing in gc.get_objects() if isinstance(thing, KINDS))


def ask(server: Worker, protocol: str, closes: str) -> None:
    """Ask once on a connection of *protocol*, until it is over: *closes* says who ends
    it.
    """
    if protocol == "HTTP/2":
        with talking(server) as speaks:
            speaks.is_answered("/")
            if closes != "the client":
                speaks.rests()
        return
    with connect(server) as client:
        client.sendall(get(b"/", *[b"connection: close"] * (closes == "the server")))
        heard(client)
        if closes != "the client":
            rest(client)


@pytest.mark.parametrize("closes", ["the client", "the server"])
def test_nothing_is_left_of_connections_that_are_over(
    server: Worker, protocol: str, closes: str
) -> None:
    gc.collect()
    before = there_are()
    gc.disable()  # what is left for the collector is left as well
    try:
        for _ in range(1 if (protocol, closes) == ("HTTP/2", "the server") else CONNECTIONS):
            ask(server, protocol, closes)
        wait_until(lambda: not there_are() - before)
    finally:
        gc.enable()


@pytest.mark.parametrize("protocol", ["HTTP/1"], indirect=True)
def test_the_journal_says_who_ended_a_connection(
    server: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[bool] = []

    def left(books: Books, lease: Any, *, by_peer: bool) -> None:
        ends.append(by_peer)

    monkeypatch.setattr(Books, "left", left)
    ask(server, "HTTP/1", "the client")
    wait_until(lambda: ends == [True])
    ask(server, "HTTP/1", "the server")
    wait_until(lambda: ends == [True, False])


def test_a_stop_waits_for_a_silent_client_as_gunicorn_for_a_resting_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not for `first_byte`, which is an hour here, nor for `--keep-alive`."""
    monkeypatch.setenv("REAPER_TIMEOUTS_FIRST_BYTE", "1h")
    monkeypatch.setattr(gthread, "STOP_KEEPALIVE_LINGER", 0.2)
    given = {"keepalive": "3600", "graceful_timeout": "3600"}
    with (
        worker(reaper.gunicorn.ThreadWorker, wsgi.application, **given) as server,
        connect(server) as client,
        connect(server) as asks,
    ):
        asks.sendall(get(b"/"))
        heard(asks)  # so the silent one was accepted
        server.stop()
        assert rest(client) == b""
