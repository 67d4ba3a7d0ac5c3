"""What a reaper reports of itself: plain numbers, and the ways out of the process.

The rule of this room: *counting is adding to an int*. Names, labels and text are made on demand.
The ways out are Prometheus' text (`exposition`, needs nothing), its client (`ReaperCollector`,
needs prometheus-client) and OpenTelemetry (`instrument`, needs opentelemetry-api).
"""

from __future__ import annotations

from .exporters import ReaperCollector, Told, instrument
from .record import BOUNDS, Family, Histogram, LoopStatistics, families
from .text import CONTENT_TYPE, exposition, merged

__all__ = [
    "LoopStatistics",
    "Histogram",
    "Family",
    "families",
    "Told",
    "exposition",
    "merged",
    "CONTENT_TYPE",
    "ReaperCollector",
    "instrument",
    "BOUNDS",
]
