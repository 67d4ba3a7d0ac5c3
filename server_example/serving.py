"""One worker process of either server: from its first accept to the end of its drain.

A reload with a configuration that cannot be used changes nothing, and is reported line
by line.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from functools import partial

import trio

import reaper.trio
from reaper.config import ReaperConfig
from reaper.config.settings import DEFAULT, applied, changes
from reaper.errors import ConfigError
from reaper.journal import Journal
from reaper.policy.pressure import Pressure, limits_here

from .echo import EchoServer
from .http import HttpServer
from .listening import empty, turn_away
from .status import Desk
from .workers import Worker

log = logging.getLogger("server_example")

HANDSHAKE = 0.1
"""Seconds for which handshakes that have begun as the server leaves may go on, to be
accepted.
"""


def tames(config: ReaperConfig) -> bool:
    """Whether the collector of this process visits only what is new. Nothing here makes
    circles that would have to be found, so it does unless `reaper.tame_gc` was set.
    """
    return config.reaper.tame_gc or config.origin("reaper.tame_gc") == DEFAULT


Server = EchoServer | HttpServer
"""The connections of one process; the two have the same methods."""


async def serve(
    kind: str,
    started_with: ReaperConfig,
    load: Callable[[], ReaperConfig],
    directory: str | None,
    worker: Worker,
) -> None:
    """Serve until told to stop, then drain.

    Args:
        kind: "echo" or "http".
        started_with: What was in force when the server started.
        load: Reads the configuration anew: now, and when SIGHUP comes.
        directory: Where the life of every connection is written; None: nowhere.
        worker: Listening sockets, counters, and the word to stop.
    Raises:
        ConfigError: certificate and key cannot be used.
    """
    config = started_with
    # The other workers may have reloaded since the server started. If they refused what
    # is there now, they have said so.
    with suppress(ConfigError):
        config = applied(started_with, load())
    async with AsyncExitStack() as stack:
        journal = None
        if directory is not None:
            # The journal is opened here and not before the fork, because its writer is
            # a thread.
            journal = Journal(
                directory, tick=config.reaper.tick, clock_ns=reaper.trio.journal_clock()
            )
            stack.enter_context(journal)
        watcher = await stack.enter_async_context(
            reaper.trio.open_reaper(config, journal=journal, listener=kind, tame_gc=tames(config))
        )
        helpers = await stack.enter_async_context(trio.open_nursery())
        watcher.driver.phase = worker.phase
        # As descriptors or memory run short, newcomers wait in the backlog.
        pressure = Pressure(limits_here()) if config.reaper.pressure else None
        server: Server = (
            EchoServer(config, watcher) if kind == "echo" else HttpServer(config, watcher)
        )
        server.desk = Desk(server, worker.doors, worker.index, pressure)
        admit = await stack.enter_async_context(server.running())
        worker.publish = partial(_publish, worker, server)
        worker.reload = partial(reload_from, server, load)
        helpers.start_soon(server.desk.run)
        if pressure is not None:
            helpers.start_soon(reaper.trio.relieve, watcher, pressure)

        accept = partial(
            reaper.trio.accepting.accept, welcome=watcher.welcome, failed=server.not_accepted
        )
        async with trio.open_nursery() as accepting:
            for each in worker.listening:
                accepting.start_soon(accept, each, admit)
            worker.counters["ready"] = 1
            await worker.stop.wait()
            if worker.replaced:
                # The successor accepts newcomers already, and answers for this worker's
                # place.
                server.desk.close()
            else:
                server.leaving = True
                await trio.sleep(server.config.timeouts.drain_delay)
            if worker.last:
                for each in worker.listening:
                    turn_away(each)
                await trio.sleep(HANDSHAKE)
            accepting.cancel_scope.cancel()
        for each in worker.listening:
            empty(each, admit)
        await server.drain()
        if journal is not None:
            journal.drain(reaper.trio.journal_clock()())
        worker.publish()
        helpers.cancel_scope.cancel()


async def reload_from(server: Server, load: Callable[[], ReaperConfig]) -> bool:
    """Put in force what *load* returns, as far as it may change while a server runs.

    A configuration that cannot be used changes nothing, and is logged. Returns whether
    it was used.
    """
    try:
        config = load()
    except ConfigError as error:
        for line in (*str(error).splitlines(), "nothing was changed"):
            log.error("reload: %s", line)
        return False
    for path, change in changes(server.config, config).items():
        log.warning("reload: %s: %s", path, change)
    await server.reload(applied(server.config, config))
    return True


def _publish(worker: Worker, server: Server) -> None:
    now = server.watcher.statistics()
    loop = {
        "averted": now.core.averted,
        "max_lag": now.max_lag,
        "stalls": now.stalls,
        "reaper_cpu": now.cpu,
    }
    worker.counters.publish({**server.figures(), **loop})
