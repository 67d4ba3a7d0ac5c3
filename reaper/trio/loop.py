"""Letting trio's loop run: the one place that says how many passes it takes until what came has been read."""

from __future__ import annotations

import trio


async def let_the_loop_read() -> None:
    """Return when every task that waits for a socket with bytes has had the chance to read them.

    That takes two scheduling passes: in the pass that finds the socket readable, tasks run in random order, the caller
    perhaps first.
    """
    await trio.lowlevel.checkpoint()
    await trio.lowlevel.checkpoint()
