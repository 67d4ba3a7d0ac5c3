"""Claims: a stalled server closes nobody whose bytes came in time, and nonsense leaves
nothing behind.

Sockets are real. A stall is a jump of virtual time while the loop is held: a busy
machine stalls a loop as well, and no test can tell how often. Nonsense comes in real
time, from threads.
"""

from __future__ import annotations

import os
from itertools import count, islice

import pytest
import trio
from trio.testing import MockClock

from scripts.campaign.fuzz import cases, run
from server_example.http.connection import Exchange
from server_example.http.routes import ROUTES
from tests.helpers.http_world import PATIENCE, running

TICK = 0.05
TIMEOUT = 0.8  # seconds, of every phase
STALL = 1.6  # two timeouts
EACH = 10  # connections per phase
ANSWERS = 50  # to nonsense: fewer would prove little
SEED = 20240607

SAID = {
    "first_byte": (b"", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
    "headers": (b"GET / HTTP/1.1\r\n", b"Host: x\r\n\r\n"),
    "body": (b"POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\nabc", b"def"),
    "keep_alive": (
        b"GET /sleep?s=0 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    ),
    "tunnel": (
        b"GET /tunnel HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n",
        b"ping",
    ),
}
"""Phase -> what brings a connection there, and what it sends while the loop is
stalled.
"""

ANSWERED_FIRST = ("keep_alive", "tunnel")  # phases that begin with an answer


@pytest.fixture
def clock() -> MockClock:
    """Jumps when every task waits; loopback has long delivered by then."""
    return MockClock(autojump_threshold=0.01)


@pytest.mark.trio
async def test_a_stalled_loop_loses_no_request_in_any_phase(
    clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def block(exchange: Exchange) -> None:
        """Hold the loop, as a careless route would; the clients go on meanwhile."""
        for phase, client in clients:
            os.write(client.socket.fileno(), SAID[phase][1])
        clock.jump(STALL)
        await exchange.respond(200, b"", "text/plain")

    async with running(
        {**ROUTES, "/block": block}, **dict.fromkeys(SAID, TIMEOUT), reaper__tick=TICK
    ) as server:
        clients = [
            (phase, await server.connect(SAID[phase][0])) for phase in SAID for _ in range(EACH)
        ]
        for phase, client in clients:
            if phase in ANSWERED_FIRST:
                await client.receive_some()
        async with await server.connect(b"GET /block HTTP/1.1\r\nHost: x\r\n\r\n"):
            for phase, client in clients:
                with trio.fail_after(PATIENCE):
                    answer = await client.receive_some()
                assert answer.startswith(b"ping" if phase == "tunnel" else b"HTTP/1.1 200 "), (
                    phase,
                    answer,
                )
                await client.aclose()
        assert server.watcher.statistics().stalls >= 1
        assert dict(server.lot.reaped) == {}
    assert "the event loop stalled" in caplog.text


@pytest.mark.trio
async def test_a_peer_is_not_charged_for_the_time_in_which_the_loop_was_stalled(
    clock: MockClock,
) -> None:
    upload = b"POST /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 3000\r\n\r\n"
    limits = {"limits__min_in_rate": 1000, "limits__min_in_grace": TIMEOUT}
    async with (
        running(reaper__tick=TICK, **limits) as server,
        await server.connect(upload) as stream,
    ):
        while not server.counters.requests:
            await trio.sleep(TICK / 5)
        clock.jump(STALL)
        for _ in range(30):
            await stream.send_all(b"x" * 100)
            await trio.sleep(TICK)
        with trio.fail_after(PATIENCE):
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 ")


def test_a_fuzz_run_can_be_repeated() -> None:
    assert list(islice(cases(1), 300)) == list(islice(cases(1), 300))
    assert list(islice(cases(1), 300)) != list(islice(cases(2), 300))


@pytest.mark.slow
@pytest.mark.trio
async def test_seconds_of_nonsense_leave_nothing_behind() -> None:
    timeouts = (
        "first_byte",
        "headers",
        "body",
        "keep_alive",
        "write",
        "tunnel",
        "half_closed",
        "linger",
    )
    async with running(**dict.fromkeys(timeouts, 0.2), reaper__tick=TICK) as server:
        descriptors = len(os.listdir("/proc/self/fd"))
        answered = 0
        with trio.fail_after(PATIENCE):
            for seed in count(SEED, 4):  # on a busy machine few cases have their answer in time
                answered += (await trio.to_thread.run_sync(run, server.address, 5.0, seed))[1]
                if answered >= ANSWERS:
                    break
        await server.settled()
        assert server.counters.closed > answered
        assert server.counters.refused == 0
        assert len(os.listdir("/proc/self/fd")) <= descriptors  # what others held may go
