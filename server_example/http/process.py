"""One worker process of the HTTP server: from its first accept to the end of its drain.

One rule: *a configuration that cannot be used changes nothing*, and is reported line by line.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial

import trio

import reaper.trio
from reaper.config import ReaperConfig
from reaper.errors import ConfigError
from reaper.journal import Journal
from reaper.policy.pressure import Pressure, limits_here

from ..status import Desk
from ..workers import Worker
from .server import HttpServer
from .views import metrics

log = logging.getLogger("server_example.http")


async def serve(
    worker: Worker,
    config: ReaperConfig,
    load: Callable[[], ReaperConfig],
    journal: Journal | None = None,
    *,
    parked: bool = False,
    pressed: bool = False,
) -> None:
    """One worker process: serve until told to stop, then drain.

    Args:
        worker: Listening sockets, counters, and the word to stop.
        config: What to begin with.
        load: Reads the configuration anew when SIGHUP comes.
        journal: Where the life of every connection is written; None: nowhere.
        parked: Whether a connection gives up its task while it is silent between two requests.
        pressed: Whether the longest silent go, and newcomers wait in the backlog, as descriptors or memory run short.
    Raises:
        ConfigError: certificate and key cannot be used.
    """
    async with (
        reaper.trio.open_reaper(config, journal=journal, listener="http") as watcher,
        trio.open_nursery() as handlers,
        trio.open_nursery() as helpers,
        AsyncExitStack() as stack,
    ):
        watcher.driver.phase = worker.rhythm.phase
        server = HttpServer(config, watcher)
        pressure = Pressure(limits_here()) if pressed else None
        server.desk = Desk(worker.board, worker.index, "http", watcher, lambda: metrics(server, pressure), pressure)
        if parked:
            await stack.enter_async_context(server.parking())
        helpers.start_soon(worker.count, partial(_publish, worker, server))
        helpers.start_soon(_reloads, worker, server, load)
        helpers.start_soon(server.desk.run)
        if pressure is not None:
            helpers.start_soon(reaper.trio.relieve, watcher, pressure)
        await worker.accept(server.admitting(handlers), watcher.welcome, server.not_accepted)
        await server.drain()
        if journal is not None:
            journal.drain(reaper.trio.journal_clock()())
        _publish(worker, server)
        helpers.cancel_scope.cancel()
        handlers.cancel_scope.cancel()


async def _reloads(worker: Worker, server: HttpServer, load: Callable[[], ReaperConfig]) -> None:
    async for _ in worker.reloads():
        await reload_from(server, load)


async def reload_from(server: HttpServer, load: Callable[[], ReaperConfig]) -> bool:
    """Reload what *load* returns; a configuration that cannot be used changes nothing and is said. True: reloaded."""
    try:
        config = load()
    except ConfigError as error:
        for line in str(error).splitlines():
            log.error("reload: %s", line)
        log.error("reload: nothing was changed")
        return False
    await server.reload(config)
    return True


def _publish(worker: Worker, server: HttpServer) -> None:
    worker.counters["open"] = server.open
    worker.counters["accepted"] = server.counters.opened
    worker.counters["reaped"] = sum(server.counters.reaped.values())
    worker.counters.note(server.watcher.statistics())
