"""Claims about clients that have sent nothing, or half a request head. Sockets are real, time is virtual."""

from __future__ import annotations

import ssl
from contextlib import suppress
from pathlib import Path

import pytest
import trio
from http_world import Running, head_of, rest, running, tls, until, will_reset
from streams import TlsClient
from trio.testing import MockClock

import server_example.http
from reaper.config import ReaperConfig
from reaper.driver.sockets import peer_name
from reaper.journal import Journal
from reaper.trio import journal_clock
from server_example.http import HttpServer

pytestmark = pytest.mark.trio

TICK = 1.0
REQUEST = b"GET /nowhere HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture
def clock() -> MockClock:
    """Jumps when every task waits; loopback has long delivered by then."""
    return MockClock(autojump_threshold=0.01)


async def shaken(client: TlsClient, stream: trio.abc.Stream) -> None:
    """Go on with the handshake to its end. What the client says last is not sent yet."""
    while not client.shake_hands():
        await stream.send_all(client.says())
        data = await stream.receive_some(65536)
        assert data, "ended in its handshake"
        client.hear(bytes(data))


def lives_in(journal: Path) -> list[list[str]]:
    """The beginning and the end of each connection, sorted."""
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [row for path in journal.glob("*.parquet") for row in parquet.read_table(path).to_pylist()]
    lives: dict[int, list[str]] = {}
    for row in sorted(rows, key=lambda row: row["t"]):
        if row["kind"] in ("open", "reap", "close_peer", "close_app"):
            lives.setdefault(row["conn"], []).append(f"{row['kind']} {row['reason'] or ''}")
    return sorted(lives.values())


def tasks(server: HttpServer) -> int:
    """Without those that are kept for the next connection that speaks."""
    return trio.lowlevel.current_statistics().tasks_living - len(server.lot._kept)


# ---- they cost no task -------------------------------------------------------------------------------------------


async def test_silent_clients_and_those_with_half_a_head_cost_no_task(clock: MockClock) -> None:
    async with running() as server:
        before = tasks(server)
        streams = [await server.connect(said) for said in [b"", REQUEST[:-1], b"\r\n", b"G"] * 10]
        await until(lambda: len(server.lot) == 40)
        assert (tasks(server), len(server.connections)) == (before, 0)
        for stream in streams[1::4]:
            await stream.send_all(REQUEST[-1:])
            assert (await head_of(stream)).startswith(b"HTTP/1.1 404 ")
        await until(lambda: tasks(server) == before)  # they do not linger for ever
        assert len(server.lot) == 40
        for stream in streams:
            await stream.aclose()


async def test_under_tls_neither_a_handshake_nor_half_a_head_costs_a_task(clock: MockClock, certificate) -> None:
    async with running(**tls(certificate)) as server:
        before = tasks(server)
        slow = [await server.connect(said) for said in (b"", b"\x16\x03\x01\x02\x00\x01")]
        streams = []
        for said in (b"", REQUEST[:5], REQUEST[:-1]):
            stream = await server.connect_tls(certificate[0])
            if said:
                await stream.send_all(said)
            streams.append((stream, said))
        await until(lambda: len(server.lot) == 5)
        assert (tasks(server), len(server.connections)) == (before, 0)
        for stream, said in streams:
            await stream.send_all(REQUEST[len(said) :])
            assert (await head_of(stream)).startswith(b"HTTP/1.1 404 ")
        start = trio.current_time()
        for plain in slow:
            assert await rest(plain) == b""
            await plain.aclose()
        assert trio.current_time() - start < 12
        assert server.lot.reaped == {"handshake": 2}
        for stream, _ in streams:
            await trio.aclose_forcefully(stream)


@pytest.mark.parametrize("said", [REQUEST, REQUEST[:9]], ids=["a request", "half a head"])
async def test_what_comes_with_the_end_of_a_handshake_is_not_lost(clock: MockClock, certificate, said: bytes) -> None:
    async with running(**tls(certificate)) as server, await server.connect() as plain:
        client = TlsClient(certificate[0])
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
        before = tasks(server)
        await stream.send_all(REQUEST)
        await head_of(stream)
        assert tasks(server) == before + 1
        await stream.send_all(REQUEST[:9])  # its task lingers still
        start = trio.current_time()
        await until(lambda: not server.connections)
        assert (len(server.lot), tasks(server)) == (1, before)
        answer = await rest(stream)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert 10 <= trio.current_time() - start <= 10 + TICK
        assert server.lot.reaped == {"headers": 1}


# ---- the law -----------------------------------------------------------------------------------------------------


