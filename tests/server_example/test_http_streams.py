"""Claims about event streams of the HTTP server: pinged, old, and open at a stop.
Sockets are real, time is virtual.
"""

from __future__ import annotations

import logging
import re

import pytest
import trio
from trio.testing import MockClock

import reaper
from reaper.config import ReaperConfig
from server_example.http.connection import Exchange
from server_example.http.routes import ROUTES
from tests.helpers.http_world import head_of, rest, running, until

pytestmark = pytest.mark.trio

EVENTS = b"GET /events?every=10&ping=0 HTTP/1.1\r\nHost: x\r\n\r\n"
DEAF = b"GET /deaf HTTP/1.1\r\nHost: x\r\n\r\n"
COMMENT = b"3\r\n:\n\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
HALF = b"data: half"


@pytest.fixture
def clock() -> MockClock:
    """Jumps when every task waits; loopback has long delivered by then."""
    return MockClock(autojump_threshold=0.01)


async def deaf(exchange: Exchange) -> None:
    """`/deaf`: a stream that never asks whether it is to end."""
    await exchange.start(200, [("content-type", "text/event-stream; charset=utf-8")])
    await trio.sleep_forever()


async def halves(exchange: Exchange) -> None:
    """`/halves`: pauses in an event, and then between two."""
    await exchange.start(200, [("content-type", "text/event-stream")])
    await exchange.send(HALF)
    await trio.sleep(7)
    await exchange.send(b"\n\n")
    await trio.sleep(7)
    await exchange.finish()


HERE = {**ROUTES, "/deaf": deaf, "/halves": halves}


async def heard_for(stream: trio.SocketStream, seconds: float) -> bytes:
    """What comes within *seconds*."""
    data = b""
    with trio.move_on_after(seconds):
        while piece := await stream.receive_some(65536):
            data += bytes(piece)
    return data


async def test_a_quiet_stream_is_pinged_between_two_events_and_nowhere_else(
    clock: MockClock,
) -> None:
    async with running(HERE, stream_ping="2s") as server:
        async with await server.connect(EVENTS) as stream:
            await head_of(stream)
            said = await heard_for(stream, 10.9)
        pings, event, later = re.split(rb"(1[0-9a-f]\r\nid: 1\ndata: .*\n\n\r\n)", said)
        assert pings == COMMENT * (len(pings) // len(COMMENT))
        assert 3 <= len(pings) // len(COMMENT) <= 5
        assert later == b""
        assert event
        async with await server.connect(b"GET /halves HTTP/1.1\r\nHost: x\r\n\r\n") as stream:
            said = await heard_for(stream, 15)
        before, _, after = said.partition(HALF + b"\r\n2\r\n\n\n\r\n")
        assert COMMENT not in before
        assert after in (COMMENT * 2 + LAST_CHUNK, COMMENT * 3 + LAST_CHUNK)


async def test_nothing_is_written_where_nobody_asked_or_the_route_pings(clock: MockClock) -> None:
    for settings, request, seconds in (
        ({"server__stream_retry": "1s"}, EVENTS.replace(b"every=10", b"every=30"), 20),
        ({"stream_ping": "4s"}, EVENTS.replace(b"ping=0", b"ping=3"), 9),
        ({"stream_ping": "2s"}, EVENTS.replace(b"GET", b"HEAD"), 9),
    ):
        async with running(HERE, **settings) as server, await server.connect(request) as stream:
            await head_of(stream)
            assert COMMENT not in await heard_for(stream, seconds)


async def test_lines_are_pinged_where_a_reload_says_so(clock: MockClock) -> None:
    async def records(exchange: Exchange) -> None:
        await exchange.start(200, [("content-type", "application/x-ndjson")])
        await exchange.send(b"{}\n")
        await trio.sleep(7)
        await exchange.finish()

    request = b"GET /records HTTP/1.1\r\nHost: x\r\n\r\n"
    async with running({**HERE, "/records": records}, stream_ping="1m") as server:
        for lines, pinged in ((False, False), (True, True)):
            given = {"server.stream_ping_lines": lines, "timeouts.stream_ping": 2.0}
            await server.reload(ReaperConfig.load(environ={}, overrides=given))
            async with await server.connect(request) as stream:
                await head_of(stream)
                assert (b"1\r\n\n\r\n" in await heard_for(stream, 7.5)) == pinged


async def test_a_stream_whose_client_takes_nothing_is_not_pinged(
    clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(HERE, stream_ping="2s") as server, await server.connect(EVENTS) as stream:
        await head_of(stream)
        (connection,) = server.connections
        monkeypatch.setattr(type(connection.transport), "queued", lambda self: 1)
        assert await heard_for(stream, 7) == b""
        monkeypatch.undo()
        assert COMMENT in await heard_for(stream, 15)


async def test_an_old_stream_is_told_and_its_connection_goes_on(
    clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    settings = {"stream_age": "9s", "limits__max_age_jitter": 0, "server__stream_retry": "2s"}
    async with running(HERE, **settings) as server:
        async with await server.connect(EVENTS) as stream:
            began = trio.current_time()
            await head_of(stream)
            said = b""
            while LAST_CHUNK not in said:
                said += await stream.receive_some()
            assert 9 <= trio.current_time() - began < 11
            assert re.match(rb"d\r\nretry: [2-4]\d{3}\n\n\r\n", said)
            await stream.send_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await head_of(stream)).startswith(b"HTTP/1.1 200 ")
        async with await server.connect(DEAF) as stream:
            began = trio.current_time()
            assert (await rest(stream)).endswith(LAST_CHUNK)
            assert 11 <= trio.current_time() - began < 13
        assert caplog.text.count("stream ended: stream_age, limit 9s") == 2
        assert not len(server.streams)


async def test_at_a_stop_streams_are_told_evenly_and_ended_if_they_go_on(
    clock: MockClock,
) -> None:
    ends: list[float] = []

    async def listen(stream: trio.SocketStream) -> None:
        async with stream:
            assert (await rest(stream)).endswith(LAST_CHUNK)
            ends.append(trio.current_time() - began)

    settings = {"drain": "60s", "drain_window": "20s", "drain_streams": "5s"}
    async with running(HERE, **settings) as server, trio.open_nursery() as nursery:
        told = reaper.stopping()
        streams = [await server.connect(EVENTS) for _ in range(10)]
        await until(lambda: len(server.streams) == 10)
        began = trio.current_time()
        for stream in streams:
            nursery.start_soon(listen, stream)
        nursery.start_soon(server.drain)
        await until(lambda: told, 0.01)  # the loop is told at once
        assert trio.current_time() - began < 1
    late = [end - 2 * number for number, end in enumerate(sorted(ends))]
    assert max(late) - min(late) < 1.5
    assert 0 <= min(late) < 2.5  # an idle connection has `drain_idle`
    async with running(HERE, **settings) as server:
        stream = await server.connect(DEAF)
        await until(lambda: len(server.streams))
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.drain)
            assert (await rest(stream)).endswith(LAST_CHUNK)
            assert 5 <= trio.current_time() - began < 7
            nursery.cancel_scope.cancel()
