"""uvicorn and aiohttp in a thread of this process, guarded."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import uvicorn
from aiohttp import web

import reaper.aiohttp
from reaper.config import ReaperConfig
from tests.helpers.hypercorn_here import Here, logged
from tests.helpers.server_process import wait_until


@contextmanager
def uvicorn_here(
    protocol: Any, log: Path, application: Any, config: ReaperConfig
) -> Iterator[Here]:
    """uvicorn with *application* and the guarded *protocol*, until the end of the block.

    Args:
        log: The file that gets what is logged.
    """
    settings = {"http": protocol.configured(config), "loop": "asyncio", "log_config": None}
    server = uvicorn.Server(uvicorn.Config(application, port=0, **settings))

    def stop() -> None:
        server.should_exit = True

    with logged(log):
        thread = threading.Thread(target=server.run)
        thread.start()
        wait_until(lambda: server.started)
        try:
            yield Here(server.servers[0].sockets[0].getsockname(), log, stop)
        finally:
            stop()
            thread.join()


@contextmanager
def aiohttp_here(app: web.Application, log: Path, config: ReaperConfig) -> Iterator[Here]:
    """`reaper.aiohttp.run_app` with *app*, until the end of the block.

    Args:
        log: The file that gets what is logged.
    """
    listening = socket.create_server(("127.0.0.1", 0), backlog=100)
    loops: list[asyncio.AbstractEventLoop] = []
    started = threading.Event()

    async def note(app: web.Application) -> None:
        loops.append(asyncio.get_running_loop())
        started.set()

    def end() -> NoReturn:
        raise web.GracefulExit  # what a signal raises there

    def stop() -> None:
        if not loops[0].is_closed():
            loops[0].call_soon_threadsafe(end)

    def run() -> None:
        reaper.aiohttp.run_app(app, config=config, sock=listening, handle_signals=False, print=None)

    app.on_startup.append(note)
    with logged(log):
        thread = threading.Thread(target=run)
        thread.start()
        started.wait()
        try:
            yield Here(listening.getsockname(), log, stop)
        finally:
            stop()
            thread.join()
