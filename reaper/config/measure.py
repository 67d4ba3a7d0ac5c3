"""Which tick? The clockwork under this configuration, run at several ticks on this machine.

One rule: *the cost is measured, the traffic is assumed*. Connections and time are simulated, so that minutes of a
server take a second; every wake-up of the core really runs, and its processor time is what is reported.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random

from ..core.reaper import IdleReaper
from .lint import COARSE_SHARE, EPOCHS_PER_TICK, in_force
from .settings import ReaperConfig

CANDIDATES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Ticks to try, in seconds, besides the configured one."""
GOOD_SHARE = 0.1  # a tick of a tenth of the shortest timeout: closes are at most 10 % later than promised
LONGEST = 60.0  # seconds; longer timeouts than that cost per wake-up what this one costs
PACKETS_PER_TIMEOUT = 3
SILENT = 0.02  # share of packets after which a connection says no more


@dataclass(frozen=True, slots=True)
class Cost:
    """What one tick costs, and gives.

    Attributes:
        tick: Seconds.
        wakeups_per_second: While connections are open.
        microseconds: Processor time per wake-up, on average.
        longest: Seconds of processor time of the longest wake-up, all that came due in it closed at once.
        cpu: Share of one processor.
        latest: Seconds from the end of a connection's timeout to its close, at worst, as counted from its last packet:
            in the simulation, plus the longest wake-up, plus the latest that this machine's own timers came.
    """

    tick: float
    wakeups_per_second: float
    microseconds: float
    longest: float
    cpu: float
    latest: float


def measure(config: ReaperConfig, connections: int = 10_000) -> list[Cost]:
    """The cost of every candidate tick below the shortest timeout in force, and of the configured one; finest first.

    Args:
        config: The configuration in question. Its timeouts are spread evenly over the connections.
        connections: How many are open.
    Cost: a few seconds; the process is busy all the while.
    """
    timeouts = [min(seconds, LONGEST) for _, seconds in in_force(config)] or [LONGEST]
    ticks = {tick for tick in CANDIDATES if tick <= min(timeouts)} | {config.reaper.tick}
    late = _timer_lateness()
    return [_run(tick, config.reaper.wheel_size, timeouts, connections, late) for tick in sorted(ticks)]


def tick_for(shortest: float) -> float:
    """The coarsest of the candidates that is within a tenth of *shortest*, a timeout in seconds, or else the finest."""
    return max((tick for tick in CANDIDATES if tick <= GOOD_SHARE * shortest), default=CANDIDATES[0])


def recommended(costs: list[Cost], config: ReaperConfig) -> Cost:
    """The coarsest tick that is within a tenth of the shortest timeout, or else the finest one measured."""
    shortest = min((seconds for _, seconds in in_force(config)), default=LONGEST)
    return max((cost for cost in costs if cost.tick <= GOOD_SHARE * shortest), key=lambda c: c.tick, default=costs[0])


def verdict(cost: Cost, config: ReaperConfig) -> str:
    """In words, why *cost* is the one to take."""
    shortest = min((seconds for _, seconds in in_force(config)), default=LONGEST)
    share = cost.tick / shortest
    grade = "" if share <= COARSE_SHARE else "; no finer one was measured"
    return (
        f"at most {100 * share:.0f} % late against the shortest timeout, {100 * cost.cpu:.2g} % of one processor{grade}"
    )


def _run(tick: float, wheel_size: int, timeouts: list[float], connections: int, late: float) -> Cost:
    random = Random(connections)
    core = IdleReaper(tick=tick, wheel_size=wheel_size, epochs_per_tick=EPOCHS_PER_TICK)
    timeout_of = [timeouts[uid % len(timeouts)] for uid in range(connections)]
    last = [0.0] * connections
    packets: list[tuple[float, int]] = []
    for uid in range(connections):
        core.register(uid, timeout_of[uid], 0.0)
        heappush(packets, (random.random() * timeout_of[uid] / PACKETS_PER_TIMEOUT, uid))
    until = 1.5 * max(timeouts)
    wakeups, busy, longest, latest = 0, 0.0, 0.0, 0.0
    for now in _wakeups(core, until):
        while packets and packets[0][0] <= now:
            at, uid = heappop(packets)
            if core.touch(uid):
                last[uid] = at
            else:
                core.register(uid, timeout_of[uid], now)
                last[uid] = now
            if random.random() > SILENT:
                heappush(packets, (at + (0.5 + random.random()) * timeout_of[uid] / PACKETS_PER_TIMEOUT, uid))
        began = time.process_time()
        expired = core.advance(now)
        took = time.process_time() - began
        wakeups, busy, longest = wakeups + 1, busy + took, max(longest, took)
        for expiry in expired:
            latest = max(latest, expiry.now - last[expiry.uid] - timeout_of[expiry.uid])
    return Cost(tick, wakeups / until, 1e6 * busy / wakeups, longest, busy / until, latest + longest + late)


def _wakeups(core: IdleReaper, until: float) -> Iterator[float]:
    while (now := core.next_wakeup()) is not None and now <= until:
        yield now


def _timer_lateness(sleeps: int = 50) -> float:
    """Seconds by which the latest of *sleeps* short sleeps on this machine ended late."""
    worst = 0.0
    for _ in range(sleeps):
        began = time.monotonic()
        time.sleep(0.002)
        worst = max(worst, time.monotonic() - began - 0.002)
    return worst
