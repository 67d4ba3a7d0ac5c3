"""How long the server waits for a client that was told GOAWAY: until it closes, within
two limits.

The rule of this module: *it says how long, and somebody else waits*. While it takes the
end of an answer, such a client sends WINDOW_UPDATE; on a closed connection the kernel
would answer that with a reset. So the connection stays until the client has everything
and closes. A client that does not close has `drain_idle` after that, and none is waited
for beyond the end of the stop.

The engine asks it, several times a tick. Under uvicorn the policy of the connection has
the same two limits.
"""

from __future__ import annotations

import math

LOOKS_PER_TICK = 4
"""How often the engine checks whether a client that is to leave has taken everything.
"""


class Leaving:
    """One client that is to close its connection.

    Args:
        idle: Seconds to wait once it has taken everything.
        end: The instant at which waiting ends, by the caller's clock.
    """

    __slots__ = ("_end", "_idle", "_until")

    def __init__(self, idle: float, end: float = math.inf) -> None:
        self._idle = idle
        self._end = end
        self._until = math.inf

    def seconds(self, owed: bool, now: float) -> float:
        """Return for how many seconds from *now* to wait; 0: close now.

        Look again before they have passed: only looking shows whether something is
        owed.

        Args:
            owed: Whether the client still has to take some of an answer.
        """
        if owed:
            self._until = math.inf
        elif self._until == math.inf:
            self._until = now + self._idle
        return max(min(self._until, self._end) - now, 0.0)
