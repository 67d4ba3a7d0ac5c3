"""Acting on pressure in a trio program: the longest silent go, and the door is shut while the house is full.

The rule of this module: *every peer that has spoken is heard first*. Which connections go is the driver's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NoReturn

import trio

from ..driver.pressing import IDLE_REASONS, let_go
from ..policy.pressure import Gauge, Pressure, Reading
from .loop import let_the_loop_read
from .reaper import TrioReaper


async def relieve(
    watcher: TrioReaper,
    pressure: Pressure,
    *,
    read: Callable[[int], Reading] | None = None,
    every: float | None = None,
    reasons: Collection[str] = IDLE_REASONS,
) -> NoReturn:
    """Read, judge and act until cancelled. Start it once, beside `run`.

    Args:
        watcher: Whose connections may have to go.
        pressure: Judges.
        read: Called with the number of connections; None: this process, by psutil.
        every: Seconds between two readings; None: a tick.
        reasons: Of leases that may be let go.
    Raises:
        ImportError: *read* is None and there is no psutil.
    """
    look = Gauge().read if read is None else read
    try:
        while True:
            verdict = pressure.judge(look(len(watcher)))
            watcher.accepting = verdict.accept
            if verdict.scale < 1 or verdict.evict:
                # As before any reap: a peer that has spoken is to be heard first.
                await let_the_loop_read()
                pressure.evicted += let_go(watcher, verdict, pressure.min_age, reasons)
            await trio.sleep(watcher.core.tick if every is None else every)
    finally:
        watcher.accepting = True
