"""The adapter for trio: one task for all connections, and the closing of those that
have gone silent.

The rule of this room: *it is the only one that imports trio, and all of trio's waiting
is in it*. What decides is `reaper.driver`. Read `reaper` (the task), `connection`,
`streams`, `serve`; then, for connections without a task, `parking`, `parked_streams`,
`task_pool`, `linger` and `tls`; then `accepting` and `status`.

Here is what programs call. A server of your own finds the rest in these modules:
`accepting.accept`, `parking.Parked`, `linger.Silent`, `streams.SocketStream`,
`tls.TlsSession`.

Stability: public.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import needs

if TYPE_CHECKING:
    from .keeper import open_keeper

with needs("reaper.trio", "idle-reaper[trio]"):
    from ..driver.pressing import relieve
    from ..driver.watched import Probe
    from ..metrics import LoopStatistics
    from .connection import Connection, WatchedStream
    from .parked_streams import ParkableStream
    from .parking import ParkingLot
    from .reaper import TrioReaper, journal_clock, open_reaper
    from .serve import serve_parked, serve_tcp
    from .status import serve_pages, serve_status

__all__ = [
    "open_reaper",
    "open_keeper",
    "serve_tcp",
    "serve_parked",
    "TrioReaper",
    "Connection",
    "WatchedStream",
    "ParkableStream",
    "ParkingLot",
    "Probe",
    "LoopStatistics",
    "serve_status",
    "serve_pages",
    "relieve",
    "journal_clock",
]


def __getattr__(name: str) -> Any:
    """Load the keeper when it is asked for: no server that is guarded needs it."""
    if name == "open_keeper":
        from .keeper import open_keeper

        return open_keeper
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
