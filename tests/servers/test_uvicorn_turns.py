"""uvicorn, guarded: whose turn it is while several things are under way, and that every one of them
ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import AsyncMock

import pytest
import uvicorn
import websockets.asyncio.client

import reaper.uvicorn
from reaper.config import ReaperConfig
from reaper.servers.uvicorn.shared import shared_by
from tests.helpers.asgi import application
from tests.helpers.server_process import wait_until
from tests.helpers.streams import TlsClient
from tests.servers.test_uvicorn import (
    KINDS,
    PATIENCE,
    answered,
    connect,
    get,
    serving,
    until_closed,
)
from tests.servers.test_uvicorn_quiet import until as eventually

pytestmark = pytest.mark.slow

TLS_KINDS = [
    ("HttpTools", "reaper.uvicorn:loop"),
    ("H11", "reaper.uvicorn:loop"),
    ("HttpTools", "tests.helpers.asgi:tls_loop"),
]


@pytest.fixture(params=TLS_KINDS, ids=["httptools-uvloop", "h11-uvloop", "httptools-asyncio"])
def over_tls(request, tmp_path, certificate):
    flags = ["--ssl-certfile", certificate[0], "--ssl-keyfile", certificate[1]]
    return lambda **settings: serving(tmp_path, *request.param, *flags, **settings)


@pytest.mark.parametrize(("protocol", "loop"), KINDS)
def test_a_request_that_waits_behind_a_response_owes_nothing_until_it_is_its_turn(
    tmp_path, protocol, loop
):
    with serving(tmp_path, protocol, loop) as server, connect(server) as client:
        stalls = b"POST /echo HTTP/1.1\r\nhost: h\r\ncontent-length: 10\r\n\r\nabc"
        client.sendall(get(b"/stream?30") + stalls)
        said = until_closed(client)
    first, _, second = said.partition(b"HTTP/1.1 408")
    assert first.count(b"x") == 30_000
    assert second


@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
@pytest.mark.parametrize("ws", ["websockets-sansio", "wsproto"])
def test_a_websocket_client_that_only_listens_lives_and_one_that_takes_nothing_does_not(
    tmp_path, ws, unix
):
    where = {"uds": str(tmp_path / "socket")} if unix else {"port": 0}
    settings = ReaperConfig.load(
        environ={},
        overrides={"timeouts.tunnel": "500ms", "timeouts.write": "500ms", "reaper.tick": "100ms"},
    )

    async def main():
        kind = reaper.uvicorn.HttpTools.configured(settings)
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
            reasons = shared_by(config).driver.books.reasons
            for _ in range(200):
                await listening.recv()
            assert reasons == {}
            listening.transport.pause_reading()
            if unix:  # by TCP the kernel takes the first megabytes for it
                await eventually(lambda: reasons)
            listening.transport.abort()
        server.should_exit = True
        await serving

    asyncio.run(main())
    send = AsyncMock()
    asyncio.run(reaper.uvicorn.status({"type": "http", "method": "GET"}, None, send))
    assert (
        json.loads(send.await_args.args[0]["body"])["workers"] == []
    )  # a server that has ended has nothing to report


def test_a_handshake_that_waits_in_the_kernel_while_the_process_is_paused_is_answered(
    over_tls, certificate
):
    trust = ssl.create_default_context(cafile=certificate[0])
    with over_tls() as server:
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

        def served(client, session):
            with client:
                finish(client, session)
                return b"200 OK" in asks(client, session, get())

        with ThreadPoolExecutor(
            len(clients)
        ) as pool:  # each answers at once: the time for a handshake runs again
            assert all(pool.map(served, clients, sessions))
        with trust.wrap_socket(connect(server), server_hostname="127.0.0.1") as client:
            answered(client)


def finish(client, session):
    while not session.shake_hands():
        client.sendall(session.says())
        data = client.recv(65536)
        assert data, "closed in the handshake"
        session.hear(data)
    client.sendall(session.says())


def asks(client, session, request):
    """The first that *session* decrypts then."""
    session.tls.write(request)
    client.sendall(session.says())
    while True:
        with contextlib.suppress(ssl.SSLWantReadError):
            return session.tls.read(65536)
        data = client.recv(65536)
        assert data, "closed before it answered"
        session.hear(data)


def test_after_its_408_a_client_that_says_no_goodbye_is_gone_soon(over_tls, certificate):
    with over_tls() as server, connect(server) as raw:
        raw.settimeout(15)  # asyncio would wait for the goodbye for 30 s
        session = TlsClient(certificate[0])
        finish(raw, session)
        assert b"408" in asks(raw, session, get()[:10])
        until_closed(raw)


def test_a_stop_during_a_handshake_is_told_to_the_connection_that_comes_of_it(
    over_tls, certificate
):
    with over_tls(REAPER_TIMEOUTS_HANDSHAKE="30s", REAPER_TIMEOUTS_DRAIN="20s") as server:
        with connect(server) as raw:
            session = TlsClient(certificate[0])
            session.shake_hands()
            raw.sendall(session.says())
            session.hear(raw.recv(65536))  # the server has begun
            os.kill(server.pid, signal.SIGTERM)
            wait_until(lambda: "Shutting down" in server.log.read_text())
            finish(raw, session)
            assert b"connection: close" in asks(raw, session, get()).lower()
        wait_until(lambda: server.process.poll() is not None)


@pytest.mark.parametrize(("protocol", "loop"), KINDS)
def test_a_delayed_stop_serves_newcomers_says_that_it_is_the_last_and_is_not_ready(
    tmp_path, protocol, loop
):
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
    tmp_path, protocol, loop, margin
):
    given = {"REAPER_TIMEOUTS_KEEP_ALIVE": "9s", "REAPER_TIMEOUTS_KEEP_ALIVE_MARGIN": margin}
    with serving(tmp_path, protocol, loop, **given) as server, connect(server) as client:
        for _ in range(2):
            assert (b"keep-alive: timeout=7\r\n" in answered(client)) == (margin == "2s")


@pytest.mark.parametrize(("handshake", "drain"), [("1s", "300s"), ("300s", "1s")])
def test_a_handshake_is_cut_never_early_and_holds_a_stop_no_longer_than_the_drain(
    over_tls, handshake, drain
):
    limits = {"REAPER_TIMEOUTS_HANDSHAKE": handshake, "REAPER_TIMEOUTS_DRAIN": drain}
    start = time.monotonic()
    with over_tls(**limits) as server, connect(server) as client:
        if handshake == "1s":
            until_closed(client)
            assert time.monotonic() - start >= 1
        else:
            time.sleep(0.3)
        os.kill(server.pid, signal.SIGTERM)
        wait_until(lambda: server.process.poll() is not None)
