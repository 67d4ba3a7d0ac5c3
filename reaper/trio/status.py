"""The status of a trio program, for `python -m reaper top --connect` and for
Prometheus: `/status` and `/metrics`.

The rule of this module: *nothing is counted until it is asked for*. Who is connected is
not for everyone to see: it listens on loopback unless it is told otherwise.
"""

from __future__ import annotations

import functools
import socket
from collections.abc import Mapping
from typing import NoReturn

import trio

from .. import status
from ..driver.reaper import Reaper
from ..driver.status import pages_of
from ..policy.pressure import Pressure


async def serve_status(
    reaper: Reaper,
    port: int,
    *,
    host: str = "127.0.0.1",
    name: str = "trio",
    pressure: Pressure | None = None,
    task_status: trio.TaskStatus[list[trio.SocketListener]] = trio.TASK_STATUS_IGNORED,
) -> NoReturn:
    """Serve `/status` (JSON, for `python -m reaper top`) and `/metrics` (Prometheus) of
    *reaper* until cancelled.

    Args:
        port, host, task_status: As in `trio.serve_tcp`, but on loopback.
        name: What the server is called there.
        pressure: What `relieve` judges by, to be shown as well.
    Raises:
        OSError: the port cannot be had.
    """
    handler = functools.partial(answer, pages=pages_of(reaper, name, pressure))
    listeners = await trio.open_tcp_listeners(port, host=host)
    await trio.serve_listeners(handler, listeners, task_status=task_status)


async def serve_pages(listening: socket.socket, pages: Mapping[str, status.Page]) -> NoReturn:
    """Answer every request that *listening* accepts from *pages*, by path, until
    cancelled.
    """
    listening.setblocking(False)
    listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
    await trio.serve_listeners(functools.partial(answer, pages=pages), [listener])


async def answer(stream: trio.abc.Stream, pages: Mapping[str, status.Page]) -> None:
    """Answer one request on *stream*, and close it."""
    with trio.move_on_after(status.PATIENCE):
        try:
            received = b""
            while not status.complete(received):
                data = await stream.receive_some()
                if not data:
                    return
                received += data
            await stream.send_all(await status.answer(received, pages))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            await trio.aclose_forcefully(stream)
