"""Claims about what a connection to the HTTP server may cost, hold and lose. Sockets
are real, time is virtual.
"""

from __future__ import annotations

import json
import os
import re
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

import server_example.http
from reaper.config import ReaperConfig
from reaper.driver import sockets
from reaper.driver.sockets import peer_name
from reaper.journal import Journal
from reaper.trio import journal_clock
from server_example.http.routes import ROUTES
from server_example.status import Desk, Doors
from tests.helpers.http_world import Running, ask, head_of, rest, running, until, will_reset
from tests.helpers.streams import TlsClient, steps, tasks

pytestmark = pytest.mark.trio

TICK = 1.0
REQUEST = b"GET /nowhere HTTP/1.1\r\nhost: x\r\n\r\n"
SLEEP = b"GET /sleep?s=200 HTTP/1.1\r\nHost: x\r\n\r\n"
CLOSE = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
BEHIND_TLS = pytest.mark.parametrize("secured", ["tls"], indirect=True)
TLS_HELLO = b"\x16\x03\x01\x02\x00\x01"  # how one begins


@pytest.fixture
def clock() -> MockClock:
    """Jumps when every task waits; loopback has long delivered by then."""
    return MockClock(autojump_threshold=0.01)


async def shaken(client: TlsClient, stream: trio.abc.Stream) -> None:
    """Go on with the handshake to its end. What the client says last is not sent
    yet.
    """
    while not client.shake_hands():
        await stream.send_all(client.says())
        data = await stream.receive_some(65536)
        assert data, "ended in its handshake"
        client.hear(bytes(data))


# ---- they cost no task


async def test_a_client_costs_no_task_until_it_has_sent_a_whole_head(
    clock: MockClock, secured: dict[str, str]
) -> None:
    async with running(**secured) as server:
        before = tasks(server.lot)
        slow = [await server.connect(said) for said in (b"", TLS_HELLO)] if secured else []
        streams = []
        for said in [b"", REQUEST[:-1], b"\r\n", b"G"] * 5:
            stream = await server.dial()
            if said:
                await stream.send_all(said)
            streams.append((stream, len(said.lstrip(b"\r\n"))))
        await until(lambda: len(server.lot) == 20 + len(slow))
        assert (tasks(server.lot), len(server.connections)) == (before, 0)
        for stream, sent in streams:
            assert (await ask(stream, REQUEST[sent:])).startswith(b"HTTP/1.1 404 ")
        start = trio.current_time()
        for plain in slow:
            assert await rest(plain) == b""
        assert trio.current_time() - start < 12
        await until(lambda: tasks(server.lot) == before)  # they do not linger for ever
        assert len(server.lot) == 20
        assert server.lot.reaped == ({"handshake": 2} if secured else {})


@BEHIND_TLS
@pytest.mark.parametrize("said", [REQUEST, REQUEST[:9]], ids=["a request", "half a head"])
async def test_what_comes_with_the_end_of_a_handshake_is_not_lost(
    clock: MockClock, secured: dict[str, str], said: bytes
) -> None:
    async with running(**secured) as server, await server.connect() as plain:
        client = TlsClient(secured["server__tls_cert"])
        await shaken(client, plain)
        client.tls.write(said)
        await plain.send_all(client.says())  # both at once
        if said != REQUEST:
            await trio.sleep(1)
            client.tls.write(REQUEST[9:])
            await plain.send_all(client.says())
        with trio.fail_after(5):
            heard = b""
            while not heard:
                client.hear(bytes(await plain.receive_some(65536)))
                with suppress(ssl.SSLWantReadError):
                    heard = client.tls.read(65536)  # and not the tickets that come first
        assert heard.startswith(b"HTTP/1.1 404 ")


async def test_half_the_next_head_gives_its_task_up_and_its_limit_goes_on(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_example.http.server, "LINGER", 2.0)
    async with running(headers=10) as server, await server.connect() as stream:
        await until(lambda: len(server.lot) == 1)
        before = tasks(server.lot)
        await ask(stream, REQUEST)
        assert tasks(server.lot) == before + 1
        await stream.send_all(REQUEST[:9])  # its task lingers still
        start = trio.current_time()
        await until(lambda: not server.connections)
        assert (len(server.lot), tasks(server.lot)) == (1, before)
        answer = await rest(stream)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert 10 <= trio.current_time() - start <= 10 + TICK
        assert server.lot.reaped == {"headers": 1}


