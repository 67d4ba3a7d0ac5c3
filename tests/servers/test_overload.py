"""Overload of servers that others wrote: one connection too many is told so, and pressure lets the
longest idle go.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from reaper.asyncio.overload import BUSY, answer_to, head_of
from scripts.serving import Server, free_port, serving, tree
from tests.helpers.server_process import PATIENCE, wait_until

REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
UPGRADE = (
    b"GET /ws HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
)

APPLICATION = "tests.helpers.asgi:application"
WSGI = "tests.helpers.wsgi:application"
SERVERS = {
    "uvicorn": f"uvicorn {APPLICATION} --http reaper.uvicorn:HttpTools --port PORT",
    "uvicorn under reaper run": f"reaper run -- python -m uvicorn {APPLICATION} --port PORT",
    "gunicorn": f"gunicorn {APPLICATION} -k reaper.gunicorn.ASGIWorker -b 127.0.0.1:PORT",
    "gunicorn with threads": (
        f"gunicorn {WSGI} -k reaper.gunicorn.ThreadWorker --threads 8 -b 127.0.0.1:PORT"
    ),
    "hypercorn": f"reaper run -- python -m hypercorn {APPLICATION} -b 127.0.0.1:PORT",
    "hypercorn on trio": f"reaper run -- python -m hypercorn -k trio {APPLICATION} -b 127.0.0.1:PORT",
    "aiohttp": "tests.helpers.guarded_programs aiohttp 127.0.0.1 PORT 3600",
}
QUIET = {"REAPER_TICK": "100ms", "REAPER_TIMEOUTS_FIRST_BYTE": "1h"}
DESCRIPTORS = 128


def test_a_refused_request_is_answered_503_and_its_connection_closed() -> None:
    assert answer_to(REQUEST) == BUSY
    assert answer_to(UPGRADE[:-2]) == BUSY  # the beginning of a head
    assert b" 503 " in BUSY
    assert b"connection: close" in BUSY


def test_a_refused_websocket_is_opened_and_closed_with_1013() -> None:
    head, _, frame = answer_to(UPGRADE).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 ")
    assert b"sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in head  # RFC 6455, section 1.3
    assert frame == b"\x88\x02\x03\xf5"


def test_a_refused_client_of_http2_learns_that_nothing_was_done() -> None:
    h2 = pytest.importorskip("h2")
    state = pytest.importorskip("h2.connection").H2Connection()
    state.initiate_connection()
    asked = state.data_to_send()
    head = head_of(asked)
    assert head is not None
    assert asked.startswith(head)
    *_, last = state.receive_data(answer_to(head))
    assert type(last) is h2.events.ConnectionTerminated
    assert (last.last_stream_id, last.error_code) == (0, 0)


@contextmanager
def started(folder: Path, name: str, *before: str, **settings: str) -> Iterator[Server]:
    """The server *name*, which every word of *before* precedes, with settings as REAPER_*."""
    port = free_port()
    words = [
        sys.executable if word == "python" else word.replace("PORT", str(port))
        for word in SERVERS[name].split()
    ]
    environment = os.environ | QUIET | {f"REAPER_{key}": value for key, value in settings.items()}
    command = [*before, sys.executable, "-m", *words]
    with serving(command, folder / "log", port=port, environment=environment) as server:
        yield server


def asks(server: Server, request: bytes = REQUEST) -> bytes:
    """What a new client is answered, as far as it comes at once; empty: it is reset."""
    try:
        with socket.create_connection(server.address, timeout=PATIENCE) as client:
            client.sendall(request)
            heard = client.recv(65536)
            while heard.startswith(b"HTTP/1.1 101 ") and (more := client.recv(65536)):
                heard += more
            return heard
    except ConnectionError:
        return b""


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVERS)
def test_one_connection_too_many_is_refused_until_another_has_gone(
    tmp_path: Path, name: str
) -> None:
    with started(tmp_path, name, LIMITS_MAX_CONNECTIONS="2") as server, ExitStack() as held:
        clients: list[socket.socket] = []

        def holds() -> bool:
            """Another client is let in. hypercorn keeps one that has gone for 5 s more."""
            client = held.enter_context(socket.create_connection(server.address, PATIENCE))
            client.sendall(REQUEST)
            if client.recv(65536).startswith(b"HTTP/1.1 200 "):
                clients.append(client)
            else:
                client.close()
            return len(clients) == 2

        wait_until(holds, "room for two")
        refused = asks(server)
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert b"connection: close" in refused
        assert asks(server, UPGRADE).endswith(b"\x88\x02\x03\xf5")
        clients[0].close()
        wait_until(lambda: asks(server).startswith(b"HTTP/1.1 200 "), "room")


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVERS)
def test_when_descriptors_run_short_the_longest_idle_go_and_newcomers_are_answered(
    tmp_path: Path, name: str
) -> None:
    limited = "sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "sh"
    with started(tmp_path, name, *limited, PRESSURE="true") as server, ExitStack() as held:
        processes = tree(server.pid)
        for _ in range(2 * DESCRIPTORS):
            held.enter_context(socket.create_connection(server.address, PATIENCE))
        for _ in range(5):
            wait_until(lambda: asks(server).startswith(b"HTTP/1.1 200 "), "an answer")
        assert tree(server.pid) == processes, server.said()[-2000:]


@pytest.mark.slow
def test_silent_clients_do_not_hold_the_threads_of_gunicorn(tmp_path: Path) -> None:
    """Stock, each of them would hold one of the eight threads for 5 s, so the last answer came after
    more than a minute.
    """
    with started(tmp_path, "gunicorn with threads") as server, ExitStack() as held:
        for _ in range(16 * 8):
            held.enter_context(socket.create_connection(server.address, PATIENCE))
        assert asks(server).startswith(b"HTTP/1.1 200 ")
