"""How many worker processes, planned before the start.

One rule: *what cannot fit is refused before the first connection, not with EMFILE at
the worst moment*. A process has a limited number of descriptors, so many connections
need several processes.
"""

from __future__ import annotations

import os
import resource

from reaper.config.settings import MOST_WORKERS
from reaper.errors import ConfigError

RESERVED_DESCRIPTORS = 256
"""Descriptors of each worker for other things: the loop's, the standard streams, log
files.
"""

SPREAD = 0.95
"""Share of a worker's descriptors to plan with: the kernel's hash does not spread quite
evenly.
"""


def descriptors() -> int:
    """Raise this process's soft limit of descriptors to the hard one and return it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def plan(workers: int | str, connections: int | None, limit: int, most: int | None = None) -> int:
    """How many worker processes to start.

    Args:
        workers: A number, or "auto": as many as there are processors, or as the
            connections need.
        connections: How many connections must fit at once; None: as many as fit.
        limit: Descriptors per process.
        most: Connections that a worker takes before it refuses more,
            `limits.max_connections`; None: all that fit.
    Raises:
        ConfigError: they do not fit; one line says what would be needed.
    """
    room, bound, remedy = limit - RESERVED_DESCRIPTORS, f"{limit} descriptors", "`ulimit -n`"
    if room * SPREAD < 1:
        raise ConfigError(
            f"{limit} descriptors per process leave none for connections; "
            "raise `ulimit -n` above 300"
        )
    if most is not None and most < room:
        room, bound, remedy = most, f"limits.max_connections = {most}", "limits.max_connections"
    each = max(int(room * SPREAD), 1)
    needed = 1 if connections is None or connections <= room else -(-connections // each)
    count = max(needed, len(os.sched_getaffinity(0))) if workers == "auto" else int(workers)
    if needed > min(count, MOST_WORKERS):
        raise ConfigError(
            f"{connections} connections need {needed} workers of {bound} each "
            f"({each} connections per worker), and --workers is {workers}, {MOST_WORKERS} at the "
            f"most: raise it or {remedy}, or take fewer connections"
        )
    return count
