"""An echo server with the reaper embedded: what an ordinary trio server looks like with it.

The embedding is `open_reaper`, `watched` and `drain`; everything else is accepting, echoing and counting.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from ssl import SSLContext

import trio

import reaper.trio
from reaper.config import ReaperConfig
from reaper.config.reload import applied, changes
from reaper.errors import ConfigError
from reaper.journal import Journal
from reaper.metrics import exposition, families
from reaper.policy.pressure import Pressure, limits_here

from .status import Desk
from .tls import tls_context
from .workers import Worker

log = logging.getLogger("server_example.echo")


async def echo(stream: trio.abc.Stream) -> None:
    """Send back what comes. It knows nothing of the reaper."""
    try:
        async for data in stream:
            await stream.send_all(data)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # the peer is gone: nothing is left to do for it


class EchoServer:
    """The connections of one process.

    Args:
        config: `timeouts.idle` and TLS.
        watcher: A running reaper.
        nursery: Where the connections that have a task have it.
        lot: Where they are parked while they are silent; None: nowhere.
    Attributes:
        config: In force now.
    """

    def __init__(
        self,
        config: ReaperConfig,
        watcher: reaper.trio.TrioReaper,
        nursery: trio.Nursery,
        lot: reaper.trio.ParkingLot | None,
    ) -> None:
        self.config = config
        self._watcher = watcher
        self._nursery = nursery
        self._lot = lot
        self._tls: SSLContext | None = tls_context(config)
        self._connections: dict[reaper.trio.Connection, None] = {}

    def admit(self, accepted: socket.socket) -> None:
        """Serve one connection from now on."""
        if self._lot is not None:
            self._lot.add(accepted)
        else:
            self._nursery.start_soon(self._handle, accepted)

    async def _handle(self, accepted: socket.socket) -> None:
        stream: trio.abc.Stream = trio.SocketStream(trio.socket.from_stdlib_socket(accepted))
        if self._tls is not None:
            stream = trio.SSLStream(stream, self._tls, server_side=True, https_compatible=True)
        try:
            with self._watcher.watch(stream, self.config.timeouts.idle) as connection:
                self._connections[connection] = None
                try:
                    await echo(reaper.trio.WatchedStream(stream, connection))
                finally:
                    del self._connections[connection]
        finally:
            await trio.aclose_forcefully(stream)

    def reload(self, config: ReaperConfig) -> None:
        """Put what is live of *config* in force, also on open connections: O(open)."""
        for change in changes(self.config, config):
            log.warning("reload: %s", change)
        self.config = applied(self.config, config)
        idle = self.config.timeouts.idle
        if self._lot is not None:
            self._lot.retime(idle)
        for connection in self._connections:
            connection.retime(idle)


async def serve(
    worker: Worker,
    config: ReaperConfig,
    load: Callable[[], ReaperConfig],
    journal: Journal | None = None,
    *,
    parked: bool = False,
    pressed: bool = False,
) -> None:
    """Serve until told to stop, then drain: idle connections end at once, the rest by the deadline.

    With *parked* a connection costs no task while it is silent. With *pressed* the longest silent have to go when
    descriptors or memory run short, and no connection is accepted when they have run out.
    """
    async with (
        reaper.trio.open_reaper(config, journal=journal, listener="echo") as r,
        trio.open_nursery() as connections,
        trio.open_nursery() as helpers,
        AsyncExitStack() as stack,
    ):
        r.driver.phase = worker.rhythm.phase
        lot = None
        if parked:
            lot = await stack.enter_async_context(r.parking_lot(echo, config.timeouts.idle, tls=tls_context(config)))
        server = EchoServer(config, r, connections, lot)
        helpers.start_soon(worker.count, partial(_publish, worker, r))
        helpers.start_soon(_reloads, worker, server, load)
        pressure = Pressure(limits_here()) if pressed else None
        if worker.board.listening is not None:  # else none can ask
            helpers.start_soon(Desk(worker.board, worker.index, "echo", r, lambda: _metrics(r, pressure), pressure).run)
        if pressure is not None:
            helpers.start_soon(reaper.trio.relieve, r, pressure)
        await worker.accept(server.admit, r.welcome)
        if len(r):
            await trio.sleep(min(config.timeouts.drain_idle, config.timeouts.drain))  # bytes may be on their way
        await r.drain(config.timeouts.drain, config.timeouts.drain_window)
        if journal is not None:
            journal.drain(reaper.trio.journal_clock()())
        _publish(worker, r)
        helpers.cancel_scope.cancel()
        connections.cancel_scope.cancel()


def _metrics(r: reaper.trio.TrioReaper, pressure: Pressure | None) -> str:
    more = () if pressure is None else pressure.families()
    return exposition([({}, (*families(r.statistics()), *more))])


async def _reloads(worker: Worker, server: EchoServer, load: Callable[[], ReaperConfig]) -> None:
    async for _ in worker.reloads():
        try:
            server.reload(load())
        except ConfigError as error:
            for line in (*str(error).splitlines(), "nothing was changed"):
                log.error("reload: %s", line)


def _publish(worker: Worker, r: reaper.trio.TrioReaper) -> None:
    statistics = r.statistics()
    core = statistics.core
    counters = worker.counters
    counters["open"] = core.registered
    counters["accepted"] = core.registered + core.expired + core.released
    counters["reaped"] = core.expired
    counters.note(statistics)