# ---- the law


@pytest.mark.parametrize("delay", [0.0, 0.37, 0.74])
@pytest.mark.parametrize(
    ("phase", "limit", "said", "answer"),
    [
        ("first_byte", 6, b"\r\n" * 6, rb""),
        ("headers", 7, REQUEST, rb"HTTP/1.1 408 (?s:.*)headers timed out\n"),
    ],
    ids=["empty lines are no beginning", "headers"],
)
async def test_a_limit_ends_who_drips_never_early_at_most_one_tick_late_and_exactly_once(
    clock: MockClock, phase: str, limit: float, said: bytes, answer: bytes, delay: float
) -> None:
    async def drip() -> None:
        for byte in said:
            await stream.send_all(bytes([byte]))
            await trio.sleep(1.7)

    async with running(first_byte=6, headers=7) as server, trio.open_nursery() as nursery:
        await trio.sleep(delay)
        async with await server.connect() as stream:
            start = trio.current_time()
            nursery.start_soon(drip)
            assert re.fullmatch(answer, await rest(stream))
            assert limit <= trio.current_time() - start <= limit + TICK
            nursery.cancel_scope.cancel()
        assert await server.reaped() == {phase: 1}


async def test_a_byte_unread_at_the_end_of_a_limit_does_not_buy_it_again(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_more(descriptors: Iterable[int]) -> list[int]:
        if trio.current_time() < 30:
            stream.socket._sock.send(b"x")  # type: ignore[attr-defined]
        return sockets.unread(descriptors)

    async with running(first_byte=6, headers=7) as server:
        start = trio.current_time()
        stream = await server.connect(REQUEST[:-9])
        monkeypatch.setattr("reaper.driver.driver.unread", one_more)
        assert (await rest(stream)).startswith(b"HTTP/1.1 408 ")
        assert 7 <= trio.current_time() - start <= 7 + TICK


async def test_a_reload_reaches_them_by_what_they_wait_for(
    clock: MockClock, secured: dict[str, str]
) -> None:
    limits = dict.fromkeys(("first_byte", "headers", "handshake", "keep_alive"), 300)
    async with running(**limits, drain_idle=0, limits__max_age_jitter=0, **secured) as server:
        half = TLS_HELLO if secured else REQUEST[:9]
        clients = [await server.connect(said) for said in (b"", half)]
        parked, busy = await server.dial(), await server.dial()
        for stream, said in ((parked, REQUEST), (busy, SLEEP.replace(b"200", b"100"))):
            await stream.send_all(said)
        await head_of(parked)
        await until(lambda: server.lot.parked == 3)
        await trio.sleep(20)
        limits |= {"first_byte": 40, "headers": 60, "handshake": 50, "max_age": 90, "drain_idle": 0}
        overrides = {f"timeouts.{name}": limit for name, limit in limits.items()} | {
            "limits.max_age_jitter": 0
        }
        await server.reload(ReaperConfig.load(environ={}, overrides=overrides))
        start = trio.current_time()
        for client, left in zip(clients, (30, 30) if secured else (20, 40), strict=True):
            answer = await rest(client)
            assert answer[:13] == (b"" if secured or left == 20 else b"HTTP/1.1 408 ")
            assert left - 2 <= trio.current_time() - start <= left + TICK
        assert await rest(parked) == b""
        assert 66 <= trio.current_time() - start <= 70 + TICK  # counted from when it was opened
        assert b"connection: close" in (await head_of(busy)).lower()
        assert server.lot.reaped["max_age"] == 1


# ---- other ends


@pytest.mark.parametrize("said", [b"", REQUEST[:9], SLEEP], ids=["silent", "half", "in flight"])
async def test_a_reset_ends_it_at_once_and_is_no_reap(clock: MockClock, said: bytes) -> None:
    async with running() as server:
        stream = await server.connect(said)
        await until(lambda: len(server.lot) == 1 and server.counters.requests == (said == SLEEP))
        will_reset(stream)
        await stream.aclose()
        await trio.sleep(0.2)
        assert (len(server.lot), server.counters.closed, server.counters.lost) == (0, 1, 1)
        assert server.lot.reaped == {}


async def answered_after_an_end_of_file(*said: bytes) -> list[bytes]:
    """How the answers begin to clients that say that and shut their side, one after the
    other.
    """
    answers = []
    async with running() as server:
        start = trio.current_time()
        for each in said:
            async with await server.connect(each) as stream:
                await stream.send_eof()
                answers.append((await rest(stream))[:13])
        await until(lambda: server.counters.closed == len(said))
        assert trio.current_time() - start < 2
        assert server.lot.reaped == {}
    return answers


async def test_an_end_of_file_after_half_a_head_is_answered_400(clock: MockClock) -> None:
    assert await answered_after_an_end_of_file(REQUEST[:9]) == [b"HTTP/1.1 400 "]


async def test_an_end_of_file_after_nothing_is_not_answered(clock: MockClock) -> None:
    assert await answered_after_an_end_of_file(b"", b"\r\n") == [b"", b""]


async def test_bytes_behind_a_head_are_its_body_and_the_next_head(clock: MockClock) -> None:
    post = b"POST /upload HTTP/1.1\r\nhost: x\r\ncontent-length: 40000\r\n\r\n"
    async with running() as server, await server.connect() as stream:
        await stream.send_all(post[:20])
        await trio.sleep(1)
        assert not server.connections
        assert (await ask(stream, post[20:] + b"x" * 40_000 + REQUEST[:7])).startswith(
            b"HTTP/1.1 200 "
        )
        await trio.sleep(5)
        assert (len(server.lot), len(server.connections)) == (1, 0)
        assert (await ask(stream, REQUEST[7:])).startswith(b"HTTP/1.1 404 ")


# ---- a drain


@asynccontextmanager
async def draining(*said: bytes) -> AsyncIterator[tuple[Running, list[trio.SocketStream], float]]:
    """A server that begins to drain, its clients, each of which has said that, and the
    instant.
    """
    async with running(headers=8, drain_idle=4, drain=10) as server:
        clients = [await server.connect(each) for each in said]
        await until(lambda: len(server.lot) == len(said))
        start = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.drain)
            yield server, clients, start
        assert server.counters.opened == server.counters.closed


