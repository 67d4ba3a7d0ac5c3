"""What one process reports to `reaper top`: its connections by phase and by silence,
and every counter.

The rule of this module: *looking holds the loop no longer than a slice*. It is plain
data, documented in docs/production.md; `reaper.status` sends it, `python -m reaper top`
shows it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Any

from ..core.introspect import Census, census, places, silence
from ..core.lease import Lease
from ..metrics import BOUNDS, CONTENT_TYPE, exposition, families
from ..policy.pressure import Pressure
from ..status import IDLE_BOUNDS, JSON, Page, document
from .reaper import Reaper
from .sockets import peer_name

IN_FLIGHT = "in_flight"
"""The phase shown for a connection that cannot expire now."""

NEXT = 40
"""How many connections are named: those that are due first."""


def pages_of(reaper: Reaper, name: str, pressure: Pressure | None = None) -> Mapping[str, Page]:
    """`/status` and `/metrics` of a program that is one process and calls itself
    *name*.
    """

    async def show_status() -> tuple[str, bytes]:
        return JSON, document(name, [await survey(reaper, pressure)])

    async def show_metrics() -> tuple[str, bytes]:
        more = () if pressure is None else pressure.families()
        told = (*families(reaper.statistics()), *reaper.told(), *more)
        return CONTENT_TYPE, exposition([({}, told)]).encode()

    return {"/status": show_status, "/metrics": show_metrics}


async def survey(
    reaper: Reaper, pressure: Pressure | None = None, worker: int = 0
) -> dict[str, Any]:
    """The report of this process, number *worker*, as JSON knows it. The loop runs in
    between.
    """
    driver, statistics = reaper.driver, reaper.statistics()
    now = driver.now()
    never = driver.core._never

    def phase(lease: Lease) -> str | None:
        uid, slot = lease.uid, lease._chunk.slot
        owner = driver.owner_of(uid)
        if owner is None:
            return None  # a limit, or a timer of the server's
        if slot.epoch is never:
            return IN_FLIGHT
        exact = getattr(owner, "phase", None)  # a guarded connection knows better than its lease
        reason: str = slot.key[1] if exact is None else exact().value
        return reason

    counts, due_next = await _returned(
        census(driver.core, now, phase, IDLE_BOUNDS, NEXT), reaper.sleep
    )
    now = driver.now()
    coming = [
        {
            "name": ((owner := driver.owner_of(lease.uid)) and peer_name(owner.descriptor))
            or str(lease.uid),
            "phase": phase(lease),
            "idle_s": round(silence(lease, now), 3),
            "timeout_s": lease.timeout,
            "due_in_s": round(due - now, 3),
        }
        for due, lease in due_next
    ]
    near, far = places(driver.core, now)
    core = statistics.core
    journal, pressed = statistics.journal, None
    if pressure is not None and (verdict := pressure.verdict) is not None:
        pressed = {
            "load": verdict.load,
            "of": verdict.of,
            "scale": verdict.scale,
            "accepting": verdict.accept,
        }
        pressed["evicted"] = pressure.evicted
    return {
        "worker": worker,
        "pid": os.getpid(),
        "at": time.monotonic(),
        "tick_s": driver.core.tick,
        "wheel_size": driver.core.wheel_size,
        "connections": sum(sum(row) for row in counts.values()),
        "parked": statistics.parked,
        "idle_bounds_s": list(IDLE_BOUNDS),
        "phases": [
            {"phase": name, "timeout_s": timeout, "connections": sum(row), "idle": row}
            for (name, timeout), row in sorted(counts.items(), key=lambda item: -sum(item[1]))
        ],
        "due_next": coming,
        "ring": sorted(near.items()),
        "wheel": sorted(far.items()),
        "leases": core.registered,
        "closed": dict(statistics.reasons),
        "averted": core.averted,
        "moved": core.moved,
        "late": statistics.late,
        "lateness": {
            "bounds_s": list(BOUNDS),
            "lower": list(statistics.lateness_lower.counts),
            "upper": list(statistics.lateness_upper.counts),
        },
        "loop": {
            "lag_s": statistics.lag,
            "max_lag_s": statistics.max_lag,
            "stalls": statistics.stalls,
            "stalled_s": statistics.stalled,
            "cpu_s": statistics.cpu,
        },
        "pressure": pressed,
        "journal": journal
        and {"rows": journal.rows, "dropped": journal.dropped, "errors": journal.errors},
    }


async def _returned(
    steps: Generator[None, None, Census], sleep: Callable[[float], Awaitable[object]]
) -> Census:
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: Census = done.value
            return found
        await sleep(0)
