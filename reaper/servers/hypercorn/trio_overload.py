"""The answer to one connection too many, on trio. On asyncio that is
`asyncio.overload`: its rule and its words hold here as well.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import trio

from ...asyncio.overload import BUSY, HEAD_BYTES, REFUSALS, answer_to, head_of
from ...driver.sockets import reset_on_close
from ...trio.connection import socket_of
from ...trio.reaper import TrioReaper


async def refuse(reaper: TrioReaper, stream: Any) -> None:
    """Refuse the connection of *stream*, which has just been accepted, and close it."""
    reaper.refused += 1
    if reaper.refusing >= REFUSALS:
        reset_on_close(socket_of(stream))
        await trio.aclose_forcefully(stream)
        return
    reaper.refusing += 1
    seconds = reaper.config.timeouts.linger or reaper.core.tick
    try:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            with trio.move_on_after(seconds):
                await _answer(stream)
                return
            with trio.move_on_after(reaper.core.tick):
                await stream.send_all(BUSY)  # to a client that has not said what it wants
    finally:
        reaper.refusing -= 1
        await trio.aclose_forcefully(stream)


async def _answer(stream: Any) -> None:
    heard = b""
    while (head := head_of(heard)) is None:
        more = await stream.receive_some(HEAD_BYTES)
        if not more:
            return
        heard += more
    await stream.send_all(answer_to(head))
    if isinstance(stream, trio.abc.HalfCloseableStream):
        await stream.send_eof()
        while await stream.receive_some(HEAD_BYTES):
            pass  # read, and thrown away: unread bytes would make the close a reset
    else:  # TLS
        await stream.aclose()