async def test_a_drain_closes_the_silent_after_drain_idle(clock: MockClock) -> None:
    async with draining(b"", SLEEP) as (server, (silent, _), start):
        assert await rest(silent) == b""
        assert 3.9 <= trio.current_time() - start <= 4 + 2 * TICK
        assert server.lot.reaped == {"drain": 1}


async def test_a_drain_answers_what_is_on_its_way(clock: MockClock) -> None:
    said = REQUEST, REQUEST[:9], SLEEP.replace(b"200", b"3")
    async with draining(*said, SLEEP) as (server, (asks, late, busy, _), _start):
        assert (await head_of(asks)).startswith(b"HTTP/1.1 404 ")
        for stream, more, status in (
            (asks, REQUEST, b"404"),
            (late, REQUEST[9:], b"404"),
            (busy, b"", b"200"),
        ):
            await trio.sleep(1)
            await stream.send_all(more)
            answer = await rest(stream)
            assert answer.startswith(b"HTTP/1.1 " + status)
            assert b"connection: close" in answer
            await stream.aclose()  # or it would be left to its linger
        assert server.lot.reaped == {}


async def test_a_drain_leaves_half_a_head_its_own_limit(clock: MockClock) -> None:
    async with draining(REQUEST[:9]) as (server, (half,), _):
        assert (await rest(half)).startswith(b"HTTP/1.1 408 ")
        await half.aclose()
        assert server.lot.reaped == {"headers": 1}


async def test_a_drain_cuts_heads_and_requests_at_its_deadline(clock: MockClock) -> None:
    async with draining(SLEEP, b"") as (server, cut, start):
        await trio.sleep(3)
        await cut[1].send_all(REQUEST[:9])  # so late that its own limit is behind the deadline
        for stream in cut:
            assert await rest(stream) == b""
        assert 9 <= trio.current_time() - start <= 10 + 2 * TICK
        assert server.lot.reaped == {"drain_deadline": 2}


