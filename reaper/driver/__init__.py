"""What all adapters share: how an event loop drives the core, in parts that belong to
no loop.

The rule of this room: *it imports no framework and never waits*; an adapter calls its
steps and waits in between.

Read in this order: `driver` (the steps of a wake), `stall_clock` (the clock that stalls
do not count on), `watched` (a connection), `reaper` (what a program calls), `ends` (the
books), `options`, `sockets`, `vanished`; `status` and `pressing`; `at_work`, for who
looks from outside.
"""

from __future__ import annotations

from .driver import Driver
from .options import Options
from .watched import Watched

__all__ = ["Driver", "Options", "Watched"]
