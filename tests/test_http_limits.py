"""Claims about what a connection to the HTTP server may cost, hold and lose. Sockets are real, time is virtual."""

from __future__ import annotations

import contextlib
import json
import os

import pytest
import trio
from http_world import head_of, rest, running, until, will_reset
from trio.testing import MockClock

from reaper.config import ReaperConfig
from reaper.driver import sockets
from server_example.http.connection import Exchange
from server_example.http.routes import ROUTES
from server_example.status import Desk, Doors

pytestmark = pytest.mark.trio


@pytest.fixture
def clock() -> MockClock:
    """Jumps when every task waits; loopback has long delivered by then."""
    return MockClock(autojump_threshold=0.005)


async def send_until_reset(stream: trio.abc.Stream, data: bytes, every: float = 0) -> None:
    with pytest.raises((trio.BrokenResourceError, trio.ClosedResourceError)):
        while True:
            await stream.send_all(data)
            await trio.sleep(every)


# ---- a body that came with the headers ---------------------------------------------------------------------------


def upload(length: int) -> bytes:
    return b"POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % length


async def test_bytes_that_come_with_the_headers_pay_for_a_pause(clock: MockClock, secured) -> None:
    async with running(**secured) as server, await server.dial() as stream:
        for _ in range(2):  # a second request likewise
            await stream.send_all(upload(13_000) + b"x" * 12_000)
            await trio.sleep(9)
            await stream.send_all(b"x" * 1_000)
            assert (await head_of(stream)).startswith(b"HTTP/1.1 200 ")
            await trio.sleep(1)


async def test_pipelined_bytes_of_the_next_body_pay_for_a_pause(clock: MockClock) -> None:
    async with running() as server, await server.connect() as stream:
        await stream.send_all(upload(5) + b"hello" + upload(13_000) + b"x" * 12_000)
        await trio.sleep(9)
        await stream.send_all(b"x" * 1_000 + b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await rest(stream)).count(b"HTTP/1.1 200 ") == 3


@pytest.mark.parametrize(
    ("earlier", "headers"),
    [(upload(12_000) + b"x" * 12_000, b""), (b"", b"X: " + b"x" * 4000 + b"\r\n")],
    ids=["of an earlier request", "of the headers"],
)
async def test_other_bytes_than_those_of_the_body_pay_for_nothing(
    clock: MockClock, earlier: bytes, headers: bytes
) -> None:
    async with running() as server, await server.connect(earlier) as stream:
        assert not earlier or (await head_of(stream)).startswith(b"HTTP/1.1 200 ")
        await trio.sleep(1)
        await stream.send_all(upload(100).replace(b"Host", headers + b"Host"))
        start = trio.current_time()
        assert (await head_of(stream)).startswith(b"HTTP/1.1 408 ")
        assert trio.current_time() - start < 8
        assert server.lot.reaped == {"min_in_rate": 1}


@pytest.mark.parametrize(("bytes_per_second", "answer"), [(10, 408), (300, 200)])
async def test_a_body_that_drips_is_ended_below_the_least_rate_and_not_above(
    clock: MockClock, bytes_per_second: int, answer: int
) -> None:
    async with running(body="3s") as server, await server.connect(upload(20 * bytes_per_second)) as stream:
        start = trio.current_time()
        with contextlib.suppress(trio.BrokenResourceError):
            for _ in range(20):
                await trio.sleep(1)
                await stream.send_all(b"x" * bytes_per_second)
                if server.lot.reaped:
                    break
        assert (await head_of(stream)).startswith(b"HTTP/1.1 %d " % answer)
        assert server.lot.reaped == ({"min_in_rate": 1} if answer == 408 else {})
        assert trio.current_time() - start < (9 if answer == 408 else 21)


# ---- a peer that goes while its request is in flight ---------------------------------------------------------------

SLEEP = b"GET /sleep?s=200 HTTP/1.1\r\nHost: x\r\n\r\n"


async def test_a_reset_ends_the_request_in_flight(clock: MockClock) -> None:
    async with running() as server:
        stream = await server.connect(SLEEP)
        await until(lambda: server.counters.requests)
        will_reset(stream)
        start = trio.current_time()
        await stream.aclose()
        await until(lambda: server.counters.closed)
        assert trio.current_time() - start < 1
        assert (server.counters.lost, len(server.lot)) == (1, 0)


async def test_an_end_of_file_leaves_a_request_in_flight_half_closeds_time(clock: MockClock) -> None:
    async with running() as server:
        ghost = await server.connect(SLEEP)
        await until(lambda: server.counters.requests)
        await ghost.send_eof()
        start = trio.current_time()
        await until(lambda: server.counters.closed)
        assert 30 <= trio.current_time() - start <= 30 + 1.5
        assert server.lot.reaped == {"half_closed": 1}
        await ghost.aclose()
        async with await server.connect(SLEEP.replace(b"200", b"29")) as stream:
            await stream.send_eof()  # it still wants its answer
            assert (await rest(stream)).startswith(b"HTTP/1.1 200 ")