@BEHIND_TLS
@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize("reloads", [True, False])
async def test_a_handshake_that_a_drain_meets_may_end_and_ask_but_not_wait(
    clock: MockClock, secured: dict[str, str], asks: bool, reloads: bool
) -> None:
    async with running(**secured, drain_idle=3, drain=60) as server:
        client = TlsClient(secured["server__tls_cert"])
        assert not client.shake_hands()
        hello = client.says()
        async with await server.connect(hello[:20]) as plain:
            await until(lambda: len(server.lot) == 1)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.drain)
                await trio.sleep(1)
                await plain.send_all(hello[20:])
                await shaken(client, plain)
                await plain.send_all(client.says())
                await trio.sleep(1)
                if reloads:
                    await server.reload(server.config)
                start = trio.current_time()
                if asks:
                    client.tls.write(REQUEST)
                    await plain.send_all(client.says())
                client.hear(await rest(plain))
                if asks:
                    assert client.tls.read(65536).startswith(b"HTTP/1.1 404 ")
                else:
                    assert 1 <= trio.current_time() - start <= 2 + TICK


@BEHIND_TLS
async def test_half_a_handshake_holds_no_drain(clock: MockClock, secured: dict[str, str]) -> None:
    """It gets `drain_idle`, as everybody does to whom nothing is owed."""
    async with (
        running(**secured, drain_idle=3, drain=60, handshake=0) as server,
        await server.connect(TLS_HELLO) as half,
        await server.dial() as silent,
    ):
        await until(lambda: len(server.lot) == 2)
        start = trio.current_time()
        await server.drain()
        assert 3 <= trio.current_time() - start <= 3 + TICK
        assert server.lot.reaped == {"drain": 2}
        for stream in (half, silent):
            assert await rest(stream) == b""


@asynccontextmanager
async def aging(*said: bytes) -> AsyncIterator[tuple[Running, list[trio.SocketStream]]]:
    """A server with an age limit of 20 s, and clients that each have said that."""
    async with running(max_age=20, headers=60, first_byte=0) as server:
        clients = [await server.connect(each) for each in said]
        await until(lambda: len(server.watcher.core) == 2 * len(said))  # each has two leases
        yield server, clients
        for client in clients:
            await client.aclose()
        await server.settled()


async def test_an_age_limit_spares_half_a_head_and_makes_its_answer_the_last(
    clock: MockClock,
) -> None:
    async with aging(b"", REQUEST[:9]) as (server, (silent, half)):
        assert await rest(silent) == b""
        assert server.lot.reaped == {"max_age": 1}
        await trio.sleep(10)
        await half.send_all(REQUEST[9:])
        assert b"connection: close" in await rest(half)


async def test_an_age_limit_goes_with_its_connection(clock: MockClock) -> None:
    async with aging(b"", b"") as (server, (_, leaves)):
        await leaves.aclose()
        await until(lambda: len(server.watcher.core) == 2)


# ---- parked between two requests


async def test_a_connection_is_parked_woken_and_remembered(
    clock: MockClock, secured: dict[str, str]
) -> None:
    """Its silence is counted from its last activity, not from the parking."""
    async with running(keep_alive=20, **secured) as server:
        stream = await server.dial()
        for count in range(1, 4):
            await ask(stream, REQUEST)
            start = trio.current_time()
            await until(lambda: server.lot.parked)
            assert not server.connections
            (kept,) = server.lot
            assert kept.requests == count
            assert peer_name(kept.fd).startswith("127.0.0.1:")
        assert await rest(stream) == b""
        assert 20 <= trio.current_time() - start <= 20 + TICK
        assert await server.reaped() == {"keep_alive": 1}


