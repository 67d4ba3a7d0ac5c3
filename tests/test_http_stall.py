"""Claim: a server that stalled closes no connection whose bytes had arrived in time, in whichever phase it was."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping

import pytest
import trio

import reaper.trio
from reaper.config import ReaperConfig
from server_example.http import HttpServer
from server_example.http.connection import Exchange, Route
from server_example.http.routes import ROUTES

TICK = 0.05
TIMEOUT = 0.4  # seconds, of every phase
STALL = 1.2  # three timeouts
EACH = 20  # connections per phase
PATIENCE = 20.0

SAID = {
    "first_byte": (b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
    "headers": (b"GET / HTTP/1.1\r\n", b"Host: x\r\n\r\n"),
    "body": (
        b"POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\nabc",
        b"def",
    ),
    "keep_alive": (b"GET /sleep?s=0 HTTP/1.1\r\nHost: x\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
    "tunnel": (b"GET /tunnel HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n", b"ping"),
}
"""Phase -> what brings a connection there, and what it sends while the loop is stalled."""

ANSWERED_FIRST = ("keep_alive", "tunnel")  # phases that begin with an answer


async def block(exchange: Exchange) -> None:
    """Hold the loop, as a careless route would."""
    time.sleep(STALL)
    await exchange.respond(200, b"", "text/plain")


def talk(address: tuple[str, int], answered: Mapping[str, list[bytes]]) -> None:
    """The clients, in a thread of their own: they do not stall."""
    clients = [(phase, socket.create_connection(address, timeout=PATIENCE)) for phase in SAID for _ in range(EACH)]
    for phase, client in clients:
        client.sendall(SAID[phase][0])
    for phase, client in clients:
        if phase in ANSWERED_FIRST:
            client.recv(65536)
    with socket.create_connection(address, timeout=PATIENCE) as blocking:
        blocking.sendall(b"GET /block HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(TIMEOUT / 4)  # until it stalls; still in time
        for phase, client in clients:
            client.sendall(SAID[phase][1])
        for phase, client in clients:
            try:
                answered[phase].append(client.recv(65536))
            except OSError as error:
                answered[phase].append(repr(error).encode())
            client.close()


@pytest.mark.slow
@pytest.mark.trio
async def test_a_stalled_loop_loses_no_request_in_any_phase(caplog: pytest.LogCaptureFixture) -> None:
    overrides: dict[str, object] = {f"timeouts.{phase}": TIMEOUT for phase in SAID}
    config = ReaperConfig.load(environ={}, overrides={**overrides, "reaper.tick": TICK})
    routes: dict[str, Route] = {**ROUTES, "/block": block}
    answered: dict[str, list[bytes]] = {phase: [] for phase in SAID}
    async with reaper.trio.open_reaper(config) as watcher, trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        server = HttpServer(config, watcher, routes)
        nursery.start_soon(server.accept, listener, nursery)
        await trio.to_thread.run_sync(talk, listener.socket.getsockname()[:2], answered)
        assert watcher.statistics().stalls >= 1
        nursery.cancel_scope.cancel()
        listener.socket.close()
    for phase, answers in answered.items():
        wanted = b"ping" if phase == "tunnel" else b"HTTP/1.1 200 "
        lost = [answer for answer in answers if not answer.startswith(wanted)]
        assert (phase, len(answers), lost) == (phase, EACH, [])
    assert dict(server.counters.reaped) == {}
    assert "the event loop stalled" in caplog.text


@pytest.mark.slow
@pytest.mark.trio
async def test_a_peer_is_not_charged_for_the_time_in_which_the_loop_was_stalled() -> None:
    overrides = {"reaper.tick": TICK, "limits.min_in_rate": 1000, "limits.min_in_grace": TIMEOUT}
    config = ReaperConfig.load(environ={}, overrides=overrides)
    head = b"POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 3000\r\n\r\n"

    async with reaper.trio.open_reaper(config) as watcher, trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        server = HttpServer(config, watcher, {**ROUTES, "/block": block})
        nursery.start_soon(server.accept, listener, nursery)
        async with await trio.open_tcp_stream(*listener.socket.getsockname()[:2]) as stream:
            await stream.send_all(head)
            while not server.counters.requests:
                await trio.sleep(TICK / 5)
            time.sleep(STALL)
            for _ in range(30):
                await stream.send_all(b"x" * 100)
                await trio.sleep(TICK)
            with trio.fail_after(PATIENCE):
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")
        nursery.cancel_scope.cancel()
        listener.socket.close()
