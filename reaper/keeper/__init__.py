"""Whatever can be idle: sessions, pooled clients, child processes, models in memory.

The rule of this room: *never in use, never early, at most one tick late, exactly once*.
A keeper makes a thing when it is asked for, and ends it when nobody has used it for a
while. `open_keeper` of `reaper.asyncio`, `reaper.trio` and `reaper.threads` opens one.

    law         who is let in, what is ended, and why: no clock, no task, no lock
    kept        one thing: its states
    loops       the keeper of an event loop
    options     what a keeper is told
    statistics  what it counts

No server and no guest imports it.

Stability: public.
"""

from __future__ import annotations

from ..errors import KeeperClosed
from .loops import Keeper
from .options import KeeperOptions
from .statistics import KeeperStatistics

__all__ = ["Keeper", "KeeperClosed", "KeeperOptions", "KeeperStatistics"]
