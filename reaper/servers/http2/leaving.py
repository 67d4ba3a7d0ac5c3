"""How long a client that was told GOAWAY is waited for: until it closes, within two
limits.

The rule of this module: *it says how long, and somebody else waits*. What such a client
sends as it takes the end of an answer, WINDOW_UPDATE, would have the kernel reset a
closed connection. So the connection stays until the client has everything and closes;
one that does not close is given `drain_idle` after it has everything, and nobody is
waited for beyond the end of the stop.

The engine asks it, several times a tick. Under uvicorn the policy of the connection has
the same two limits.
"""

from __future__ import annotations

import math

LOOKS_PER_TICK = 4
"""How often the engine looks whether a client that is to leave has taken everything."""


class Leaving:
    """One client that is to close its connection.

    Args:
        idle: Seconds for which it is waited for once it has taken everything.
        end: The instant beyond which it is not waited for, by the clock of those who
            ask.
    """

    __slots__ = ("_end", "_idle", "_until")

    def __init__(self, idle: float, end: float = math.inf) -> None:
        self._idle = idle
        self._end = end
        self._until = math.inf

    def seconds(self, owed: bool, now: float) -> float:
        """Return for how many seconds from *now* it is waited for; 0: it is over,
        close.

        Look again before they have passed: whether something is owed is known by
        looking alone.

        Args:
            owed: Whether something that was answered has yet to be taken.
        """
        if owed:
            self._until = math.inf
        elif self._until == math.inf:
            self._until = now + self._idle
        return max(min(self._until, self._end) - now, 0.0)
