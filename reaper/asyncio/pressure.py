"""Acting on pressure in an asyncio program: the longest silent go, and newcomers are turned away while it is full.

The rule of this module: *every peer that has spoken is heard first*. Which connections go is the driver's to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import NoReturn

from ..driver.pressing import IDLE_REASONS, let_go
from ..policy.pressure import Gauge, Pressure, Reading
from .reaper import AsyncioReaper


async def relieve(
    watcher: AsyncioReaper,
    pressure: Pressure,
    *,
    read: Callable[[int], Reading] | None = None,
    every: float | None = None,
    reasons: Collection[str] = IDLE_REASONS,
) -> NoReturn:
    """Read, judge and act until cancelled. Run it as a task, once.

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
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                pressure.evicted += let_go(watcher, verdict, pressure.min_age, reasons)
            await asyncio.sleep(watcher.core.tick if every is None else every)
    finally:
        watcher.accepting = True
