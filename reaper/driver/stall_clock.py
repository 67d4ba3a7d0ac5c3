"""The clock by which silence is measured: it counts only time in which the loop was
awake.

*A stall of ours is charged to no connection.* A peer that speaks only when it is spoken
to was silent because we were. So the clock stands still once the loop is more than a
tick late, until it comes back: a stall, which is never counted. It stands at the
instant at which the loop should have come back, or at the last one that was asked for
before that. *An instant once named stays named*: what begins while the loop is a little
late began then, and not a lag before.

Its limits. A stall is noticed by a timer that comes late, so up to one epoch at its
beginning is charged all the same, and so is a lag of up to a tick. Nothing is noticed
while no timer runs; no silence is measured then either.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable

from ..metrics import Histogram

REMEMBERED = 4096
"""Stalls that `real` can tell apart. An instant before the oldest of them is taken to
lie after the one before it.
"""


class StallClock:
    """Seconds in which the loop was awake, and the account of those in which it was
    not.

    Args:
        read: The loop's own clock: monotonic float seconds.
        tolerance: Seconds; the most that the loop may be late without that being a
            stall.
    Attributes:
        expected: The instant, on the loop's own clock, at which it should come back;
            see `expect`.
        lag: How late the loop last came back, seconds.
        max_lag: The largest of all.
        lags: All of them, by size.
        stalls: How many were longer than the tolerance.
        stalled: How long those were together, seconds: what was charged to no
            connection.
    """

    def __init__(self, read: Callable[[], float], tolerance: float) -> None:
        self.read = read
        self._tolerance = tolerance
        self.expected: float = math.inf
        self._awake: float = (
            -math.inf
        )  # the last instant after `expected` that was named: the loop ran then
        self._instants: list[float] = []  # awake instants at which the clock stood still...
        self._offsets: list[float] = []  # ...and how far behind the loop's clock it was afterwards
        self.lag: float = 0.0
        self.max_lag: float = 0.0
        self.lags: Histogram = Histogram()
        self.stalls: int = 0
        self.stalled: float = 0.0

    def now(self) -> float:
        """Seconds, never decreasing; stands still while the loop stalls. Equal to
        `read()` until the first stall.
        """
        real = self.read()
        if real > self.expected:
            if real - self.expected <= self._tolerance:
                self._awake = real
            else:
                real = max(self.expected, self._awake)
        return real - self.stalled

    def expect(self, instant: float) -> None:
        """The loop should come back at *instant* (of this clock; infinite: it need
        not).
        """
        expected = instant + self.stalled
        while (
            expected - self.stalled < instant
        ):  # the sum was rounded: who wakes then would find that it is too early
            expected = math.nextafter(expected, math.inf)
        self.expected = expected

    def woke(self) -> float:
        """The loop has come back. Take note of how late that is, and return how long it
        stalled: 0.0 or a whole stall.

        From here on the clock runs, until it is next `expect`ed.
        """
        real = self.read()
        self.lag = lag = max(real - self.expected, 0.0)
        stood = max(self.expected, self._awake)
        self.expected, self._awake = math.inf, -math.inf
        self.lags.add(lag)
        if lag > self.max_lag:
            self.max_lag = lag
        if lag <= self._tolerance:
            return 0.0
        self.stalls += 1
        instant = stood - self.stalled
        self.stalled = real - instant
        self._instants.append(instant)
        self._offsets.append(self.stalled)
        if len(self._instants) > 2 * REMEMBERED:
            del self._instants[:REMEMBERED], self._offsets[:REMEMBERED]
        return lag

    def real(self, instant: float) -> float:
        """*instant* of this clock on the loop's own: the latest that it stands for."""
        if not self._offsets:
            return instant
        index = bisect_right(self._instants, instant)
        if index:
            return instant + self._offsets[index - 1]
        return instant if len(self._offsets) == self.stalls else instant + self._offsets[0]
