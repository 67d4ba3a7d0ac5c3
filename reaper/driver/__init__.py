"""What all adapters share: everything about driving the core from an event loop that is no event loop.

The rule of this room: *it imports no framework and never waits*; an adapter calls its steps and waits in between.

Read in this order: `driver` (the steps of a wake), `stall_clock` (the clock that stalls do not count on), `watched` (a
connection), `operations` (probes and drains), `ends` (how they are written down), `options`, `pacing`, `sockets`,
`accepting`, `collecting`.
"""

from __future__ import annotations

from .accepting import ACCEPT_PAUSE, ACCEPTS_PER_PASS, Burst, accept_burst, after
from .collecting import tamed_collector
from .driver import Driver, unread_of
from .ends import Books
from .operations import Answer, Leave
from .options import Options
from .pacing import LONGEST_SLICE, PROBE_GRACE, REAPS_PER_SLICE, fair_slice
from .sockets import acknowledged, peer_has_shut, queued, reset_on_close, unread, waiting
from .stall_clock import StallClock
from .watched import Probe, Reapable, Watched

__all__ = [
    "Driver",
    "Options",
    "Watched",
    "Reapable",
    "Probe",
    "StallClock",
    "Books",
    "Answer",
    "Leave",
    "fair_slice",
    "REAPS_PER_SLICE",
    "LONGEST_SLICE",
    "PROBE_GRACE",
    "unread",
    "unread_of",
    "waiting",
    "queued",
    "acknowledged",
    "peer_has_shut",
    "reset_on_close",
    "tamed_collector",
    "accept_burst",
    "after",
    "Burst",
    "ACCEPTS_PER_PASS",
    "ACCEPT_PAUSE",
]
