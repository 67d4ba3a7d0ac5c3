"""The adapter for trio: one task for all connections, and the closing of those that have gone silent."""

from __future__ import annotations

from ..metrics import LoopStatistics
from .parking import ParkableStream, Parked, ParkingLot, Silent, WakingLot
from .pressure import relieve
from .reaper import (
    LONGEST_SLICE,
    PROBE_GRACE,
    REAPS_PER_SLICE,
    Connection,
    Probe,
    TrioReaper,
    WatchedStream,
    fair_slice,
    journal_clock,
    open_reaper,
    serve_parked,
    serve_tcp,
)
from .sockets import unread

__all__ = [
    "open_reaper",
    "serve_tcp",
    "serve_parked",
    "TrioReaper",
    "Connection",
    "WatchedStream",
    "Probe",
    "LoopStatistics",
    "ParkingLot",
    "WakingLot",
    "ParkableStream",
    "Parked",
    "Silent",
    "relieve",
    "unread",
    "journal_clock",
    "fair_slice",
    "REAPS_PER_SLICE",
    "LONGEST_SLICE",
    "PROBE_GRACE",
]
