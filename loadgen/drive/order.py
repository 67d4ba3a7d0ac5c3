"""What a process of the load generator is asked to do.

One rule: an order is complete. A process reads no command line and no file to carry it out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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
