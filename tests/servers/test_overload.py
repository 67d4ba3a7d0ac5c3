"""Overload of servers that others wrote: one connection too many is told so, and
pressure lets the longest idle go.
"""

from __future__ import annotations

import os
import socket
import ssl
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from loadgen.drive.wire import Tls
from loadgen.plan.acts import Ask, Begin
from loadgen.playing.client import Gone
from reaper.asyncio.overload import BUSY, TRY_AGAIN_LATER, answer_to, head_of
from scripts.acting import Actor
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
    "gunicorn with uvicorn": (
        f"gunicorn {APPLICATION} -k reaper.gunicorn.UvicornWorker -b 127.0.0.1:PORT"
    ),
    "gunicorn with threads": (
        f"gunicorn {WSGI} -k reaper.gunicorn.ThreadWorker --threads 8 -b 127.0.0.1:PORT"
    ),
    "hypercorn": f"reaper run -- python -m hypercorn {APPLICATION} -b 127.0.0.1:PORT",
    "hypercorn on trio": f"reaper run -- python -m hypercorn -k trio {APPLICATION} -b 127.0.0.1:PORT",
    "aiohttp": "tests.helpers.guarded_programs aiohttp 127.0.0.1 PORT 3600",
}
UVICORN_HTTP2 = "uvicorn over HTTP/2"
OF_HTTP2 = {UVICORN_HTTP2: f"uvicorn {APPLICATION} --http reaper.uvicorn:Http2 --port PORT"}
PROGRAM = "reaper run -- python -m scripts.guests.apps.programs"
OPENS = {
    "websockets": (f"{PROGRAM} websockets PORT", UPGRADE, b"HTTP/1.1 101 ", TRY_AGAIN_LATER),
    "anyio": (f"{PROGRAM} anyio PORT", b"hello\n", b"hello\n", b""),
}
"""Those that answer no plain request: what a client says and hears, and what one too
many hears.
"""
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
    pytest.importorskip("hpack")
    near, far = socket.socketpair()
    with closing(Actor(near, "http2")) as client, far:
        client.do(Begin())
        asked = far.recv(1000)
        head = head_of(asked)
        assert head is not None
        assert asked.startswith(head)
        far.sendall(answer_to(head))
        client.until(lambda: client.client.goaway is not None)
        assert (client.client.goaway, client.client.code, client.client.seen.broke) == (0, 0, "")


@contextmanager
def started(
    folder: Path, name: str, *before: str, flags: Sequence[str] = (), **settings: str
) -> Iterator[Server]:
    """The server *name*, which every word of *before* precedes and *flags* follow, with
    settings as REAPER_*.
    """
    port = free_port()
    words = [
        sys.executable if word == "python" else word.replace("PORT", str(port))
        for word in (SERVERS | OF_HTTP2 | {each: of[0] for each, of in OPENS.items()})[name].split()
    ]
    environment = os.environ | QUIET | {f"REAPER_{key}": value for key, value in settings.items()}
    command = [*before, sys.executable, "-m", *words, *flags]
    with serving(command, folder / "log", port=port, environment=environment) as server:
        yield server


@contextmanager
def connected(server: Server, tls: Sequence[str] | None = None) -> Iterator[socket.socket]:
    """A new client; with TLS if it is given the protocols to offer."""
    with socket.create_connection(server.address, timeout=PATIENCE) as client:
        if tls is None:
            yield client
            return
        context = ssl._create_unverified_context()
        context.set_alpn_protocols(list(tls))
        with context.wrap_socket(client) as secret:
            yield secret


def asks(server: Server, request: bytes = REQUEST, *, tls: Sequence[str] | None = None) -> bytes:
    """What a new client is answered, as far as it comes at once; empty: it is reset."""
    try:
        with connected(server, tls) as client:
            client.sendall(request)
            heard = client.recv(65536)
            while heard.startswith(b"HTTP/1.1 101 ") and (more := client.recv(65536)):
                heard += more
            return heard
    except ConnectionError:
        return b""


