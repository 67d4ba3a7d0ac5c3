"""gunicorn, aiohttp, websockets and hypercorn, guarded by their own extension points:
real servers, real clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import aiohttp.web
import pytest
import websockets.asyncio.client
import websockets.asyncio.server

import reaper.aiohttp
import reaper.asyncio
import reaper.gunicorn
import reaper.websockets
from reaper.asyncio import AsyncioReaper
from reaper.config import ReaperConfig
from scripts.serving import Server, free_port, serving, tree
from tests.helpers import asgi, wsgi
from tests.helpers.guarded_programs import aiohttp_app
from tests.helpers.program_trials import Addressed, connect
from tests.helpers.program_trials import heard as until
from tests.helpers.server_process import wait_until
from tests.helpers.servers_here import Worker, worker
from tests.servers.uvicorn.test_limits import (
    PATIENCE,
    UPGRADE,
    a_pause_loses_no_request,
    all_end_and_none_early,
    answered,
    get,
)
from tests.servers.uvicorn.test_quiet import until as eventually

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

ATTACKS = ["mute", "slow_headers", "slow_second_headers", "stalled_body", "unread", "silent"]
SETTINGS = {
    f"timeouts.{name}": "500ms"
    for name in ("first_byte", "headers", "body", "keep_alive", "write", "tunnel")
} | {"limits.min_out_rate": "1000000"}


Start = Callable[..., AbstractContextManager[Server]]
"""Starts a server as a process, with timeouts by the names of their variables."""


def config() -> ReaperConfig:
    return ReaperConfig.load(environ={}, overrides={**SETTINGS, "reaper.tick": "100ms"})


GUNICORN = [
    "gunicorn",
    "-b",
    "127.0.0.1:{port}",
    "--no-control-socket",
    "--graceful-timeout",
    "20",
    "-k",
]
COMMANDS = {
    "ASGIWorker": [*GUNICORN, "reaper.gunicorn.ASGIWorker", "tests.helpers.asgi:application"],
    "ThreadWorker": [
        *GUNICORN,
        "reaper.gunicorn.ThreadWorker",
        "--threads",
        "16",
        "tests.helpers.wsgi:application",
    ],
    "aiohttp": ["tests.helpers.guarded_programs", "aiohttp", "127.0.0.1", "{port}", "{seconds}"],
    "hypercorn": [
        "tests.helpers.guarded_programs",
        "hypercorn",
        "127.0.0.1",
        "{port}",
        "{seconds}",
    ],
}
LIMITS = dict.fromkeys(["FIRST_BYTE", "HEADERS", "BODY", "KEEP_ALIVE", "WRITE", "TUNNEL"], "1s")
SEEN = {"REAPER_LIMITS_MIN_OUT_RATE": "1000000"}
"""At this rate no buffer hides a reader for long."""


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Start:
    @contextlib.contextmanager
    def started(seconds: str = "1", **settings: str) -> Iterator[Server]:
        port = free_port()
        words = [word.format(port=port, seconds=seconds) for word in COMMANDS[request.param]]
        limits = {
            f"REAPER_TIMEOUTS_{name}": value for name, value in {**LIMITS, **settings}.items()
        }
        environment = os.environ | {"REAPER_TICK": "250ms", **SEEN} | limits
        command = [sys.executable, "-m", *words]
        with serving(command, tmp_path / "log", port=port, environment=environment) as server:
            wait_until(lambda: ask(server))
            yield server

    return started


def ask(server: Addressed) -> bytes:
    with contextlib.suppress(OSError), connect(server) as client:
        return answered(client)
    return b""


@pytest.fixture(params=["ASGIWorker", "ThreadWorker"])
def gunicorn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    """A worker of gunicorn's with every timeout 1 s."""
    monkeypatch.setenv("REAPER_TICK", "250ms")
    monkeypatch.setenv(*next(iter(SEEN.items())))
    for name in LIMITS:
        monkeypatch.setenv(f"REAPER_TIMEOUTS_{name}", "1s")
    app: Any = asgi if request.param == "ASGIWorker" else wsgi
    kind = getattr(reaper.gunicorn, request.param)
    with worker(kind, app.application, timeout="3600") as running:  # its own limit of a body
        yield running


def test_gunicorn_is_rid_of_every_kind_of_idleness_and_none_ends_early(gunicorn: Worker) -> None:
    asyncio.run(all_end_and_none_early(ATTACKS, gunicorn.address))


def test_who_waits_for_gunicorns_answer_longer_than_every_timeout_has_it(
    gunicorn: Worker,
) -> None:
    with connect(gunicorn) as patient:
        patient.sendall(get(b"/slow?4"))
        until(patient)


@pytest.mark.parametrize("server", ["hypercorn"], indirect=True)
def test_a_server_that_only_its_loop_guards_is_rid_of_all_that_are_silent(server: Start) -> None:
    with server() as running:
        asyncio.run(all_end_and_none_early(["stalled_body", "unread", "silent"], running.address))