async def test_each_limit_ends_them_never_early_at_most_one_tick_late_and_exactly_once(
    clock: MockClock, tmp_path
) -> None:
    took: dict[str, list[float]] = {"first_byte": [], "headers": []}

    async def silent(server: Running, delay: float) -> None:
        await trio.sleep(delay)
        async with await server.connect() as stream:
            start = trio.current_time()
            if delay % 1 > 0.5:
                await stream.send_all(b"\r\n")  # an empty line is no beginning
            assert await rest(stream) == b""
            took["first_byte"].append(trio.current_time() - start)

    async def dripping(server: Running, delay: float) -> None:
        await trio.sleep(delay)
        async with await server.connect() as stream:
            await trio.sleep(delay)
            start = trio.current_time()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(drip, stream)
                answer = await rest(stream)
                nursery.cancel_scope.cancel()
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert answer.endswith(b"headers timed out\n")
            took["headers"].append(trio.current_time() - start)

    async def drip(stream: trio.SocketStream) -> None:
        for byte in REQUEST:
            await stream.send_all(bytes([byte]))
            await trio.sleep(1.7)

    with Journal(tmp_path, writer=1, tick=TICK, clock_ns=journal_clock(), background=False) as journal:
        async with running(journal=journal, first_byte=6, headers=7) as server:
            async with trio.open_nursery() as nursery:
                for number in range(12):
                    nursery.start_soon(silent, server, number * 0.37)
                    nursery.start_soon(dripping, server, number * 0.37)
            assert server.lot.reaped == {"first_byte": 12, "headers": 12}
            assert server.counters.responses == {408: 12}
            assert server.counters.opened == server.counters.closed == 24
    assert all(6 <= each <= 6 + TICK for each in took["first_byte"]), took
    assert all(7 <= each <= 7 + TICK for each in took["headers"]), took
    assert lives_in(tmp_path) == sorted([["open ", "reap first_byte"], ["open ", "reap headers"]] * 12)


async def test_a_reload_reaches_them_by_what_they_wait_for(clock: MockClock, secured) -> None:
    limits = dict.fromkeys(("first_byte", "headers", "handshake"), 300)
    async with running(**limits, **secured) as server:
        half = b"\x16\x03\x01\x02\x00\x01" if secured else REQUEST[:9]
        clients = [await server.connect(said) for said in (b"", half)]
        await until(lambda: len(server.lot) == 2)
        await trio.sleep(20)
        overrides = {"timeouts.first_byte": 40, "timeouts.headers": 60, "timeouts.handshake": 50}
        await server.reload(ReaperConfig.load(environ={}, overrides=overrides))
        start = trio.current_time()
        for client, left in zip(clients, (30, 30) if secured else (20, 40), strict=True):
            answer = await rest(client)
            assert answer[:13] == (b"" if secured or left == 20 else b"HTTP/1.1 408 ")
            assert left - 2 <= trio.current_time() - start <= left + TICK
            await client.aclose()


# ---- other ends --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("said", [b"", REQUEST[:9]], ids=["silent", "half"])
async def test_a_reset_ends_it_at_once_and_is_no_reap(clock: MockClock, said: bytes) -> None:
    async with running() as server:
        stream = await server.connect(said)
        await until(lambda: len(server.lot) == 1)
        will_reset(stream)
        await stream.aclose()
        await trio.sleep(0.2)
        assert (len(server.lot), server.counters.closed, server.counters.lost) == (0, 1, 1)
        assert server.lot.reaped == {}


async def test_an_end_of_file_after_half_a_head_is_answered_400_and_after_nothing_not_at_all(clock: MockClock) -> None:
    async with running() as server:
        start = trio.current_time()
        for said, status in ((b"", b""), (b"\r\n", b""), (REQUEST[:9], b"HTTP/1.1 400 ")):
            async with await server.connect(said) as stream:
                await stream.send_eof()
                assert (await rest(stream))[:13] == status
        await until(lambda: server.counters.closed == 3)
        assert trio.current_time() - start < 2
        assert server.lot.reaped == {}


@pytest.mark.parametrize(
    ("said", "status"),
    [(b"\x16\x03\x01\x02\x00\x01", 400), (b"GET / HTTP/1.1\r\nx: " + b"y" * 70_000, 431)],
    ids=["TLS where there is none", "too long"],
)
async def test_what_will_never_be_a_head_is_refused_at_once(clock: MockClock, said: bytes, status: int) -> None:
    async with running() as server, await server.connect(said) as stream:
        start = trio.current_time()
        assert (await head_of(stream)).startswith(b"HTTP/1.1 %d " % status)
        assert trio.current_time() - start < 1


async def test_bytes_behind_a_head_are_its_body_and_the_next_head(clock: MockClock) -> None:
    post = b"POST /upload HTTP/1.1\r\nhost: x\r\ncontent-length: 40000\r\n\r\n"
    async with running() as server, await server.connect() as stream:
        await stream.send_all(post[:20])
        await trio.sleep(1)
        assert not server.connections
        await stream.send_all(post[20:] + b"x" * 40_000 + REQUEST[:7])
        assert (await head_of(stream)).startswith(b"HTTP/1.1 200 ")
        await trio.sleep(5)
        assert (len(server.lot), len(server.connections)) == (1, 0)
        await stream.send_all(REQUEST[7:])
        assert (await head_of(stream)).startswith(b"HTTP/1.1 404 ")


# ---- a drain -----------------------------------------------------------------------------------------------------


