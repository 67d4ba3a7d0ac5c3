"""reaper: closes the connections that have gone silent.

Never early; at most one tick late, plus the time the event loop itself was stalled;
exactly once.

Importing this package imports nothing but the standard library. `reaper.trio` and
`reaper.asyncio` are the adapters for servers; in either of them, `reaper.stopping()`
tells when the server has been told to stop.

Stability: public.
"""

from __future__ import annotations

from .core import (
    DelayedOperation,
    Expiry,
    Explanation,
    IdleReaper,
    IdleRing,
    Lease,
    Level,
    Purgatory,
    Statistics,
    Timer,
    TimingWheel,
)
from .errors import (
    ClockWentBackwards,
    ConfigError,
    ConnectionReaped,
    DuplicateUid,
    HookErrors,
    InvalidArgument,
    InvariantViolated,
    ReaperError,
    UnknownUid,
)
from .stops import stopping

__version__ = "0.5.0"  # and in pyproject.toml

__all__ = [
    "IdleReaper",
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
    "ConnectionReaped",
    "InvariantViolated",
    "stopping",
]
