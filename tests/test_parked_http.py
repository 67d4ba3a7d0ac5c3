"""The HTTP server with its keep-alive connections parked: what is seen from outside stays the same."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from http_world import serving

import server_example.http
from reaper.config import ReaperConfig
from reaper.journal import Journal
from reaper.trio import journal_clock
from server_example.http import HttpServer

pytestmark = [pytest.mark.trio, pytest.mark.slow]

TICK = 0.05
REQUEST = b"GET /connections?format=json HTTP/1.1\r\nhost: test\r\naccept: application/json\r\n\r\n"


@asynccontextmanager
async def running(
    monkeypatch, settings=None, journal=None, linger=0.05, **timeouts: object
) -> AsyncIterator[tuple[HttpServer, trio.SocketListener]]:
    monkeypatch.setattr(server_example.http.server, "LINGER", linger)
    overrides = {"reaper.tick": TICK, "timeouts.drain_idle": 0.02, "timeouts.keep_alive_margin": 0.0}
    overrides |= {f"timeouts.{name}": value for name, value in timeouts.items()} | (settings or {})
    config = ReaperConfig.load(environ={}, overrides=overrides)
    async with serving(config, journal=journal) as (server, listener):
        with trio.fail_after(30):
            yield server, listener
            await until(lambda: server.counters.opened == server.counters.closed)
            await until(lambda: len(server.watcher.core) == 0)  # the sweep's lease goes by itself
        assert len(server.lot) == 0


async def until(condition) -> None:
    while not condition():
        await trio.sleep(0.01)


async def ask(stream: trio.SocketStream, request: bytes = REQUEST) -> bytes:
    """The body of the answer."""
    await stream.send_all(request)
    data = b""
    while b"\r\n\r\n" not in data:
        data += await stream.receive_some()
    head, _, body = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    while len(body) < length:
        body += await stream.receive_some()
    return body


async def dial(listener: trio.SocketListener) -> trio.SocketStream:
    return await trio.open_tcp_stream(*listener.socket.getsockname())


async def test_a_connection_is_parked_woken_and_remembered(monkeypatch):
    async with running(monkeypatch, keep_alive=20) as (server, listener):
        async with await dial(listener) as client:
            for count in range(1, 4):
                (row,) = json.loads(await ask(client))["connections"]
                assert row["requests"] == count
                await until(lambda: server.lot.parked == 1)
                assert (len(server.connections), len(server.lot)) == (0, 1)
            async with await dial(listener) as other:
                table = json.loads(await ask(other))
                row = next(row for row in table["connections"] if row["phase"] == "parked")
                assert (table["open"], row["requests"], row["reason"]) == (2, 3, "keep_alive")
                assert row["received"] == 3 * len(REQUEST)
                assert row["peer"].startswith("127.0.0.1:")
        assert server.counters.opened == 2


async def test_silence_is_counted_from_the_last_activity_and_not_from_the_parking(monkeypatch):
    async with running(monkeypatch, linger=0.4, keep_alive=1.0) as (server, listener):
        async with await dial(listener) as client:
            await ask(client)
            start = trio.current_time()
            await until(lambda: server.lot.parked == 1)
            assert await client.receive_some() == b""
            took = trio.current_time() - start
            assert took >= 0.9
            statistics = server.watcher.statistics()
            assert took <= 1.0 + 2 * TICK + statistics.core.max_lateness + statistics.max_lag
        assert server.lot.reaped == {"keep_alive": 1}


async def test_a_connection_with_tls_is_parked_woken_and_reaped(monkeypatch, certificate):
    cert, key = certificate
    context = ssl.create_default_context(cafile=cert)
    tls = {"server.tls_cert": cert, "server.tls_key": key}
    async with running(monkeypatch, tls, keep_alive=2.0) as (server, listener):
        plain = await dial(listener)
        client = trio.SSLStream(plain, context, server_hostname="127.0.0.1", https_compatible=True)
        for count in range(1, 4):
            (row,) = json.loads(await ask(client))["connections"]
            assert row["requests"] == count
            await until(lambda: server.lot.parked == 1)
            assert not server.connections
        large = b"GET /download?bytes=300000 HTTP/1.1\r\nhost: test\r\n\r\n"
        assert len(await ask(client, large)) == 300_000
        await until(lambda: server.lot.parked == 1)
        assert await plain.receive_some() == b""
        await plain.aclose()
        assert server.lot.reaped == {"keep_alive": 1}


async def test_the_journal_has_one_life_of_a_connection_however_often_it_was_parked(monkeypatch, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    with Journal(tmp_path, writer=1, tick=TICK, clock_ns=journal_clock(), background=False) as journal:
        async with running(monkeypatch, journal=journal, keep_alive=0.5, keep_alive_margin=0.0) as (server, listener):
            reaped, gone = await dial(listener), await dial(listener)
            for _ in range(3):
                for client in (reaped, gone):
                    await ask(client)
                await until(lambda: server.lot.parked == 2)
            await gone.aclose()
            assert await reaped.receive_some() == b""
            await reaped.aclose()
            async with await dial(listener) as client:
                await ask(client)
                await until(lambda: server.lot.parked == 1)
                await server.drain()
    rows = [row for path in tmp_path.glob("*.parquet") for row in parquet.read_table(path).to_pylist()]
    lives: dict[int, list[dict]] = {}
    for row in sorted(rows, key=lambda row: row["t"]):
        if row["kind"] in ("open", "reap", "close_peer", "close_app"):
            lives.setdefault(row["conn"], []).append(row)
    ends = sorted((life[0]["kind"], life[-1]["kind"], life[-1]["reason"] or "", len(life)) for life in lives.values())
    assert ends == [("open", "close_app", "drain", 2), ("open", "close_peer", "", 2), ("open", "reap", "keep_alive", 2)]
    assert {life[0]["listener"] for life in lives.values()} == {"http"}
