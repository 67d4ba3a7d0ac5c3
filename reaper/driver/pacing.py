"""How many connections are closed before the loop runs again: no step holds it for longer than its bound, and a busy
loop starves no reaper."""

from __future__ import annotations

REAPS_PER_SLICE = 128
"""Connections closed before the loop is let run again. Closing is the expensive part of a reap, 30-80 us each with
a cancellation, the handler's unwinding and close(2); 128 of them hold the loop for less than 10 ms."""

CHECKED_AT_ONCE = 16
"""Connections put to the final check together. Bytes that come between the check of a connection and its close are
lost; with a whole slice checked at once that was 10 ms for the last of it."""

SECONDS_PER_REAP = 65e-6
"""What closing one connection costs, about."""

LONGEST_SLICE = 0.05
"""Seconds that a slice may take at the most, however busy the loop is."""

PROBE_GRACE = 5.0
"""Seconds that a probed peer has for its answer. Precedent: gRPC's keep-alive timeout is 20 s, Engine.IO's 20 s."""


def fair_slice(two_passes: float) -> int:
    """How many to reap after two scheduling passes have taken *two_passes* seconds.

    `REAPS_PER_SLICE`; more where the loop is so busy that a pass takes longer than closing those would, for as long as
    a pass and no longer than `LONGEST_SLICE`. Otherwise a busy loop would starve the reaper: it has a slice every few
    passes, and what falls due meanwhile would pile up.
    """
    return max(REAPS_PER_SLICE, int(min(two_passes / 2, LONGEST_SLICE) / SECONDS_PER_REAP))
