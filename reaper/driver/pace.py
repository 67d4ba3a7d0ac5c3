"""How many connections are ended before the loop runs again.

The rule of this module: *what a slice of ends costs the others is measured, not
assumed*. The close itself takes between 10 and 80 us; what it sets going in the passes
that follow (tasks that are cancelled, handlers that unwind) took 300 us more in a
server that was measured, and is what a live client waits for.
"""

from __future__ import annotations

REAPS_PER_SLICE = 128
"""Connections closed before the loop is let run again, at the least cost of one."""

SECONDS_PER_REAP = 65e-6
"""What closing one connection costs, about; 128 hold the loop for less than 10 ms."""

LONGEST_SLICE = 0.05
"""Seconds that a slice may take at the most, however busy the loop is."""

CHECKED_AT_ONCE = 16
"""Connections put to the final check together. Bytes that come between the check of a
connection and its close are lost; with a whole slice checked at once that was 10 ms for
the last of it. No slice is smaller.
"""

FIRST = 8 * SECONDS_PER_REAP
"""What one is taken to cost before one was measured."""

ROUNDS = 16
"""Slices in a row until one is left out, so that a pass without ends is measured."""


class Pace:
    """The size of the next slice: so many that they and what they set going take 8 ms,
    or as long as a pass of the loop, if that is busier, but no longer than
    `LONGEST_SLICE`. The reaper has one slice every few passes: with a fixed size a busy
    loop would starve it.

    Attributes:
        cost: Seconds that the end of a connection takes: the mean of the last few
            slices, each worth half of the one after it; at least `SECONDS_PER_REAP`.
    """

    __slots__ = ("_began", "_pass", "_reaped", "_rounds", "cost")

    def __init__(self) -> None:
        self.cost: float = FIRST
        self._pass = 0.0  # seconds that a pass takes in which nothing was ended
        self._began = 0.0  # when the latest slice began...
        self._reaped = 0  # ...and how many it ended, if more were due
        self._rounds = 0

    def room(self, looked: float, now: float) -> int:
        """How many to end now, after two passes of the loop. Cost: O(1).

        Args:
            looked, now: Instants of the loop's clock: before the two passes, and after
                them. One pass more lies between the latest slice and *looked*.
        """
        if self._reaped:
            took = max(now - self._began - 3 * self._pass, 0.0)
            self.cost = max((self.cost + took / self._reaped) / 2, SECONDS_PER_REAP)
            self._reaped = 0
            self._rounds += 1
            if self._rounds % ROUNDS == 0:
                return 0
        else:
            self._pass = (now - looked) / 2
        budget = max(REAPS_PER_SLICE * SECONDS_PER_REAP, min(self._pass, LONGEST_SLICE))
        return max(round(budget / self.cost), CHECKED_AT_ONCE)

    def ended(self, began: float, count: int, more: bool) -> None:
        """A slice that began at *began* has ended *count* connections.

        *more* says whether others are due: if not, the loop may sleep after it, and
        what came of it cannot be told from that.
        """
        self._began = began
        self._reaped = count if more else 0
