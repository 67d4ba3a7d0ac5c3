"""uvicorn, guarded: whose turn it is while several things are under way, and that every
one of them ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
import uvicorn
import websockets.asyncio.client

import reaper.uvicorn
from reaper.config import ReaperConfig
from reaper.servers.uvicorn.shared import shared_by
from scripts.serving import Server
from tests.helpers.asgi import application
from tests.helpers.program_trials import connect
from tests.helpers.program_trials import rest as until_closed
from tests.helpers.server_process import wait_until
from tests.helpers.streams import TlsClient
from tests.servers.uvicorn.test_limits import KINDS, PATIENCE, answered, get, serving
from tests.servers.uvicorn.test_quiet import until as eventually

pytestmark = pytest.mark.slow

OverTls = Callable[..., AbstractContextManager[Server]]
"""Starts a server that speaks TLS, with settings by the names of their variables."""

TLS_KINDS = [
    ("HttpTools", "reaper.uvicorn:loop"),
    ("H11", "reaper.uvicorn:loop"),
    ("HttpTools", "tests.helpers.asgi:tls_loop"),
]


@pytest.fixture(params=TLS_KINDS, ids=["httptools-uvloop", "h11-uvloop", "httptools-asyncio"])
def over_tls(
    request: pytest.FixtureRequest, tmp_path: Path, certificate: tuple[str, str]
) -> OverTls:
    flags = ["--ssl-certfile", certificate[0], "--ssl-keyfile", certificate[1]]
    return lambda **settings: serving(tmp_path, *request.param, *flags, **settings)


@pytest.mark.parametrize(("protocol", "loop"), KINDS)
def test_a_request_that_waits_behind_a_response_owes_nothing_until_it_is_its_turn(
    tmp_path: Path, protocol: str, loop: str
) -> None:
    with serving(tmp_path, protocol, loop) as server, connect(server) as client:
        stalls = b"POST /echo HTTP/1.1\r\nhost: h\r\ncontent-length: 10\r\n\r\nabc"
        client.sendall(get(b"/stream?30") + stalls)
        said = until_closed(client)
    first, _, second = said.partition(b"HTTP/1.1 408")
    assert first.count(b"x") == 30_000
    assert second


@contextlib.asynccontextmanager
async def pushed_to(
    tmp_path: Path, ws: str, unix: bool
) -> AsyncIterator[tuple[websockets.asyncio.client.ClientConnection, dict[str, int]]]:
    """A client that is sent 100 messages a second, and the reasons of the server's
    closes.
    """
    where: dict[str, Any] = {"uds": str(tmp_path / "socket")} if unix else {"port": 0}
    settings = ReaperConfig.load(
        environ={},
        overrides={"timeouts.tunnel": "500ms", "timeouts.write": "500ms", "reaper.tick": "100ms"},
    )
    kind: Any = reaper.uvicorn.HttpTools.configured(settings)
    config = uvicorn.Config(
        application, **where, http=kind, ws=ws, ws_ping_interval=600, lifespan="off"
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    await eventually(lambda: server.started)
    client = websockets.asyncio.client
    if unix:
        connecting = client.unix_connect(
            where["uds"], uri="ws://localhost/push", ping_interval=None
        )
    else:
        port = server.servers[0].sockets[0].getsockname()[1]
        connecting = client.connect(f"ws://127.0.0.1:{port}/push", ping_interval=None)
    async with asyncio.timeout(PATIENCE), connecting as listening:
        yield listening, shared_by(config).driver.books.reasons
        listening.transport.abort()
    server.should_exit = True
    await serving


@pytest.mark.anyio
@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
@pytest.mark.parametrize("ws", ["websockets-sansio", "wsproto"])
async def test_a_websocket_client_that_only_listens_lives(
    tmp_path: Path, ws: str, unix: bool
) -> None:
    async with pushed_to(tmp_path, ws, unix) as (listening, reasons):
        for _ in range(200):
            await listening.recv()
        assert reasons == {}


@pytest.mark.anyio
@pytest.mark.parametrize("ws", ["websockets-sansio", "wsproto"])
async def test_a_websocket_client_that_takes_nothing_is_closed(tmp_path: Path, ws: str) -> None:
    # Over a Unix socket: by TCP the kernel takes the first megabytes for the client.
    async with pushed_to(tmp_path, ws, unix=True) as (listening, reasons):
        await listening.recv()
        listening.transport.pause_reading()
        await eventually(lambda: reasons)


def test_a_server_that_has_ended_has_nothing_to_report(tmp_path: Path) -> None:
    async def serves_for_a_moment() -> None:
        async with pushed_to(tmp_path, "wsproto", unix=True) as (listening, _):
            await listening.recv()

    asyncio.run(serves_for_a_moment())
    send = AsyncMock()
    asked: Any = reaper.uvicorn.status({"type": "http", "method": "GET"}, None, send)
    asyncio.run(asked)
    assert send.await_args is not None
    assert json.loads(send.await_args.args[0]["body"])["workers"] == []


def test_a_handshake_that_waits_in_the_kernel_through_a_pause_is_answered(
    over_tls: OverTls, certificate: tuple[str, str]
) -> None:
    trust = ssl.create_default_context(cafile=certificate[0])
    with over_tls(REAPER_TIMEOUTS_HANDSHAKE="2s") as server:  # which twenty have at once
        clients = [connect(server) for _ in range(10)]
        time.sleep(0.3)  # these are accepted; the others wait in the backlog
        os.kill(server.pid, signal.SIGSTOP)
        clients += [connect(server) for _ in range(10)]
        sessions = [TlsClient(certificate[0]) for _ in clients]
        for client, session in zip(clients, sessions, strict=True):
            session.shake_hands()
            client.sendall(session.says())
        time.sleep(2.5)
        os.kill(server.pid, signal.SIGCONT)

        def served(client: socket.socket, session: TlsClient) -> bool:
            with client:
                finish(client, session)
                return b"200 OK" in asks(client, session, get())

        with ThreadPoolExecutor(
            len(clients)
        ) as pool:  # each answers at once: the time for a handshake runs again
            assert all(pool.map(served, clients, sessions))
        with trust.wrap_socket(connect(server), server_hostname="127.0.0.1") as client:
            answered(client)


def finish(client: socket.socket, session: TlsClient) -> None:
    while not session.shake_hands():
        client.sendall(session.says())
        data = client.recv(65536)
        assert data, "closed in the handshake"
        session.hear(data)
    client.sendall(session.says())


def asks(client: socket.socket, session: TlsClient, request: bytes) -> bytes:
    """The first that *session* decrypts then."""
    session.tls.write(request)
    client.sendall(session.says())
    while True:
        with contextlib.suppress(ssl.SSLWantReadError):
            return session.tls.read(65536)
        data = client.recv(65536)
        assert data, "closed before it answered"
        session.hear(data)


def test_after_its_408_a_client_that_says_no_goodbye_is_gone_soon(
    over_tls: OverTls, certificate: tuple[str, str]
) -> None:
    with over_tls() as server, connect(server) as raw:
        raw.settimeout(15)  # asyncio would wait for the goodbye for 30 s
        session = TlsClient(certificate[0])
        finish(raw, session)
        assert b"408" in asks(raw, session, get()[:10])
        until_closed(raw)


def test_a_stop_during_a_handshake_is_told_to_the_connection_that_comes_of_it(
    over_tls: OverTls, certificate: tuple[str, str]
) -> None:
    with over_tls(REAPER_TIMEOUTS_HANDSHAKE="30s", REAPER_TIMEOUTS_DRAIN="20s") as server:
        with connect(server) as first, connect(server) as raw:
            # The stop waits for half a request, and not for half a handshake.
            asking = TlsClient(certificate[0])
            finish(first, asking)
            asking.tls.write(get()[:10])
            first.sendall(asking.says())
            session = TlsClient(certificate[0])
            session.shake_hands()
            raw.sendall(session.says())
            session.hear(raw.recv(65536))  # the server has begun
            os.kill(server.pid, signal.SIGTERM)
            wait_until(lambda: "Shutting down" in server.log.read_text())
            finish(raw, session)
            assert b"connection: close" in asks(raw, session, get()).lower()
            assert b"connection: close" in asks(first, asking, get()[10:]).lower()
        wait_until(lambda: server.process.poll() is not None)


@pytest.mark.parametrize(("protocol", "loop"), KINDS)
def test_a_delayed_stop_serves_newcomers_says_that_it_is_the_last_and_is_not_ready(
    tmp_path: Path, protocol: str, loop: str
) -> None:
    with serving(tmp_path, protocol, loop, REAPER_TIMEOUTS_DRAIN_DELAY="3s") as server:
        with connect(server) as client:
            assert b"200 OK" in answered(client, b"/ready", b"ready\n")
            os.kill(server.pid, signal.SIGTERM)
            wait_until(lambda: "Shutting down in 3 s" in server.log.read_text())
        for path, status, end in ((b"/", b"200 OK", b"hello"), (b"/ready", b"503", b"stopping\n")):
            with connect(server) as newcomer:
                said = answered(newcomer, path, end)
                assert status in said
                assert b"connection: close" in said
                assert newcomer.recv(1) == b""
        wait_until(lambda: server.process.poll() is not None)


@pytest.mark.parametrize("margin", ["2s", "0s"])
@pytest.mark.parametrize(("protocol", "loop"), KINDS)
def test_a_response_names_less_than_the_keep_alive_that_is_enforced(
    tmp_path: Path, protocol: str, loop: str, margin: str
) -> None:
    given = {"REAPER_TIMEOUTS_KEEP_ALIVE": "9s", "REAPER_TIMEOUTS_KEEP_ALIVE_MARGIN": margin}
    with serving(tmp_path, protocol, loop, **given) as server, connect(server) as client:
        for _ in range(2):
            assert (b"keep-alive: timeout=7\r\n" in answered(client)) == (margin == "2s")


def test_a_handshake_is_cut_when_its_time_is_over_and_never_early(over_tls: OverTls) -> None:
    start = time.monotonic()
    with over_tls(REAPER_TIMEOUTS_HANDSHAKE="1s") as server, connect(server) as client:
        until_closed(client)
        assert time.monotonic() - start >= 1


def test_a_handshake_holds_a_stop_no_longer_than_the_drain(over_tls: OverTls) -> None:
    limits = {"REAPER_TIMEOUTS_HANDSHAKE": "300s", "REAPER_TIMEOUTS_DRAIN": "1s"}
    with over_tls(**limits) as server, connect(server):
        time.sleep(0.3)
        os.kill(server.pid, signal.SIGTERM)
        wait_until(lambda: server.process.poll() is not None)