async def test_a_drain_waits_for_a_peer_that_shut_its_side_but_for_none_that_closed(clock: MockClock) -> None:
    async with running(drain_idle="0s") as server, await server.connect(SLEEP.replace(b"200", b"20")) as waiting:
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
    [(SLEEP, b"503"), (SLEEP + b"GET / HTTP/1.1\r\n", b"503"), (b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n", b"200")],
    ids=["in flight", "in flight, with more unread", "without end"],
)
async def test_a_request_ends_at_its_limit(clock: MockClock, request_bytes: bytes, begins: bytes) -> None:
    async with running(request="60s") as server:
        start = trio.current_time()
        answer = await server.ask(request_bytes)
        assert 60 <= trio.current_time() - start <= 60 + 1.5
        assert answer.startswith(b"HTTP/1.1 " + begins)
        assert answer.count(b"data: ") in ((60, 61) if begins == b"200" else (0,))
        assert server.lot.reaped == {"request": 1}


async def test_a_tunnel_has_an_age(clock: MockClock) -> None:
    async with running(tunnel="10s", tunnel_age="60s") as server:
        upgrade = b"GET /tunnel HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n"
        async with await server.connect(upgrade) as stream:
            await head_of(stream)
            start = trio.current_time()
            await send_until_reset(stream, b"ping", every=5)
            assert 60 <= trio.current_time() - start <= 60 + 11
        assert server.lot.reaped == {"tunnel_age": 1}


@pytest.mark.slow
async def test_a_reload_of_max_age_reaches_open_connections(clock: MockClock) -> None:
    async with running(keep_alive="10h", drain_idle="0s", limits__max_age_jitter=0) as server:
        async with await server.connect() as first, await server.connect() as parked:
            await parked.send_all(b"GET /sleep?s=0 HTTP/1.1\r\nHost: x\r\n\r\n")
            await head_of(parked)
            await until(lambda: server.lot.parked)
            await first.send_all(b"GET /sleep?s=100 HTTP/1.1\r\nHost: x\r\n\r\n")
            await trio.sleep(20)
            overrides = {"timeouts.max_age": "60s", "timeouts.keep_alive": "10h", "limits.max_age_jitter": 0}
            start = trio.current_time()
            await server.reload(ReaperConfig.load(environ={}, overrides=overrides))
            assert await rest(parked) == b""
            assert trio.current_time() - start < 45  # counted from when it was opened
            assert b"connection: close" in (await head_of(first)).lower()
        assert server.lot.reaped == {"max_age": 1}


# ---- work in small pieces ------------------------------------------------------------------------------------------


async def test_one_byte_chunks_do_not_hold_the_loop() -> None:
    count = 10_000
    body = b"1\r\nx\r\n" * count + b"0\r\n\r\n"
    request = b"POST /upload HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    passes = 0

    async def count_passes() -> None:
        nonlocal passes
        while True:
            await trio.lowlevel.checkpoint()
            passes += 1

    async with running() as server, await server.connect(request) as stream, trio.open_nursery() as nursery:
        nursery.start_soon(count_passes)
        await stream.send_all(body)
        assert b'"bytes": 10000' in await stream.receive_some(4096)
        nursery.cancel_scope.cancel()
    assert passes > count / 20  # one at least for every few chunks


async def test_what_comes_around_a_body_is_bounded(clock: MockClock) -> None:
    chunk = b"1;" + b"e" * 8000 + b"\r\nx\r\n"
    request = b"POST /upload HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with running(limits__max_body_bytes=100_000) as server, await server.connect(request) as stream:
        sent = 0

        async def drip() -> None:
            nonlocal sent
            try:
                while True:
                    await stream.send_all(chunk)
                    sent += len(chunk)
            except trio.BrokenResourceError:
                pass

        async with trio.open_nursery() as nursery:
            nursery.start_soon(drip)
            assert b" 413 " in await head_of(stream)
            nursery.cancel_scope.cancel()
        assert server.counters.responses[413] == 1
        assert sent < 20_000_000  # of which some megabytes wait in the kernel's buffers


# ---- the protocol ----------------------------------------------------------------------------------------------------

CLOSE = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


async def test_an_empty_line_in_pieces_is_no_request_and_does_not_put_the_end_off(clock: MockClock) -> None:
    async with running() as server, await server.connect() as stream:
        start = trio.current_time()
        await send_until_reset(stream, b"\r\n", every=3)
        assert trio.current_time() - start < 20
        assert server.lot.reaped == {"first_byte": 1}


async def test_empty_lines_without_end_are_refused_and_hold_nobody_up(clock: MockClock, secured) -> None:
    async with running(first_byte="1h", linger="1h", **secured) as server:
        stream = await server.dial()
        with pytest.raises((trio.BrokenResourceError, trio.ClosedResourceError)):
            while True:
                await stream.send_all(b"\r\n" * 8192)
                other = await server.dial()
                await other.send_all(b"\r\n\r\nGET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n")
                assert (await head_of(other)).startswith(b"HTTP/1.1 404 ")
                await trio.aclose_forcefully(other)
        await trio.aclose_forcefully(stream)
        assert server.counters.responses[400] == 1
        assert server.lot.reaped == {}


async def test_what_a_client_sends_while_it_listens_is_bounded(clock: MockClock) -> None:
    async with running() as server, await server.connect(b"GET /events?every=1 HTTP/1.1\r\nHost: x\r\n\r\n") as stream:
        assert (await head_of(stream)).startswith(b"HTTP/1.1 200 ")
        with trio.move_on_after(30) as sending:
            while True:
                await stream.send_all(bytes(1 << 20))
        assert sending.cancelled_caught
        (connection,) = server.connections
        assert len(connection.unread) <= server.config.limits.max_header_bytes + 65536
        assert b"data: " in await stream.receive_some()
        will_reset(stream)
        await trio.aclose_forcefully(stream)
        await until(lambda: server.counters.closed == 1)


async def test_a_peer_that_goes_on_sending_after_its_last_answer_is_reset(clock: MockClock) -> None:
    async with running(linger="1h") as server, await server.connect(CLOSE) as stream:
        await send_until_reset(stream, bytes(65536))
        assert server.lot.reaped == {}


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"HEAD /nowhere HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"HEAD /sleep?s=-1 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"HEAD / HTTP/1.1\r\n\r\n",
        b"HEAD / HTTP/9.9\r\nHost: x\r\n\r\n",
        b"HEAD /broken HTTP/1.1\r\nHost: x\r\n\r\n",
        b"HEAD /sleep?s=100 HTTP/1.1\r\nHost: x\r\n\r\n",  # it takes too long
    ],
)
async def test_an_error_is_no_body_for_a_head(clock: MockClock, request_bytes: bytes) -> None:
    async def broken(exchange: Exchange) -> None:
        raise LookupError("on purpose")

    async with running({**ROUTES, "/broken": broken}, request="10s") as server:
        head, _, body = (await server.ask(request_bytes)).partition(b"\r\n\r\n")
        assert int(head.split()[1]) >= 400
        assert b"content-length: " in head
        assert body == b""
        server.counters.failures = 0


