"""What passes between the event loop and the writer's thread: rows one way, figures the other.

One rule: *the figures say what was lost*. Each row given is written, waits, or counts as dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Row = tuple[Any, ...]
"""(t, conn, kind code, idle_ns, nbytes, timeout_ms, due_ns, listener, reason, n, idle_sum_ns, peer)"""


@dataclass(frozen=True, slots=True)
class JournalStatistics:
    """A snapshot of one journal. Counts are since it was made."""

    rows: int
    """Rows flushed to the file system: a killed process does not lose them."""
    pending: int
    """Rows that wait for the writer."""
    dropped: int
    """Rows lost: the queue was full, or they could not be written, or their directory went."""
    files: int
    """Parquet files put in place, recovered ones included."""
    recovered: int
    """Of those, files made from what a crash left."""
    deleted: int
    """Files deleted to stay within the size."""
    errors: int
    """Failures of the writer; it goes on after each."""
    last_error: str | None
    """The latest of them, in words."""
    alive: bool
    """Whether the writer's thread runs."""
