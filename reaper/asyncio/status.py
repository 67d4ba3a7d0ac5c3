"""The status of an asyncio program, for `python -m reaper top --connect` and for
Prometheus: `/status` and `/metrics`.

The rule of this module: *nothing is counted until it is asked for*. Who is connected is
for the operator alone: it listens on loopback unless it is told otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from .. import status
from ..driver.reaper import Reaper
from ..driver.status import pages_of
from ..policy.pressure import Pressure


async def serve_status(
    reaper: Reaper,
    port: int,
    *,
    host: str = "127.0.0.1",
    name: str = "asyncio",
    pressure: Pressure | None = None,
) -> asyncio.Server:
    """Serve `/status` (JSON, for `python -m reaper top`) and `/metrics` (Prometheus)
    until the result is closed.

    Args:
        reaper: Whose connections; that of a keeper is `keeper.reaper`.
        port, host: Where to listen.
        name: What the server is called there.
        pressure: What `relieve` judges by, to be shown as well.
    Raises:
        OSError: the port cannot be had.
    """
    return await asyncio.start_server(partial(answer, pages_of(reaper, name, pressure)), host, port)


async def answer(
    pages: Mapping[str, status.Page], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Answer one request from *pages*, by path, and close the connection."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(status.PATIENCE):
            received = b""
            while not status.complete(received) and (data := await reader.read(4096)):
                received += data
            if received:
                writer.write(await status.answer(received, pages))
                await writer.drain()
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
