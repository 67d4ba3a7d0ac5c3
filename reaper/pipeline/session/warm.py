"""Two journals of a few connections, as a server and its load generator would write them: something to ask about.

One rule: *nothing is learnt from them*. They hold every kind of end: a first question meets every part of Spark.
"""

from __future__ import annotations

from pathlib import Path

from ...journal import Journal

S = 1_000_000_000
MS = 1_000_000
CONNECTIONS = 40


def write_journals(server: Path, client: Path) -> None:
    """Write one run's journals below *server* and *client*, both sides of the same connections."""
    now = 10_000 * S

    def clock() -> int:
        return now

    with Journal(server, writer=1, mode="full", tick=1.0, background=False, clock_ns=clock, sequence=1) as ours:
        theirs = Journal(client, writer=900, mode="full", tick=1.0, background=False, clock_ns=clock, sequence=1)
        for number in range(CONNECTIONS):
            opened = S + number * 10 * MS
            log, seen = (side.open(opened, 5000, "warm", peer=number + 1) for side in (ours, theirs))
            for t in (opened + S, opened + 2 * S):
                seen.touch(t, 10)
                log.touch(t + MS, 10)
            if number % 4:
                due = opened + 8 * S
                log.reap(due, due)
                seen.close_peer(due + MS)
            else:
                log.close_peer(opened + 3 * S)
                seen.close_app(opened + 3 * S - MS)
        theirs.close()
