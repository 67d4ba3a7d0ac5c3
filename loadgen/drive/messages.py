"""What parent and processes tell each other: an order, heartbeats, an outcome.

One rule: everything here is picklable and small. A heartbeat carries totals, an outcome carries columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ..judge.histogram import Histogram
from ..judge.records import RecordTable
from ..judge.stalls import Stalls
from ..plan.capacity import Share
from ..plan.plan import Plan
from ..units import Target


@dataclass(frozen=True)
class Order:
    """What one process is asked to do. Picklable.

    Attributes:
        patience: seconds beyond timeout and tick for which an overdue close is waited for at the end of the run.
    """

    plan: Plan
    target: Target
    protocol: str
    share: Share
    processes: int
    patience: float
    path: str = "/"
    journal: Path | None = None


@dataclass
class Counters:
    """What a heartbeat carries: totals since the start of the process."""

    established: int = 0
    reconnected: int = 0
    open: int = 0
    failed: int = 0
    refused: int = 0
    actions: int = 0
    blocked: int = 0
    answered: int = 0
    categories: dict[str, int] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)
    lateness: list[float] = field(default_factory=list)
    ramped: bool = False
    ramp_actions: int = 0
    ramped_at: float = 0.0
    held: float = 0.0
    overdue: int = 0
    journal_dropped: int = 0


@dataclass
class Outcome:
    """Everything a process saw, sent to the parent at its end. Picklable."""

    records: RecordTable
    counters: Counters
    stalls: Stalls
    server_stalls: Stalls
    lag: Histogram
    latency: Histogram
    rss_before: int
    rss_open: int
    failures: dict[str, int]
    cpu_seconds: float
