"""Acting on pressure in a trio program: the longest silent go, and the door is shut while the house is full.

The rule of this module: *every peer that has spoken is heard first*. Which connections go is the driver's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NoReturn

import trio

from ..driver import pressing
from ..driver.pressing import IDLE_REASONS
from ..policy.pressure import Pressure, Reading
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
    """Read, judge and act until cancelled. Start it once, as a task next to the servers. Arguments as in `pressing`."""
    await pressing.relieve(watcher, pressure, let_the_loop_read, trio.sleep, read=read, every=every, reasons=reasons)
