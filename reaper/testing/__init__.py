"""For tests of your own, in any framework: a clock moved by hand, the obvious timer queue, and the
kit for others.

Stability: public.
"""

from __future__ import annotations

from ..core.ticks import check_instant, check_timeout
from .conformance import NotConforming, check_timer_queue
from .heap import HeapTimer, HeapTimerQueue

__all__ = ["ManualClock", "check_timer_queue", "NotConforming", "HeapTimerQueue", "HeapTimer"]


class ManualClock:
    """A monotonic clock in seconds that stands still until it is moved. Call it to read it.

    Raises:
        InvalidArgument: *start* is not a finite number.
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = check_instant("start", start)

    def __call__(self) -> float:
        return self._now

    def move(self, seconds: float) -> float:
        """Move the clock forward by *seconds*, > 0 and finite, and return what it shows then.

        Raises:
            InvalidArgument: *seconds* is anything else. State unchanged.
        """
        self._now += check_timeout("seconds", seconds)
        return self._now
