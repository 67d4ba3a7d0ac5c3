"""A test of your own server: its timeouts of half a minute pass in milliseconds, on
trio's MockClock.

python -m pytest examples/testing_my_server.py
python -m examples.testing_my_server            (without pytest)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio
from trio.testing import MockClock, memory_stream_pair

import reaper.trio

IDLE, TICK = 30.0, 1.0


async def echo(stream: reaper.trio.WatchedStream) -> None:
    """Your handler."""
    async for data in stream:
        await stream.send_all(data)


async def served(client_does: Callable[[trio.abc.Stream], Awaitable[None]]) -> float:
    """Serve one client that does that; the seconds until its connection is closed."""
    async with reaper.trio.open_reaper(tick=TICK) as r, trio.open_nursery() as nursery:
        ours, theirs = memory_stream_pair()
        nursery.start_soon(client_does, theirs)
        begun = trio.current_time()
        async with ours:
            await r.watched(echo, idle=IDLE)(ours)
        return trio.current_time() - begun


def test_a_silent_client_is_closed_after_its_timeout_and_at_most_a_tick_later() -> None:
    async def is_silent(stream: trio.abc.Stream) -> None:
        pass

    seconds = trio.run(served, is_silent, clock=MockClock(autojump_threshold=0))
    assert IDLE <= seconds <= IDLE + TICK


def test_a_client_that_speaks_every_20_seconds_stays() -> None:
    async def speaks(stream: trio.abc.Stream) -> None:
        for _ in range(100):
            await trio.sleep(20)
            await stream.send_all(b"x")
            assert await stream.receive_some() == b"x"

    seconds = trio.run(served, speaks, clock=MockClock(autojump_threshold=0))
    assert 2000 + IDLE <= seconds <= 2000 + IDLE + TICK


if __name__ == "__main__":
    test_a_silent_client_is_closed_after_its_timeout_and_at_most_a_tick_later()
    test_a_client_that_speaks_every_20_seconds_stays()
    print("both hold")
