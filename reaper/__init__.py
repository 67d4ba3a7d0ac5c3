"""reaper: closes the connections that have gone silent.

Never early; at most one tick late, plus the time the event loop itself was stuck; exactly once.

Importing this package imports nothing but the standard library. `reaper.trio` is the adapter for trio servers.
"""

from __future__ import annotations

from .core import IdleReaper
from .dense import DenseReaper
from .dense_lease import DenseLease, DenseStatistics
from .errors import (
    ClockWentBackwards,
    ConfigError,
    DuplicateUid,
    HookErrors,
    InvalidArgument,
    InvariantViolated,
    ReaperError,
    UnknownUid,
)
from .lease import Expiry, Explanation, Lease, Statistics
from .purgatory import DelayedOperation, Purgatory
from .ring import IdleRing
from .timer import Timer
from .wheel import Level, TimingWheel

__version__ = "0.1.0"

__all__ = [
    "IdleReaper",
    "DenseReaper",
    "DenseLease",
    "DenseStatistics",
    "Lease",
    "Expiry",
    "Explanation",
    "Statistics",
    "IdleRing",
    "TimingWheel",
    "Timer",
    "Level",
    "DelayedOperation",
    "Purgatory",
    "ReaperError",
    "InvalidArgument",
    "ClockWentBackwards",
    "DuplicateUid",
    "UnknownUid",
    "HookErrors",
    "ConfigError",
    "InvariantViolated",
]
