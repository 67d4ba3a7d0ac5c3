"""Virtual clocks for trio: one that stands still between two readings, one that moves as a real one does."""

from __future__ import annotations

import itertools

import trio.testing

STEP = 1e-4
"""Virtual seconds between two readings of the moving clock."""


def autojump(kind: str) -> trio.testing.MockClock:
    """A clock that jumps to the next deadline when every task waits; *kind*: "still" or "moving"."""
    clock = trio.testing.MockClock(autojump_threshold=0)
    if kind == "moving":
        readings = itertools.count()
        clock._real_clock = lambda: next(readings) * STEP
        clock.rate = 1.0
    return clock
