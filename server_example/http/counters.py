"""What has happened so far. One rule: *counting is adding to an int*; names and text are made on demand."""

from __future__ import annotations

import collections
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """Plain numbers of one process, exported by `/metrics`."""

    opened: int = 0
    closed: int = 0
    refused: int = 0
    requests: int = 0
    failures: int = 0
    """Routes that raised."""
    lost: int = 0
    """Connections that the peer broke off or let break."""
    reloads: int = 0
    accept_errors: int = 0
    responses: collections.Counter[int] = field(default_factory=collections.Counter)
    reaped: collections.Counter[str] = field(default_factory=collections.Counter)
    """By reason."""