async def test_a_journal_has_one_life_of_a_connection_however_often_it_was_parked(
    clock: MockClock, tmp_path: Path
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    with Journal(
        tmp_path, writer=1, tick=TICK, clock_ns=journal_clock(), background=False
    ) as journal:
        async with running(ROUTES, journal, first_byte=20, headers=4, keep_alive=5) as server:
            for said in (b"", REQUEST[:9]):
                await server.ask(said)
            reaped, gone, drained = [await server.connect() for _ in range(3)]
            for _ in range(3):
                for client in (reaped, gone):
                    await ask(client, REQUEST)
                await until(lambda: server.lot.parked == 3)
            await gone.aclose()
            assert await rest(reaped) == b""
            await ask(drained, REQUEST)
            await server.drain()
    rows = [
        row for path in tmp_path.glob("*.parquet") for row in parquet.read_table(path).to_pylist()
    ]
    lives: dict[int, list[str]] = {}
    for row in sorted(rows, key=lambda row: row["t"]):
        if row["kind"] in ("open", "reap", "close_peer", "close_app"):
            lives.setdefault(row["conn"], []).append(f"{row['kind']} {row['reason'] or ''}")
    ends = ["close_app drain", "close_peer ", "reap first_byte", "reap headers", "reap keep_alive"]
    assert sorted(lives.values()) == [["open ", end] for end in ends]


# ---- a body that came with the headers


def upload(length: int) -> bytes:
    return b"POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % length


async def test_bytes_that_come_with_the_headers_or_with_the_request_before_pay_for_a_pause(
    clock: MockClock, secured: dict[str, str]
) -> None:
    most = upload(13_000) + b"x" * 12_000
    async with running(**secured) as server, await server.dial() as stream:
        await stream.send_all(most)
        await trio.sleep(9)
        assert (await ask(stream, b"x" * 1_000 + most)).startswith(b"HTTP/1.1 200 ")
        await trio.sleep(9)
        assert (await ask(stream, b"x" * 1_000)).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    ("earlier", "headers", "bytes_per_second", "status"),
    [
        (b"", b"", 10, 408),
        (b"", b"", 300, 200),
        (upload(12_000) + b"x" * 12_000, b"", 5, 408),
        (b"", b"X: " + b"x" * 4000 + b"\r\n", 5, 408),
    ],
    ids=[
        "too slow",
        "fast enough",
        "bytes of an earlier request pay for nothing",
        "nor do those of the headers",
    ],
)
async def test_a_body_that_drips_is_ended_below_the_least_rate_and_not_above(
    clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    earlier: bytes,
    headers: bytes,
    bytes_per_second: int,
    status: int,
) -> None:
    caplog.set_level("INFO", "reaper")
    async with running(body="3s") as server, await server.connect(earlier) as stream:
        assert not earlier or (await head_of(stream)).startswith(b"HTTP/1.1 200 ")
        await trio.sleep(1)
        await stream.send_all(upload(20 * bytes_per_second).replace(b"Host", headers + b"Host"))
        start = trio.current_time()
        with suppress(trio.BrokenResourceError):
            for _ in range(20):
                await trio.sleep(1)
                await stream.send_all(b"x" * bytes_per_second)
                if server.lot.reaped:
                    break
        assert (await head_of(stream)).startswith(b"HTTP/1.1 %d " % status)
        assert server.lot.reaped == ({"min_in_rate": 1} if status == 408 else {})
        assert ("closed: min_in_rate, silent for" in caplog.text) == (
            status == 408
        )  # a rate is no limit in seconds
        assert trio.current_time() - start < (8 if status == 408 else 21)


# ---- a peer that goes while its request is in flight


async def test_an_end_of_file_leaves_a_request_in_flight_half_closeds_time(
    clock: MockClock,
) -> None:
    async with running() as server:
        ghost = await server.connect(SLEEP)
        await until(lambda: server.counters.requests)
        await ghost.send_eof()
        start = trio.current_time()
        await until(lambda: server.counters.closed)
        assert 30 <= trio.current_time() - start <= 30 + 1.5
        assert server.lot.reaped == {"half_closed": 1}
        async with await server.connect(SLEEP.replace(b"200", b"29")) as stream:
            await stream.send_eof()  # it still wants its answer
            assert (await rest(stream)).startswith(b"HTTP/1.1 200 ")


