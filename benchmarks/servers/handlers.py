"""Echo handlers with a timeout of *idle* seconds, that the benchmarks compare with reaper's own ways to serve."""

from __future__ import annotations

import trio

import reaper.trio


async def echo_touching(idle: float, r: reaper.trio.TrioReaper, stream: trio.abc.Stream) -> None:
    """Inside `watch()`, touching by hand."""
    with r.watch(stream, idle) as connection:
        touch = connection.touch
        while data := await stream.receive_some(4096):
            touch()
            await stream.send_all(data)


async def echo_move_on(idle: float, stream: trio.abc.Stream) -> None:
    """What trio's users do without a reaper."""
    while True:
        with trio.move_on_after(idle) as scope:
            data = await stream.receive_some(4096)
        if scope.cancelled_caught or not data:
            return
        await stream.send_all(data)
