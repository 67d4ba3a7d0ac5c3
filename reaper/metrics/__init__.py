"""The metrics of a reaper: plain numbers, and the ways in which they leave the process.

The rule of this room: *counting is adding to an int*. Names, labels and text are made
when somebody asks for them. The ways out are Prometheus' text (`exposition`, needs
nothing), its client (`ReaperCollector`, needs prometheus-client) and OpenTelemetry
(`instrument`, needs opentelemetry-api).

Stability: public.
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
