"""The adapter for asyncio: one loop timer for all connections, and the closing of those
that have gone silent.

Stability: public.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import needs

if TYPE_CHECKING:
    from .keeper import open_keeper

with needs("reaper.asyncio", "idle-reaper"):
    from ..driver.pressing import relieve
    from ..driver.watched import Probe
    from ..metrics import LoopStatistics
    from .connection import Connection
    from .guards import guard
    from .protocols import Protocol
    from .reaper import AsyncioReaper, journal_clock, open_reaper, reaper_of
    from .serve import WatchedReader, loop_factory, start_server
    from .status import serve_status

__all__ = [
    "open_reaper",
    "open_keeper",
    "start_server",
    "guard",
    "loop_factory",
    "Protocol",
    "AsyncioReaper",
    "Connection",
    "WatchedReader",
    "Probe",
    "LoopStatistics",
    "relieve",
    "serve_status",
    "reaper_of",
    "journal_clock",
]


def __getattr__(name: str) -> Any:
    """Load the keeper when it is asked for: no server that is guarded needs it."""
    if name == "open_keeper":
        from .keeper import open_keeper

        return open_keeper
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
