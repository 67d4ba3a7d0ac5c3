"""When a process wakes: not for each event by itself where many processes share few processors.

One rule: what waits, waits for an instant that is the same for all processes, and no longer than said here. A process
that wakes finds its memory in no cache, which costs more than what it came for; so what can wait is done together.
"""

from __future__ import annotations

from math import ceil

FEW = 8
"""Processes, up to so many of which look whenever there is something to see."""
HEARTBEAT = 0.25
"""Seconds between two heartbeats of so many; more report less often, so that the parent hears as much in all."""
LOOKS = 1000
"""Times per second that all of them together look, where there are more. A look that comes later counts against the
server, in the raw figures: up to 51 ms with 51 processes."""


class Pace:
    """That of one of *processes*, whose clients act at multiples of *beat* seconds (0: each at its own instant)."""

    def __init__(self, processes: int, beat: float) -> None:
        self.beat = beat
        self.heartbeat = HEARTBEAT * max(processes / FEW, 1.0)
        self.rest = processes / LOOKS if processes > FEW else 0.0

    def step(self, due: float) -> float:
        """When a step that is *due* then is taken: at it, or at the next beat."""
        return ceil(due / self.beat) * self.beat if self.beat else due

    def look(self, looked: float, step: float) -> float:
        """When to look again after *looked*, if the next step is taken at *step*; that is in the past: at once."""
        return min(looked + self.rest, step) if self.rest else looked