@pytest.mark.parametrize("server", ["ASGIWorker", "ThreadWorker", "aiohttp"], indirect=True)
def test_a_pause_of_the_process_loses_no_request(server: Start) -> None:
    with server() as running:
        a_pause_loses_no_request(running, 10)


@pytest.mark.parametrize("server", ["ASGIWorker", "ThreadWorker"], indirect=True)
def test_a_stop_is_delayed_drains_and_answers_what_is_under_way(server: Start) -> None:
    with server(DRAIN_DELAY="2s", KEEP_ALIVE="60s", FIRST_BYTE="60s", DRAIN="10s") as running:
        with connect(running) as idle, connect(running) as works:
            answered(idle)
            works.sendall(get(b"/slow?4"))
            time.sleep(0.3)
            for pid in tree(running.pid)[1:]:
                os.kill(pid, signal.SIGTERM)
            wait_until(
                lambda: b"connection: close" in ask(running).lower(), "a last answer for a newcomer"
            )
            until(works)
            assert idle.recv(1) == b""
        os.kill(running.pid, signal.SIGTERM)
        wait_until(lambda: running.process.poll() is not None)


@contextlib.asynccontextmanager
async def aiohttp_server() -> AsyncIterator[tuple[int, AsyncioReaper]]:
    runner = aiohttp.web.AppRunner(aiohttp_app(), keepalive_timeout=3600)
    await runner.setup()
    assert runner.server is not None
    async with reaper.asyncio.open_reaper(config()) as r:
        factory = reaper.aiohttp.guard(runner.server, reaper=r)
        server = await asyncio.get_running_loop().create_server(factory, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1], r
        finally:
            server.close()
            await runner.cleanup()


async def test_aiohttp_is_rid_of_every_kind_and_none_ends_early() -> None:
    async with aiohttp_server() as (port, r):
        await all_end_and_none_early(ATTACKS, ("127.0.0.1", port), 0.5)
        assert {"first_byte", "headers", "body", "keep_alive", "write"} <= set(
            r.statistics().reasons
        )


async def test_aiohttp_keeps_a_websocket_on_which_something_moves() -> None:
    async with (
        aiohttp_server() as (port, _),
        aiohttp.ClientSession() as session,
        session.ws_connect(f"http://127.0.0.1:{port}/ws") as websocket,
    ):
        for _ in range(6):
            await asyncio.sleep(0.2)
            spoke = time.monotonic()
            await websocket.send_str("x")
            assert await websocket.receive_str(timeout=PATIENCE) == "x"
        message = await websocket.receive(timeout=PATIENCE)
        assert message.type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSE)
        assert time.monotonic() - spoke >= 0.5


@pytest.mark.parametrize("upgrade", ["", "upgrade: websocket\r\nconnection: upgrade\r\n"])
async def test_aiohttp_bounds_a_body_whatever_upgrade_was_asked_for(upgrade: str) -> None:
    async with aiohttp_server() as (port, r):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            f"POST /echo HTTP/1.1\r\nhost: h\r\n{upgrade}content-length: 9\r\n\r\nabc".encode()
        )
        await eventually(lambda: r.statistics().reasons)
        assert r.statistics().reasons == {"body": 1}
        writer.close()


@pytest.mark.parametrize("server", ["aiohttp"], indirect=True)
def test_the_config_of_run_app_holds_although_the_loop_has_a_reaper(server: Start) -> None:
    with server(seconds="0.5") as quick, connect(quick) as client:
        spoke = time.monotonic()
        assert b"Keep-Alive" not in answered(client)  # there is no whole second to name
        assert client.recv(1) == b""  # by the default it would be open for 95 s
        assert time.monotonic() - spoke >= 0.5


@pytest.mark.parametrize("server", ["aiohttp"], indirect=True)
def test_run_app_names_the_keep_alive_and_announces_the_end_of_an_old_connection(
    server: Start,
) -> None:
    with server(seconds="30", MAX_AGE="1s", DRAIN_IDLE="20s") as old, connect(old) as client:
        said = answered(client)
        assert b"Keep-Alive: timeout=29\r\n" in said
        while b"Connection: close" not in said:
            said = answered(client)
            time.sleep(0.1)
        assert client.recv(1) == b""


async def test_websockets_closes_a_silent_connection_although_pings_are_answered() -> None:
    async with talking(echo, ping_interval=0.1) as (r, port, _):
        async with websockets.asyncio.client.connect(f"ws://127.0.0.1:{port}") as client:
            for _ in range(6):
                await asyncio.sleep(0.2)
                spoke = time.monotonic()
                await client.send("x")
                assert await client.recv() == "x"
            with pytest.raises(websockets.exceptions.ConnectionClosed, match="reaped: tunnel"):
                await client.recv()
            assert time.monotonic() - spoke >= 0.5
        assert len(r.core) == 0


