"""An echo server with the reaper embedded. The embedding is a parking lot and `drain`; the rest is
echoing.

Its connections cost no task while they are silent. Where they shall have one, or on a listener of
trio's, the same handler goes through `reaper.trio.serve_tcp` or `TrioReaper.watched`.
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
    """Send back what comes. It knows nothing of the reaper."""
    async for data in stream:
        await stream.send_all(data)


class EchoServer:
    """The connections of one process.

    Attributes:
        config: In force now.
        watcher: Closes what is silent.
        leaving: Whether newcomers are served, but should not come: SIGTERM has been sent.
        desk: Where all workers are answered for.
    """

    kind = "echo"

    def __init__(self, config: ReaperConfig, watcher: reaper.trio.TrioReaper) -> None:
        self.config = config
        self.watcher = watcher
        self.leaving = False
        self.desk = Desk(self)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Admit]:
        """A function that serves an accepted connection, for the length of the block."""
        timeouts, tls = self.config.timeouts, tls_context(self.config)
        async with self.watcher.parking_lot(echo, timeouts.idle, tls=tls) as self._lot:
            yield self._lot.add

    async def reload(self, config: ReaperConfig) -> None:
        """Put *config* in force, also on open connections. O(open)."""
        self.config = config
        self._lot.retime(config.timeouts.idle)

    async def drain(self) -> None:
        """End every connection by `timeouts.drain`; the idle after `drain_idle`: bytes may be on
        their way.
        """
        timeouts = self.config.timeouts
        if len(self.watcher):
            await trio.sleep(min(timeouts.drain_idle, timeouts.drain))
        await self.watcher.drain(timeouts.drain, timeouts.drain_window)

    def figures(self) -> dict[str, float]:
        """`open`, `accepted` and `reaped`. Every connection has one lease, and nothing else has
        any.
        """
        core = self.watcher.statistics().core
        accepted = core.registered + core.expired + core.released
        return {"open": core.registered, "accepted": accepted, "reaped": core.expired}

    def families(self) -> tuple[Family, ...]:
        """Metrics of its own: none."""
        return ()

    def not_accepted(self, error: OSError) -> None:
        """What accept(2) said: it waits for better times."""