@pytest.mark.slow
@pytest.mark.parametrize("name", OPENS)
def test_one_too_many_that_asks_for_no_page_is_refused_until_another_has_gone(
    tmp_path: Path, name: str
) -> None:
    _, says, hears, refused = OPENS[name]

    def lets_in(stack: ExitStack) -> bool:
        try:  # a refusal may meet a client amid its connect()
            client = stack.enter_context(connected(server))
            client.sendall(says)
            said = client.recv(65536)
        except ConnectionError:
            return False
        return said.startswith(hears) and not said.endswith(TRY_AGAIN_LATER)

    with started(tmp_path, name, LIMITS_MAX_CONNECTIONS="1") as server:
        for _ in range(2):
            with ExitStack() as held:
                wait_until(lambda: lets_in(held))
                told = asks(server, says)
                assert told.endswith(refused)
                assert bool(told) is bool(refused)


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVERS)
def test_one_connection_too_many_is_refused_until_another_has_gone(
    tmp_path: Path, name: str
) -> None:
    with started(tmp_path, name, LIMITS_MAX_CONNECTIONS="2") as server, ExitStack() as held:
        clients: list[socket.socket] = []

        def holds() -> bool:
            """Another client is let in. hypercorn keeps one that has gone for 5 s
            more.
            """
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
@pytest.mark.parametrize(
    ("name", "flag"),
    [("gunicorn with threads", ""), ("gunicorn with uvicorn", ""), ("gunicorn", ""),
     ("uvicorn", "ssl-"), ("hypercorn", ""), ("hypercorn on trio", "")],
)  # fmt: skip
def test_over_tls_one_connection_too_many_is_told_so(
    tmp_path: Path, name: str, flag: str, certificate: tuple[str, str]
) -> None:
    flags = [f"--{flag}certfile", certificate[0], f"--{flag}keyfile", certificate[1]]
    one = {"LIMITS_MAX_CONNECTIONS": "1"}
    with started(tmp_path, name, flags=flags, **one) as server, ExitStack() as held:

        def holds() -> bool:
            """Another client is let in, once the one that asked whether the server
            listens is gone.
            """
            client = held.enter_context(connected(server, ["http/1.1"]))
            client.sendall(REQUEST)
            return client.recv(65536).startswith(b"HTTP/1.1 200 ")

        wait_until(holds, "room for one")
        assert asks(server, tls=["http/1.1"]).startswith(b"HTTP/1.1 503 ")
        assert asks(server, UPGRADE, tls=["http/1.1"]).endswith(b"\x88\x02\x03\xf5")


@pytest.mark.slow
@pytest.mark.parametrize("tls", [False, True], ids=["clear", "tls"])
@pytest.mark.parametrize("name", ["hypercorn", "hypercorn on trio", UVICORN_HTTP2])
def test_one_connection_of_http2_too_many_is_told_that_nothing_was_done(
    tmp_path: Path, name: str, tls: bool, certificate: tuple[str, str]
) -> None:
    pytest.importorskip("hpack")

    flag = "--"
    if name == UVICORN_HTTP2:
        flag = "--ssl-"
        # It is not in the lowest uvicorn.
        pytest.importorskip("uvicorn.protocols.http.zttp_h2_impl", exc_type=ImportError)
    flags = [f"{flag}certfile", certificate[0], f"{flag}keyfile", certificate[1]] if tls else []
    one = {"LIMITS_MAX_CONNECTIONS": "1"}
    speaks = Tls("localhost", insecure=True) if tls else None
    with started(tmp_path, name, flags=flags, **one) as server, ExitStack() as held:

        def asks() -> Any:
            """A client of HTTP/2 that has asked, and was answered, or told that it will
            not be.
            """
            sock = socket.create_connection(server.address, timeout=PATIENCE)
            client = held.enter_context(closing(Actor(sock, "http2", speaks)))
            said = client.client
            with suppress(Gone):
                client.do(Begin(), Ask())
                client.until(lambda: said.stream(0).status or said.goaway is not None)
            return said

        wait_until(lambda: asks().stream(0).status == 200, "room for one")
        refused = asks()
        assert (refused.goaway, refused.code, refused.stream(0).status) == (0, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVERS)
def test_when_descriptors_run_short_the_longest_idle_go_and_newcomers_are_answered(
    tmp_path: Path, name: str
) -> None:
    limited = "sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "sh"
    with started(tmp_path, name, *limited, PRESSURE="true") as server, ExitStack() as held:
        # gunicorn listens before it has a worker.
        wait_until(lambda: asks(server).startswith(b"HTTP/1.1 200 "), "an answer")
        processes, came = tree(server.pid), 0
        for _ in range(2 * DESCRIPTORS):
            # Who is ended before his connect() has returned was idle as long as any.
            with suppress(ConnectionResetError):
                held.enter_context(socket.create_connection(server.address, PATIENCE))
                came += 1
        assert came > DESCRIPTORS
        for _ in range(5):
            wait_until(lambda: asks(server).startswith(b"HTTP/1.1 200 "), "an answer")
        assert tree(server.pid) == processes, server.said()[-2000:]


@pytest.mark.slow
def test_silent_clients_do_not_hold_the_threads_of_gunicorn(tmp_path: Path) -> None:
    """Stock, each of them would hold one of the eight threads for 5 s, so the last
    answer came after more than a minute.
    """
    with started(tmp_path, "gunicorn with threads") as server, ExitStack() as held:
        for _ in range(16 * 8):
            held.enter_context(socket.create_connection(server.address, PATIENCE))
        assert asks(server).startswith(b"HTTP/1.1 200 ")
