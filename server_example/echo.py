"""An echo server with the reaper embedded: a parking lot, and `drain`. The rest is
echoing.

A connection costs no task while it is silent. If you want a task for each connection,
or have a listener of trio's, give the same handler to `reaper.trio.serve_tcp` or
`TrioReaper.watched`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

import reaper.trio
from reaper.config import ReaperConfig
from reaper.metrics import Family

from .listening import Admit, tls_context
from .status import Desk


async def echo(stream: trio.abc.Stream) -> None:
    """Send back what comes. The handler knows nothing of the reaper."""
    async for data in stream:
        await stream.send_all(data)


class EchoServer:
    """The connections of one process.

    Attributes:
        config: The configuration in force now.
        watcher: The reaper that closes what is silent.
        leaving: Whether newcomers are still served, but should go elsewhere: SIGTERM
            has come.
        desk: Answers for all workers.
    """

    kind = "echo"

    def __init__(self, config: ReaperConfig, watcher: reaper.trio.TrioReaper) -> None:
        self.config = config
        self.watcher = watcher
        self.leaving = False
        self.desk = Desk(self)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Admit]:
        """A function that serves an accepted connection, for the length of the
        block.
        """
        timeouts, tls = self.config.timeouts, tls_context(self.config)
        async with self.watcher.parking_lot(echo, timeouts.idle, tls=tls) as self._lot:
            yield self._lot.add

    async def reload(self, config: ReaperConfig) -> None:
        """Put *config* in force, also on open connections. Cost: O(open
        connections).
        """
        self.config = config
        self._lot.retime(config.timeouts.idle)

    async def drain(self) -> None:
        """End every connection by `timeouts.drain`. Idle ones are closed after
        `drain_idle` seconds, for bytes may be on their way to them. Stop accepting
        first.
        """
        timeouts = self.config.timeouts
        if len(self.watcher):
            await trio.sleep(min(timeouts.drain_idle, timeouts.drain))
        await self.watcher.drain(timeouts.drain, timeouts.drain_window)

    def figures(self) -> dict[str, float]:
        """The counters `open`, `accepted` and `reaped`.

        They are read from the leases: every connection has one, and nothing else has
        any.
        """
        core = self.watcher.statistics().core
        accepted = core.registered + core.expired + core.released
        return {"open": core.registered, "accepted": accepted, "reaped": core.expired}

    def families(self) -> tuple[Family, ...]:
        """Metrics besides those of the reaper: the echo server has none."""
        return ()

    def not_accepted(self, error: OSError) -> None:
        """Do nothing about an *error* of accept(2): the accept loop tries again by
        itself.
        """
