"""One worker process of either server: from its first accept to the end of its drain.

A configuration that cannot be used changes nothing, and is reported line by line.
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

from .echo import EchoServer
from .http import HttpServer
from .status import Desk
from .workers import Worker

log = logging.getLogger("server_example")


Server = EchoServer | HttpServer
"""The connections of one process; the two have the same methods."""


async def serve(
    kind: str,
    worker: Worker,
    config: ReaperConfig,
    load: Callable[[], ReaperConfig],
    journal: Journal | None = None,
    *,
    pressed: bool = False,
) -> None:
    """Serve until told to stop, then drain.

    Args:
        kind: "echo" or "http".
        worker: Listening sockets, counters, and the word to stop.
        config: What to begin with.
        load: Reads the configuration anew when SIGHUP comes.
        journal: Where the life of every connection is written; None: nowhere.
        pressed: Whether the longest silent go, and newcomers wait in the backlog, as descriptors or memory run short.
    Raises:
        ConfigError: certificate and key cannot be used.
    """
    async with (
        reaper.trio.open_reaper(config, journal=journal, listener=kind) as watcher,
        trio.open_nursery() as helpers,
        AsyncExitStack() as stack,
    ):
        watcher.driver.phase = worker.phase
        pressure = Pressure(limits_here()) if pressed else None
        server: Server = EchoServer(config, watcher) if kind == "echo" else HttpServer(config, watcher)
        server.desk = Desk(server, worker.doors, worker.index, pressure)
        admit = await stack.enter_async_context(server.running())
        helpers.start_soon(worker.count, partial(_publish, worker, server, watcher))
        helpers.start_soon(_reloads, worker, server, load)
        helpers.start_soon(server.desk.run)
        if pressure is not None:
            helpers.start_soon(reaper.trio.relieve, watcher, pressure)

        def leave() -> float:
            server.leaving = True
            return server.config.timeouts.drain_delay

        await worker.accept(admit, watcher.welcome, server.not_accepted, leave)
        await server.drain()
        if journal is not None:
            journal.drain(reaper.trio.journal_clock()())
        _publish(worker, server, watcher)
        helpers.cancel_scope.cancel()


async def _reloads(worker: Worker, server: Server, load: Callable[[], ReaperConfig]) -> None:
    async for _ in worker.reloads():
        await reload_from(server, load)


async def reload_from(server: Server, load: Callable[[], ReaperConfig]) -> bool:
    """Reload what *load* returns; a configuration that cannot be used changes nothing and is said. True: reloaded."""
    try:
        config = load()
    except ConfigError as error:
        for line in (*str(error).splitlines(), "nothing was changed"):
            log.error("reload: %s", line)
        return False
    await server.reload(config)
    return True


def _publish(worker: Worker, server: Server, watcher: reaper.trio.TrioReaper) -> None:
    for name, value in server.figures().items():
        worker.counters[name] = value
    worker.counters.note(watcher.statistics())
