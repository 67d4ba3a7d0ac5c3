"""Claims about the echo server itself, in virtual time: what its handler and its drain
do.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest
import trio
import trio.testing

import reaper.trio
from reaper.config import ReaperConfig
from server_example.echo import EchoServer

CONNECTIONS = 1280


async def drained(window: str) -> list[float]:
    """When each of many idle connections is closed, in seconds from the start of a
    drain.
    """
    settings = {"timeouts.drain_window": window, "timeouts.drain_idle": "0s", "timeouts.drain": 60}
    config = ReaperConfig.load(environ={}, overrides=settings)
    ends: list[float] = []

    async def closed(end: trio.SocketStream) -> None:
        assert await end.receive_some() == b""
        ends.append(trio.current_time())

    with ExitStack() as sockets:
        async with (
            reaper.trio.open_reaper(config) as watcher,
            trio.open_nursery() as nursery,
        ):
            server = EchoServer(config, watcher)
            async with server.running() as admit:
                for _ in range(CONNECTIONS):
                    ours, theirs = socket.socketpair()
                    sockets.callback(theirs.close)
                    admit(ours)
                    end = trio.SocketStream(trio.socket.from_stdlib_socket(theirs))
                    nursery.start_soon(closed, end)
                await trio.testing.wait_all_tasks_blocked(0.01)
                start = trio.current_time()
                await server.drain()
                await trio.testing.wait_all_tasks_blocked(0.01)
    return [end - start for end in ends]


@pytest.mark.trio
async def test_a_drain_closes_idle_connections_spread_over_its_window(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ends = await drained("20s")
    assert len(ends) == CONNECTIONS
    assert 17 <= max(ends) <= 21
    counts = [sum(second <= end < second + 1 for end in ends) for second in range(21)]
    assert max(counts) <= CONNECTIONS / 5


@pytest.mark.trio
async def test_without_a_window_a_drain_closes_idle_connections_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ends = await drained("0s")
    assert len(ends) == CONNECTIONS
    assert max(ends) <= 1
