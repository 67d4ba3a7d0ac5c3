"""The adapter for trio: one task for all connections, and the closing of those that have gone silent.

The rule of this room: *it is the only one that imports trio, and all of trio's waiting is in it*. What decides is
`reaper.driver`. Read `reaper` (the task), `connection`, `streams`, `readiness`, `serve`; then, for connections without
a task, `parking`, `linger`, `task_pool`, `tls` and `handoff`; then `accepting`, `waking`, `pressure` and `status`.
"""

from __future__ import annotations

from ..errors import needs

with needs("reaper.trio", "idle-reaper[trio]"):
    from ..driver.pacing import LONGEST_SLICE, PROBE_GRACE, REAPS_PER_SLICE, fair_slice
    from ..driver.sockets import unread
    from ..driver.watched import Probe
    from ..metrics import LoopStatistics
    from .accepting import accept
    from .connection import Connection, WatchedStream
    from .handoff import HandoffLot
    from .linger import Silent
    from .parking import ParkableStream, Parked, ParkingLot, Resting
    from .pressure import relieve
    from .reaper import TrioReaper, journal_clock, open_reaper
    from .serve import serve_parked, serve_tcp
    from .status import serve_pages, serve_status, survey_of
    from .streams import SocketStream, WatchedSocket
    from .tls import TlsSession
    from .waking import let_the_loop_read

__all__ = [
    "open_reaper",
    "serve_tcp",
    "serve_parked",
    "TrioReaper",
    "Connection",
    "WatchedStream",
    "WatchedSocket",
    "SocketStream",
    "TlsSession",
    "Probe",
    "LoopStatistics",
    "ParkingLot",
    "HandoffLot",
    "ParkableStream",
    "Parked",
    "Resting",
    "Silent",
    "serve_status",
    "serve_pages",
    "survey_of",
    "accept",
    "let_the_loop_read",
    "relieve",
    "unread",
    "journal_clock",
    "fair_slice",
    "REAPS_PER_SLICE",
    "LONGEST_SLICE",
    "PROBE_GRACE",
]