async def test_a_drain_waits_for_a_peer_that_shut_its_side_but_for_none_that_closed(
    clock: MockClock,
) -> None:
    async with (
        running(drain_idle="0s") as server,
        await server.connect(SLEEP.replace(b"200", b"20")) as waiting,
    ):
        before = await server.connect(SLEEP)
        after = await server.connect(SLEEP)
        await until(lambda: server.counters.requests == 3)
        await waiting.send_eof()
        await before.aclose()
        await trio.sleep(1)
        start = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.drain)
            await trio.sleep(1)
            await after.aclose()
            await trio.sleep(1)
            assert (server.counters.lost, len(server.lot)) == (2, 1)
            answer = await rest(waiting)
            await waiting.aclose()
        assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 ")
        assert trio.current_time() - start < 21


@pytest.mark.slow
@pytest.mark.parametrize(
    ("request_bytes", "begins"),
    [
        (SLEEP, b"503"),
        (SLEEP.replace(b"GET", b"HEAD"), b"503"),
        (SLEEP + b"GET / HTTP/1.1\r\n", b"503"),
        (b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n", b"200"),
    ],
    ids=[
        "in flight",
        "in flight, and without a body",
        "in flight, with more unread",
        "without end",
    ],
)
async def test_a_request_ends_at_its_limit(
    clock: MockClock, request_bytes: bytes, begins: bytes
) -> None:
    async with running(request="60s") as server:
        start = trio.current_time()
        answer = await server.ask(request_bytes)
        assert 60 <= trio.current_time() - start <= 60 + 1.5
        assert answer.startswith(b"HTTP/1.1 " + begins)
        assert answer.count(b"data: ") in ((60, 61) if begins == b"200" else (0,))
        assert answer.endswith(b"\r\n\r\n") == request_bytes.startswith(b"HEAD") or begins == b"200"
        assert server.lot.reaped == {"request": 1}


async def test_a_tunnel_stays_open_under_pings_until_its_age(clock: MockClock) -> None:
    ages = {"tunnel_age": "60s", "limits__max_age_jitter": 0}
    async with running(tunnel="10s", **ages) as server:
        upgrade = (
            b"GET /tunnel HTTP/1.1\r\nHost: x\r\n"
            b"Connection: keep-alive, Upgrade\r\nUpgrade: foo, Echo\r\n\r\n"
        )
        async with await server.connect(upgrade) as stream:
            assert b" 101 " in await head_of(stream)
            start = trio.current_time()
            await stream.send_all(b"ping")
            with suppress(trio.BrokenResourceError):
                while await stream.receive_some() == b"ping":
                    await trio.sleep(7)
                    await stream.send_all(b"ping")
            assert 60 <= trio.current_time() - start <= 60 + 11
        assert server.lot.reaped == {"tunnel_age": 1}
        async with await server.connect(upgrade) as stream:
            await head_of(stream)
            await stream.send_eof()
            assert await rest(stream) == b""


# ---- work in small pieces


async def test_one_byte_chunks_do_not_hold_the_loop() -> None:
    count = 10_000
    body = b"1\r\nx\r\n" * count + b"0\r\n\r\n"
    request = b"POST /upload HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with running() as server, await server.connect(request) as stream:
        with steps() as counts:
            await stream.send_all(body)
            assert b'"bytes": 10000' in await stream.receive_some(4096)
    assert counts["_run"] > count / 20  # one at least for every few chunks


async def test_what_comes_around_a_body_is_bounded(clock: MockClock) -> None:
    chunk = b"1;" + b"e" * 8000 + b"\r\nx\r\n"
    request = b"POST /upload HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with (
        running(limits__max_body_bytes=100_000) as server,
        await server.connect(request) as stream,
    ):

        async def flood() -> None:
            with suppress(trio.BrokenResourceError):
                for _ in range(2_500):  # 20 MB, of which some wait in the kernel's buffers
                    await stream.send_all(chunk)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(flood)
            assert b" 413 " in await head_of(stream)
            nursery.cancel_scope.cancel()
        assert server.counters.responses == {413: 1}


# ---- odd clients