async def test_linger_off_holds_no_connection(clock: MockClock) -> None:
    async with running(linger="0s", limits__max_connections=1) as server:
        async with await server.connect(CLOSE) as stream:
            start = trio.current_time()
            await until(lambda: server.counters.closed)
            assert (await rest(stream)).startswith(b"HTTP/1.1 200 ")
            assert trio.current_time() - start < 1
        async with await server.connect() as first, await server.connect() as refused:
            assert (await rest(refused)).startswith(b"HTTP/1.1 503 ")
            await trio.sleep(3)
            await until(lambda: len(server.watcher) == 1)  # the first: none is held although it does not close
            assert first


async def test_a_worker_that_does_not_answer_is_named(clock: MockClock) -> None:
    async with running() as server:
        doors = Doors(2)
        desk = Desk(server, doors)
        with trio.fail_after(10):
            status = json.loads((await desk.show_status())[1])
        assert status["missing"] == [1]
        assert b'worker="0"' in (await desk.show_metrics())[1]
        for door in doors.inner:
            door.close()


@pytest.mark.parametrize(("user", "missing"), [(os.getuid(), []), (0, []), (os.getuid() + 1, [1])])
async def test_workers_answer_their_own_user_and_root_and_nobody_else(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch, user: int, missing: list[int]
) -> None:
    monkeypatch.setattr(sockets, "credentials", lambda _: sockets.Credentials(1, user))
    async with running() as server, trio.open_nursery() as nursery:
        doors = Doors(2)
        nursery.start_soon(Desk(server, doors, worker=1).run)
        with trio.fail_after(10):
            assert json.loads((await Desk(server, doors).show_status())[1]).get("missing", []) == missing
        nursery.cancel_scope.cancel()
        doors.inner[0].close()


async def test_an_answer_has_its_date_in_the_first_second_of_the_loops_clock_too(clock: MockClock) -> None:
    async with running() as server, await server.connect(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") as stream:
        head = await head_of(stream)
        assert trio.current_time() < 1
        assert b"GMT" in head.partition(b"date: ")[2].partition(b"\r\n")[0]
