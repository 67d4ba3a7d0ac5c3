"""The status of an asyncio program, for `python -m reaper top --connect` and for Prometheus: `/status` and `/metrics`.

The rule of this module: *nothing is counted until it is asked for*. Who is connected is for the operator alone: it
listens on loopback unless it is told otherwise.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from .. import status
from ..driver.survey import survey
from ..metrics import CONTENT_TYPE, exposition, families
from ..policy.pressure import Pressure
from .reaper import AsyncioReaper

log: logging.Logger = logging.getLogger("reaper")


async def survey_of(reaper: AsyncioReaper, pressure: Pressure | None = None, worker: int = 0) -> dict[str, Any]:
    """What this process reports of itself now; the loop runs in between."""
    steps = survey(reaper.driver, reaper.statistics(), pressure, worker)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: dict[str, Any] = done.value
            return found
        await asyncio.sleep(0)


async def serve_status(
    reaper: AsyncioReaper,
    port: int,
    *,
    host: str = "127.0.0.1",
    name: str = "asyncio",
    pressure: Pressure | None = None,
) -> asyncio.Server:
    """Serve `/status` (JSON, for `python -m reaper top`) and `/metrics` (Prometheus) until the result is closed.

    Args:
        reaper: Whose connections.
        port, host: Where to listen.
        name: What the server is called there.
        pressure: What `relieve` judges by, to be shown as well.
    Raises:
        OSError: the port cannot be had.
    """

    async def show_status() -> tuple[str, bytes]:
        return status.JSON, status.document(name, [await survey_of(reaper, pressure)])

    async def show_metrics() -> tuple[str, bytes]:
        more = () if pressure is None else pressure.families()
        return CONTENT_TYPE, exposition([({}, (*families(reaper.statistics()), *more))]).encode()

    pages = {"/status": show_status, "/metrics": show_metrics}
    return await asyncio.start_server(partial(answer, pages), host, port)


async def answer(pages: Mapping[str, status.Page], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one request from *pages*, by path, and close the connection."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(status.PATIENCE):
            received = b""
            while not status.complete(received) and (data := await reader.read(4096)):
                received += data
            if received:
                try:
                    response = await status.answer(received, pages)
                except Exception:
                    log.exception("a status page failed")  # looking must not end the server
                    response = status.FAILED
                writer.write(response)
                await writer.drain()
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
