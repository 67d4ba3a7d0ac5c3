"""An echo server with the reaper embedded: what an ordinary trio server looks like with it.

The embedding is `open_reaper`, `watched` and `drain`; everything else is accepting, echoing and counting.
"""

from __future__ import annotations

from contextlib import AsyncExitStack

import trio

import reaper.trio
from reaper.config import ReaperConfig
from reaper.journal import Journal
from reaper.policy.pressure import Pressure, limits_here

from .workers import Worker


async def echo(stream: trio.abc.Stream) -> None:
    """Send back what comes. It knows nothing of the reaper."""
    try:
        async for data in stream:
            await stream.send_all(data)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # the peer is gone: nothing is left to do for it


async def serve(
    worker: Worker, config: ReaperConfig, journal: Journal | None = None, *, parked: bool = False, pressed: bool = False
) -> None:
    """Serve until told to stop, then drain: idle connections end at once, the rest by the deadline.

    With *parked* a connection costs no task while it is silent. With *pressed* the longest silent have to go when
    descriptors or memory run short, and nobody is accepted when they have run out.
    """
    async with (
        reaper.trio.open_reaper(config, journal=journal, listener="echo") as r,
        trio.open_nursery() as connections,
        AsyncExitStack() as stack,
    ):
        lot = await stack.enter_async_context(r.parking_lot(echo, config.timeouts.idle)) if parked else None
        async with trio.open_nursery() as accepting:
            accepting.start_soon(_count, worker, r)
            if lot is not None:
                accepting.start_soon(lot.accept, worker.listening)
            else:
                accepting.start_soon(worker.serve, r.watched(echo, config.timeouts.idle), connections, r.welcome)
            if pressed:
                accepting.start_soon(reaper.trio.relieve, r, Pressure(limits_here()))
            worker.counters["ready"] = 1
            await worker.stop_requested()
            accepting.cancel_scope.cancel()
        await r.drain(config.timeouts.drain, config.timeouts.drain_window)
        if journal is not None:
            journal.drain(reaper.trio.journal_clock()())
        _publish(worker, r)
        connections.cancel_scope.cancel()


async def _count(worker: Worker, r: reaper.trio.TrioReaper) -> None:
    while True:
        _publish(worker, r)
        await trio.sleep(0.5)


def _publish(worker: Worker, r: reaper.trio.TrioReaper) -> None:
    statistics = r.statistics()
    core = statistics.core
    counters = worker.counters
    counters["open"] = core.registered
    counters["accepted"] = core.registered + core.expired + core.released
    counters["reaped"] = core.expired
    counters.note(statistics)