async def test_websockets_names_once_in_the_log_what_is_set_and_does_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with talking(echo, {"timeouts.headers": "5s"}) as (_, port, _):
        for _ in range(2):
            async with websockets.asyncio.client.connect(f"ws://127.0.0.1:{port}"):
                pass
    said = [line for line in caplog.messages if "without effect" in line]
    assert said == ["reaper: set, but without effect here: timeouts.headers"]


async def echo(websocket: Any) -> None:
    async for message in websocket:
        await websocket.send(message)


@contextlib.asynccontextmanager
async def talking(
    handler: Any, limits: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[AsyncioReaper, int, websockets.asyncio.server.Server]]:
    """A websockets server with *handler*, guarded; the reaper, its port, and itself."""
    config = ReaperConfig.load(environ={}, overrides={"reaper.tick": "100ms"} | (limits or {}))
    async with reaper.asyncio.open_reaper(config) as r:
        options |= {
            "create_connection": reaper.websockets.connection(idle=0.5, reaper=r),
            "max_size": None,
        }
        async with websockets.asyncio.server.serve(handler, "127.0.0.1", 0, **options) as server:
            yield r, server.sockets[0].getsockname()[1], server


async def one_steady_frame(
    r: AsyncioReaper, port: int, server: websockets.asyncio.server.Server
) -> None:
    """Sends a message of one frame for four times as long as silence is borne."""
    async with websockets.asyncio.client.connect(
        f"ws://127.0.0.1:{port}", compression=None
    ) as client:
        client.transport.write(bytes([0x82, 0x80 | 126]) + (2000).to_bytes(2, "big") + bytes(4))
        for _ in range(20):
            await asyncio.sleep(0.1)
            client.transport.write(bytes(100))
        assert len(await client.recv()) == 2000


async def only_broadcasts(
    r: AsyncioReaper, port: int, server: websockets.asyncio.server.Server
) -> None:
    """Is sent something by nothing but `broadcast`."""
    async with websockets.asyncio.client.connect(f"ws://127.0.0.1:{port}") as client:
        for _ in range(15):
            await asyncio.sleep(0.1)
            websockets.asyncio.server.broadcast(server.connections, "x")
            assert await client.recv() == "x"


async def takes_a_long_message(
    r: AsyncioReaper, port: int, server: websockets.asyncio.server.Server
) -> None:
    """Takes a message of megabytes, a bit at a time, for four times as long as silence
    is borne.
    """
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 100_000)
        client.connect(("127.0.0.1", port))
        client.setblocking(False)
        client.send(UPGRADE)
        assert b"101" in await loop.sock_recv(client, 65536)
        sending = asyncio.create_task(next(iter(server.connections)).send(bytes(12_000_000)))
        got = 0
        while got < 12_000_000:
            await asyncio.sleep(0.008)
            data = await loop.sock_recv(client, 50_000)
            assert data, f"closed after {got} bytes"
            got += len(data)
        await sending


@pytest.mark.parametrize("peer", [one_steady_frame, only_broadcasts, takes_a_long_message])
async def test_websockets_keeps_a_peer_on_whose_messages_something_moves(
    peer: Callable[..., Awaitable[None]],
) -> None:
    async with talking(echo) as (r, port, server):
        async with asyncio.timeout(PATIENCE):
            await peer(r, port, server)
        assert r.statistics().reasons == {}


async def test_websockets_ends_a_peer_whose_message_drips_slower_than_the_least_rate() -> None:
    async with talking(echo, {"limits.min_in_rate": 1000, "limits.min_in_grace": "500ms"}) as (
        r,
        port,
        _,
    ):
        client = await websockets.asyncio.client.connect(f"ws://127.0.0.1:{port}", compression=None)
        client.transport.write(bytes([0x82, 0x80 | 126]) + (2000).to_bytes(2, "big") + bytes(4))
        async with asyncio.timeout(PATIENCE):
            while not client.protocol.close_rcvd:
                client.transport.write(
                    b"x"
                )  # ten bytes a second, and never silent for as long as is borne
                await asyncio.sleep(0.1)
        assert "reaped: tunnel" in client.protocol.close_rcvd.reason
        client.transport.abort()
        assert r.statistics().reasons == {"tunnel": 1}


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nhost"])
async def test_websockets_lets_go_of_a_client_that_never_shakes_hands_when_it_says_so(
    said: bytes,
) -> None:
    async with talking(None) as (r, port, _):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.setblocking(False)
            await asyncio.get_running_loop().sock_sendall(client, said)
            async with asyncio.timeout(PATIENCE):
                assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
        assert r.statistics().reasons == {
            "tunnel": 1
        }  # it was not websockets itself, which gives it 10 s


async def test_websockets_closes_a_client_that_comes_while_it_drains() -> None:
    async with talking(echo) as (r, port, _):
        r.driver.begin_drain(60)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(PATIENCE):
            assert await reader.read() == b""
        writer.close()
