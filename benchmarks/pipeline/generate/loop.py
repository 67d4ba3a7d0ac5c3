"""The event loop of a generated writer: when its epochs closed and where it stalled. The law of time lives here.

An activity in an epoch that closed at c allows a reap from c + timeout; whatever falls into a stall happens at its end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .habits import MS, Ints, S

TICK_NS = S

AFTER_TICK_NS = 5 * MS
"""A stall begins so long after a tick: what the tick set off is what stalled. Nothing is read in between."""


@dataclass(frozen=True, slots=True)
class Loop:
    """Epochs of one tick, each closed up to 3 ms after its tick; and the stalls."""

    phase: int
    """An instant of a tick, ns."""
    stalls: tuple[tuple[int, int], ...] = ()
    """From, to; each begins `AFTER_TICK_NS` after a tick."""

    def closed(self, t: Ints) -> Ints:
        """When the epochs in which *t* lie were closed: after t, by less than a tick and 3 ms and a stall."""
        epoch = (t - self.phase) // TICK_NS
        late = epoch.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)
        return self.wake(self.phase + (epoch + 1) * TICK_NS + (late % np.uint64(3 * MS)).view(np.int64))

    def wake(self, t: Ints) -> Ints:
        """When the loop does what is to be done at *t*; changes *t*."""
        for begun, over in self.stalls:
            t[(t > begun) & (t < over)] = over
        return t

    def seen(self, t: Ints) -> Ints:
        """When the loop sees what arrives at *t*; changes *t*. Order is kept."""
        for begun, over in self.stalls:
            t[(t > begun - AFTER_TICK_NS) & (t < over)] = over
        return t
