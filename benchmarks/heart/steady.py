"""A million connections as servers have them: the cost of each tick, in two patterns of traffic, the collector on.

One rule: connections come evenly over one timeout, and each speaks every ten seconds in the mean. *Periodic* is a
heartbeat with a random phase; *Poisson* is chance at the same rate: then one in twenty is silent for three means, is
reaped, and comes back.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy

import reaper

from ..common import Note, Scale, by_scale, spread

TIMEOUT = 30.0
EVERY = 10
SLICE = 128
"""The limit that the adapters give (reaper.driver.REAPS_PER_SLICE)."""
WARM_UP = 60


def run(scale: Scale, note: Note) -> dict[str, Any]:
    """`results[pattern][n]`: ms an `advance()` without a limit, a tick in slices, and a slice; on the wall and CPU."""
    sizes = by_scale(scale, [500], [20_000, 100_000], [1_000, 10_000, 100_000, 1_000_000])
    ticks = by_scale(scale, 10, 30, 90)
    results: dict[str, dict[str, Any]] = {}
    for n in sizes:
        for name, pattern in (("periodic", periodic), ("poisson", poisson)):
            figures = {}
            for limit in (None, SLICE):
                note(f"{n:,} connections, {name}, " + ("no limit" if limit is None else f"slices of {limit}"))
                figures["whole" if limit is None else "sliced"] = one(n, pattern, limit, ticks)
            results.setdefault(name, {})[str(n)] = figures
    return {"results": results, "timeout_s": TIMEOUT, "touch_every_s": EVERY, "slice": SLICE, "ticks": ticks}


def periodic(n: int) -> Iterator[list[int]]:
    """Who speaks in each second: the same tenth every ten seconds."""
    phases = numpy.random.default_rng(4).integers(0, EVERY, n)
    cohorts = [numpy.flatnonzero(phases == phase) for phase in range(EVERY)]
    while True:
        for cohort in cohorts:
            yield cohort.tolist()


def poisson(n: int) -> Iterator[list[int]]:
    """Who speaks in each second: chance."""
    rng = numpy.random.default_rng(5)
    while True:
        yield rng.integers(0, n, rng.poisson(n / EVERY)).tolist()


def one(n: int, pattern: Callable[[int], Iterator[list[int]]], limit: int | None, ticks: int) -> dict[str, Any]:
    """One server's life: it fills up over one timeout, warms up, and then each tick is timed."""
    core = reaper.IdleReaper(tick=1.0)
    leases: list[reaper.Lease] = []
    speakers = pattern(n)
    whole: list[float] = []
    cpu: list[float] = []
    parts: list[float] = []
    reaped = 0
    now = 0.0
    for second in range(WARM_UP + ticks):
        for number in range(len(leases), min(n, round(n * (second + 1) / TIMEOUT))):
            leases.append(core.register(number, TIMEOUT, now))  # noqa: PERF401 - the loop counts them
        for number in next(speakers):
            if number < len(leases):
                leases[number].touch()
        now += 1.0
        began, used = time.perf_counter_ns(), time.thread_time_ns()
        expired, slices = _tick(core, now, limit)
        used, spent = time.thread_time_ns() - used, time.perf_counter_ns() - began
        if second >= WARM_UP:
            whole.append(spent / 1e6)
            cpu.append(used / 1e6)
            parts += slices
            reaped += len(expired)
        for expiry in expired:
            leases[expiry.uid] = core.register(expiry.uid, TIMEOUT, now)
    del core, leases
    gc.collect()
    result: dict[str, Any] = {"tick_ms": spread(whole), "tick_mean_ms": statistics.fmean(whole), "reaped": reaped}
    result |= {"cpu_ms": spread(cpu), "cpu_mean_ms": statistics.fmean(cpu)}
    if parts:
        result["slice_cpu_ms"] = {**spread(parts), "samples": sorted(parts)[-100:]}  # the worst hundred: there are many
    return result


def _tick(core: reaper.IdleReaper, now: float, limit: int | None) -> tuple[list[reaper.Expiry], list[float]]:
    if limit is None:
        return core.advance(now), []
    core.close_epoch(now)
    expired: list[reaper.Expiry] = []
    slices = []
    while (wakeup := core.next_wakeup()) is not None and wakeup <= now:
        began = time.thread_time_ns()
        expired += core.expire(now, limit)
        slices.append((time.thread_time_ns() - began) / 1e6)
    return expired, slices
