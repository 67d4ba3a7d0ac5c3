"""For tests of your own, in any framework: a clock moved by hand, the obvious timer
queue, and the kit for others. `reaper.testing.on_trio` and `on_asyncio` have
`closings`, which serves clients and lets virtual time pass.

Stability: public.
"""

from __future__ import annotations

from ..core.ticks import check_instant, check_timeout
from .clients import Client, Closing
from .conformance import NotConforming, check_timer_queue
from .heap import HeapTimer, HeapTimerQueue

__all__ = [
    "Client",
    "Closing",
    "ManualClock",
    "check_timer_queue",
    "NotConforming",
    "HeapTimerQueue",
    "HeapTimer",
]


class ManualClock:
    """A monotonic clock in seconds that stands still until it is moved. Call it to read
    it.

    Raises:
        InvalidArgument: *start* is not a finite number.
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = check_instant("start", start)

    def __call__(self) -> float:
        return self._now

    def move(self, seconds: float) -> float:
        """Move the clock forward by *seconds*, > 0 and finite, and return what it shows
        then.

        Raises:
            InvalidArgument: *seconds* is anything else. State unchanged.
        """
        self._now += check_timeout("seconds", seconds)
        return self._now
