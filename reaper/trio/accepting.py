"""The accept loop of every server here.

The rule of this module: *it ends only with its listening socket*; see `reaper.driver.accepting` for what it survives.
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from typing import NoReturn

import trio

from ..driver.accepting import accept_burst


async def accept(
    listening: socket.socket,
    serve: Callable[[socket.socket], object],
    *,
    welcome: Callable[[], Awaitable[object]] | None = None,
    failed: Callable[[OSError], object] | None = None,
) -> NoReturn:
    """Accept from *listening* until cancelled, and leave it open then.

    Accepts in bursts: one connection per scheduling pass starves newcomers when thousands of others keep each pass
    busy. Out of descriptors or memory it pauses instead of failing: the kernel's backlog holds newcomers meanwhile.

    Args:
        listening: Of the standard library; it is made non-blocking.
        serve: Called with each new connection, a non-blocking socket that is *serve*'s to close. Must not block.
        welcome: Awaited before each burst: it may keep the door shut.
        failed: Called with each error that was skipped, or that made it pause.
    Raises:
        OSError: *listening* is of no use any more.
    """
    listening.setblocking(False)
    while True:
        await trio.lowlevel.wait_readable(listening)
        if welcome is not None:
            await welcome()
        burst = accept_burst(listening)
        for connected in burst.accepted:
            serve(connected)
        if failed is not None:
            for error in burst.errors:
                failed(error)
        if burst.pause:
            await trio.sleep(burst.pause)