async def test_empty_lines_without_end_are_refused_and_hold_nobody_up(
    clock: MockClock, secured: dict[str, str]
) -> None:
    async with running(first_byte="1h", linger="1h", **secured) as server:
        stream = await server.dial()
        with pytest.raises((trio.BrokenResourceError, trio.ClosedResourceError)):
            while True:
                await stream.send_all(b"\r\n" * 8192)
                other = await server.dial()
                assert (await ask(other, b"\r\n\r\n" + REQUEST)).startswith(b"HTTP/1.1 404 ")
        assert server.counters.responses[400] == 1
        assert server.lot.reaped == {}


async def test_what_a_client_sends_while_it_listens_is_bounded(clock: MockClock) -> None:
    async with (
        running() as server,
        await server.connect(b"GET /events?every=1 HTTP/1.1\r\nHost: x\r\n\r\n") as stream,
    ):
        assert (await head_of(stream)).startswith(b"HTTP/1.1 200 ")
        with trio.move_on_after(30) as sending:
            while True:
                await stream.send_all(bytes(1 << 20))
        assert sending.cancelled_caught
        (connection,) = server.connections
        assert len(connection.h11.trailing_data[0]) <= server.config.limits.max_header_bytes + 65536
        assert b"data: " in await stream.receive_some()
        will_reset(stream)
        await stream.aclose()
        await until(lambda: server.counters.closed == 1)


async def test_a_peer_that_goes_on_sending_after_its_last_answer_is_reset(clock: MockClock) -> None:
    async with running(linger="1h") as server, await server.connect(CLOSE) as stream:
        with pytest.raises((trio.BrokenResourceError, trio.ClosedResourceError)):
            while True:
                await stream.send_all(bytes(65536))
        assert server.lot.reaped == {}


async def test_linger_off_holds_no_connection_and_one_too_many_is_answered_503(
    clock: MockClock,
) -> None:
    async with running(linger="0s", limits__max_connections=1) as server:
        async with await server.connect(CLOSE) as stream:
            start = trio.current_time()
            await until(lambda: server.counters.closed)
            assert (await rest(stream)).startswith(b"HTTP/1.1 200 ")
            assert trio.current_time() - start < 1
        async with await server.connect() as first, await server.connect() as refused:
            assert (await rest(refused)).startswith(b"HTTP/1.1 503 ")
            await trio.sleep(3)
            await until(
                lambda: len(server.watcher) == 1
            )  # the first: none is held although it does not close
            assert server.counters.refused == 1
            assert (await ask(first, REQUEST)).startswith(b"HTTP/1.1 404 ")


async def missing_workers(monkeypatch: pytest.MonkeyPatch, user: int | None) -> list[int]:
    """The workers of two that a status names as missing, where a process of *user*
    asks; None: the second worker has stalled.
    """
    asking = sockets.Credentials(1, os.getuid() if user is None else user)
    monkeypatch.setattr(sockets, "credentials", lambda _: asking)
    async with running() as server, trio.open_nursery() as nursery:
        doors = Doors(2)
        if user is not None:
            nursery.start_soon(Desk(server, doors, worker=1).run)
        desk = Desk(server, doors)
        with trio.fail_after(10):
            missing: list[int] = json.loads((await desk.show_status())[1]).get("missing", [])
            assert b'worker="0"' in (await desk.show_metrics())[1]
        nursery.cancel_scope.cancel()
        for door in doors.inner:
            door.close()
    return missing


async def test_a_worker_that_has_been_replaced_answers_no_other_worker(clock: MockClock) -> None:
    async with running() as server, trio.open_nursery() as nursery:
        doors = Doors(2)
        replaced = Desk(server, doors, worker=1)
        nursery.start_soon(replaced.run)
        replaced.close()
        status = json.loads((await Desk(server, doors).show_status())[1])
        assert status["missing"] == [1]
        for door in doors.inner:
            door.close()


@pytest.mark.parametrize("user", [os.getuid(), 0])
async def test_workers_answer_their_own_user_and_root(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch, user: int
) -> None:
    assert await missing_workers(monkeypatch, user) == []


@pytest.mark.parametrize("user", [os.getuid() + 1, None], ids=["another user asks", "stalled"])
async def test_a_worker_that_does_not_answer_is_named(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch, user: int | None
) -> None:
    assert await missing_workers(monkeypatch, user) == [1]