async def test_a_drain_closes_the_silent_and_waits_for_the_rest_of_a_head(clock: MockClock) -> None:
    async with running(headers=8, drain_idle=1, drain=60) as server:
        silent, late, half = (
            await server.connect(),
            await server.connect(REQUEST[:9]),
            await server.connect(REQUEST[:9]),
        )
        await until(lambda: len(server.lot) == 3)
        start = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.drain)
            assert await rest(silent) == b""
            assert 0.9 <= trio.current_time() - start <= 1 + 2 * TICK
            await late.send_all(REQUEST[9:])
            answer = await rest(late)
            assert answer.startswith(b"HTTP/1.1 404 ")
            assert b"connection: close" in answer
            await late.aclose()  # or it would be left to its linger
            assert (await rest(half)).startswith(b"HTTP/1.1 408 ")
            await silent.aclose()
            await half.aclose()
        assert trio.current_time() - start < 12
        assert server.lot.reaped == {"drain": 1, "headers": 1}
        assert server.counters.opened == server.counters.closed


@pytest.mark.parametrize(
    "said", [REQUEST[:9], b"GET /sleep?s=200 HTTP/1.1\r\nhost: x\r\n\r\n"], ids=["half", "in flight"]
)
async def test_a_drain_cuts_half_a_head_and_a_request_in_flight_at_its_deadline(clock: MockClock, said: bytes) -> None:
    limits = {"headers": 300, "drain_idle": 1, "drain": 10}
    async with running(**limits) as server, await server.connect(said) as half:
        await until(lambda: len(server.lot) == 1)
        start = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.drain)
            assert await rest(half) == b""
        assert 9 <= trio.current_time() - start <= 10 + 2 * TICK
        assert server.lot.reaped == {"drain_deadline": 1}


@pytest.mark.parametrize("asks", [True, False])
@pytest.mark.parametrize("reloads", [True, False])
async def test_a_handshake_that_a_drain_meets_may_end_and_ask_but_not_wait(
    clock: MockClock, certificate, asks: bool, reloads: bool
) -> None:
    async with running(**tls(certificate), drain_idle=3, drain=60) as server:
        client = TlsClient(certificate[0])
        assert not client.shake_hands()
        hello = client.says()
        async with await server.connect(hello[:20]) as plain:
            await until(lambda: len(server.lot) == 1)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.drain)
                await trio.sleep(5)
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


async def test_an_age_limit_spares_half_a_head_and_makes_its_answer_the_last(clock: MockClock) -> None:
    async with running(max_age=20, headers=60, first_byte=0) as server:
        silent, half = await server.connect(), await server.connect(REQUEST[:9])
        assert await rest(silent) == b""
        assert server.lot.reaped == {"max_age": 1}
        await trio.sleep(10)
        await half.send_all(REQUEST[9:])
        assert b"connection: close" in await rest(half)
        await silent.aclose()
        await half.aclose()


async def test_an_age_limit_goes_with_its_connection(clock: MockClock) -> None:
    async with running(max_age=3600, first_byte=5) as server, await server.connect() as silent:
        await until(lambda: len(server.lot) == 1)
        assert len(server.watcher.core) == 2
        assert await rest(silent) == b""
        assert server.lot.reaped == {"first_byte": 1}
        assert len(server.watcher.core) == 0


# ---- parked between two requests -----------------------------------------------------------------------------------


async def test_a_connection_is_parked_woken_and_remembered(clock: MockClock, secured) -> None:
    """And its silence is counted from its last activity, not from the parking."""
    async with running(keep_alive=20, **secured) as server:
        stream = await server.dial()
        for count in range(1, 4):
            await stream.send_all(REQUEST)
            await head_of(stream)
            start = trio.current_time()
            await until(lambda: server.lot.parked)
            assert not server.connections
            (kept,) = server.lot
            assert kept.requests == count
            assert peer_name(kept.fd).startswith("127.0.0.1:")
        assert await rest(stream) == b""
        assert 20 <= trio.current_time() - start <= 20 + TICK
        assert await server.reaped() == {"keep_alive": 1}
        await trio.aclose_forcefully(stream)


async def test_a_journal_has_one_life_of_a_connection_however_often_it_was_parked(clock: MockClock, tmp_path) -> None:
    with Journal(tmp_path, writer=1, tick=TICK, clock_ns=journal_clock(), background=False) as journal:
        async with running(journal=journal, keep_alive=5) as server:
            reaped, gone, drained = [await server.connect() for _ in range(3)]
            for _ in range(3):
                for client in (reaped, gone):
                    await client.send_all(REQUEST)
                    await head_of(client)
                await until(lambda: server.lot.parked == 3)
            await gone.aclose()
            assert await rest(reaped) == b""
            await drained.send_all(REQUEST)
            await head_of(drained)
            await server.drain()
            for client in (reaped, drained):
                await client.aclose()
    lives = lives_in(tmp_path)
    assert lives == [["open ", "close_app drain"], ["open ", "close_peer "], ["open ", "reap keep_alive"]]
