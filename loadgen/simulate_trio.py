"""The crowd against the real trio adapter: memory streams instead of sockets, a mock clock instead of time.

One rule: the server's side is what a real server runs - `reaper.trio`, its task, its cancel scopes, an ordinary handler
per connection - and only the wire and the clock are exchanged.
"""

from __future__ import annotations

from collections.abc import Callable

import trio
import trio.testing

import reaper.trio

from .judge.observation import Observation
from .judge.stalls import Answers
from .plan.plan import Plan
from .simulate import STORM_SHARE, Crowd, Fault, Faults, SimulatedClient, observation

GRAINS_PER_TICK = 10
"""Clients act on a grid of tick / GRAINS_PER_TICK: each instant of its own costs the loop a turn."""


class TrioSystem:
    """Every connection is a task of *nursery* that reads until the end, watched by *watcher*."""

    def __init__(self, watcher: reaper.trio.TrioReaper, nursery: trio.Nursery) -> None:
        self.watcher = watcher
        self.nursery = nursery
        self.crowd: Crowd | None = None

    def opened(self, client: SimulatedClient, now: float) -> None:
        client.handle = trio.testing.MemoryReceiveStream()
        self.nursery.start_soon(self._serve, client, client.handle)

    def pinged(self, client: SimulatedClient, now: float) -> None:
        client.handle.put_data(b"x")

    def left(self, client: SimulatedClient, now: float) -> None:
        client.handle.put_eof()

    async def _serve(self, client: SimulatedClient, wire: trio.testing.MemoryReceiveStream) -> None:
        stream = trio.StapledStream(trio.testing.MemorySendStream(), wire)

        async def read(stream: trio.abc.ReceiveStream) -> None:
            while await stream.receive_some():
                client.seen = trio.current_time()

        # The server learns of the connection now, however long it waited to be accepted.
        client.seen = max(client.seen, trio.current_time())
        await self.watcher.watched(read, client.behaviour.timeout)(stream)
        if self.crowd is not None:
            self.crowd.closed(client, trio.current_time())


def simulate_trio(plan: Plan, faults: Faults, progress: Callable[[float, int], None] | None = None) -> Observation:
    """Play *plan* against `reaper.trio` in virtual time. Arguments and result as `simulate.simulate_core`.

    Cost: about 50 us per action and 8 kB per connection; see docs.
    """
    clock = trio.testing.MockClock(autojump_threshold=0)
    return trio.run(_run, plan, faults, clock, progress, clock=clock)


async def _run(
    plan: Plan, faults: Faults, clock: trio.testing.MockClock, progress: Callable[[float, int], None] | None
) -> Observation:
    server = Answers()
    ramped = plan.connect_offset(plan.connections - 1)
    end = ramped + plan.duration
    coming = faults.schedule(plan.seed, end)
    grain = plan.law.tick / GRAINS_PER_TICK
    origin = trio.current_time()
    report_at = 0.0
    async with reaper.trio.open_reaper(tick=plan.law.tick) as watcher, trio.open_nursery() as nursery:
        system = TrioSystem(watcher, nursery)
        crowd = system.crowd = Crowd(plan, system)
        while True:
            action = min(crowd.next(), coming[-1].start if coming else end)
            if action >= end:
                break
            await trio.sleep_until(origin + (action // grain + 1) * grain)
            now = trio.current_time() - origin
            if coming and coming[-1].start <= now:
                _break(coming.pop(), crowd, clock, server, now)
            else:
                crowd.play(now, now=now)
            if progress is not None and now >= report_at:
                report_at = now + 0.005 * end
                progress(now, len(crowd.present))
        await trio.sleep_until(origin + end)
        crowd.stop(trio.current_time())
        nursery.cancel_scope.cancel()
    return observation(crowd, server, ramped, end)


def _break(fault: Fault, crowd: Crowd, clock: trio.testing.MockClock, server: Answers, now: float) -> None:
    """Let *fault* happen. No checkpoint in here: the loop is stalled, and what is sent meanwhile lies unread."""
    if fault.storm:
        crowd.storm(STORM_SHARE, now)
        return
    crowd.play(now + fault.length)
    clock.jump(fault.length)
    server.add(trio.current_time(), fault.length)
