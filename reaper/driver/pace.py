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

ROUNDS = 32
"""Slices in a row until some are left out, so that a pass without ends is measured."""

SETTLED = 4
"""Slices left out until what the ends before have set going is over. In hypercorn the
tasks of a connection end in the tenth pass after its close; three lie between two
slices.
"""


class Pace:
    """The size of the next slice: so many that they and what they set going take 8 ms,
    or as long as a pass of the loop, if that is busier, but no longer than
    `LONGEST_SLICE`. The reaper has one slice every few passes: with a fixed size a busy
    loop would starve it.

    Attributes:
        cost: Seconds that the end of a connection takes: the mean of the last few
            slices, each worth half of the one after it; at least `SECONDS_PER_REAP`.
    """

    __slots__ = ("_began", "_looked", "_pass", "_reaped", "_rounds", "_still", "cost")

    def __init__(self) -> None:
        self.cost: float = FIRST
        self._pass = 0.0  # seconds that a pass takes in which nothing was ended
        self._still = SETTLED  # slices in a row that ended nothing
        self._looked = 0.0  # when the two passes before a slice began
        self._began = 0.0  # when the latest slice began...
        self._reaped = 0  # ...and how many it ended, if more were due
        self._rounds = 0

    def look(self, now: float) -> None:
        """Two passes of the loop begin, by whose clock it is *now*; there was one since
        the latest slice.
        """
        self._looked = now

    def room(self, now: float) -> int:
        """How many to end now, after the two passes. Cost: O(1)."""
        a_pass = (now - self._looked) / 2
        # What ends have set going is in the passes soon after them, too, and is not the
        # loop's own: such a pass says only how long one is at the most.
        if a_pass < self._pass or self._still >= SETTLED:
            self._pass = a_pass
        if self._reaped:
            took = max(now - self._began - 3 * self._pass, 0.0)
            cost = max((self.cost + took / self._reaped) / 2, SECONDS_PER_REAP)
            # The first slices bear little of what those before them have set going.
            if cost > self.cost or self._rounds >= SETTLED:
                self.cost = cost
            self._reaped = 0
            self._rounds += 1
        self._began = now
        if self._rounds >= ROUNDS:
            if self._still < SETTLED:
                return 0
            self._rounds = 0
        return self._many(min(self._pass, LONGEST_SLICE))

    def many(self) -> int:
        """How many take 8 ms, as far as that was seen. Cost: O(1)."""
        return self._many(0.0)

    def _many(self, at_least: float) -> int:
        budget = max(REAPS_PER_SLICE * SECONDS_PER_REAP, at_least)
        return max(round(budget / self.cost), CHECKED_AT_ONCE)

    def ended(self, count: int, more: bool) -> None:
        """The slice that there was `room` for has ended *count* connections.

        *more* says whether others are due: if not, the loop may sleep after it, and
        what came of it cannot be told from that.
        """
        self._reaped = count if more else 0
        self._still = 0 if count else self._still + 1
