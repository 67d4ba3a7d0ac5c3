"""The numbers that a reaper counts, and the metrics that are made of them. *A name, once exported,
keeps its meaning.*
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ..core.lease import Statistics

if TYPE_CHECKING:
    from ..journal.schema import JournalStatistics

BOUNDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15),
    *(0.25, 0.3, 0.5, 0.6, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0),
)
"""The upper bounds of a histogram's buckets, in seconds, inclusive; larger values have one bucket
more. They reach from a tenth of the shortest sensible tick to a loop that is badly stalled, and are
closest above a quarter and a half of usual ticks, where the bounds of lateness lie.
"""


class Histogram:
    """Durations counted by size.

    Attributes:
        counts: One number per bucket of `BOUNDS`, and one for larger durations.
        total: The sum of the durations, seconds.
    """

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts: list[int] = [0] * (len(BOUNDS) + 1)
        self.total: float = 0.0

    def add(self, seconds: float, times: int = 1) -> None:
        """Count *times* durations of *seconds* each. Cost: one bisection, however many."""
        self.counts[bisect_left(BOUNDS, seconds)] += times
        self.total += seconds * times

    def cumulative(self) -> list[tuple[float, int]]:
        """Pairs of an upper bound and how many durations are not larger; the last bound is infinite."""
        found, so_far = [], 0
        for bound, count in zip((*BOUNDS, float("inf")), self.counts, strict=True):
            so_far += count
            found.append((bound, so_far))
        return found


@dataclass(frozen=True, slots=True)
class LoopStatistics:
    """The numbers of one adapter about its connections and its loop. Times are seconds."""

    core: Statistics
    lag: float
    """How late the loop last came back."""
    max_lag: float
    """How late it came back at worst."""
    stalls: int
    """How often it came back more than a tick late."""
    stalled: float
    """The length of those stalls together. No connection is charged for that time."""
    cpu: float
    """CPU seconds that the reaper's task has used, without the unwinding of the handlers that it
    cancelled.
    """
    parked: int
    """Open connections that have no task now."""
    reasons: Mapping[str, int]
    """Connections ended by the reaper, by reason."""
    lateness: Histogram
    """The lateness of each connection that came due: close - last activity - timeout, without the
    time in which the loop stalled. The histogram goes on counting. Activity is known to its epoch
    only, and is taken to be in the middle of it: means are right, and each single lateness lies
    between its two bounds, which are counted in the next two histograms."""
    lateness_lower: Histogram
    """The least that the lateness of each can have been: activity came at the end of its epoch."""
    lateness_upper: Histogram
    """The most that the lateness of each can have been: activity came as its epoch began."""
    late: int
    """How many connections were certainly closed more than a tick after their timeout. One tick is
    the promise, where nothing stalls and `reaps_per_second` makes none wait."""
    tick: float
    """The precision in force."""
    lags: Histogram
    """How late the loop came back each time. The histogram goes on counting."""
    abandoned: int = 0
    """Requests that were cancelled because their client was gone."""
    journal: JournalStatistics | None = None
    """The journal's own statistics; None: there is no journal."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its name, and one value, or one value per label, or a histogram."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    doc: str
    values: float | Mapping[str, float] | Histogram
    label: str = field(default="")


def families(seen: LoopStatistics) -> Iterator[Family]:
    """Yield every metric, in a stable order under stable names. Counters lack Prometheus' `_total`."""
    core = seen.core
    unstalled = "Time in which the loop stalled is not in it."
    yield Family(
        "reaper_leases",
        "gauge",
        "Leases: one per connection and per further limit on it.",
        core.registered,
    )
    yield Family(
        "reaper_leases_suspended",
        "gauge",
        "Leases that cannot expire: requests in flight.",
        core.suspended,
    )
    yield Family("reaper_parked", "gauge", "Open connections that have no task now.", seen.parked)
    yield Family("reaper_tick_seconds", "gauge", "The precision configured.", seen.tick)
    yield Family("reaper_slots", "gauge", "Slots in the ring, due within its span.", core.slots)
    yield Family(
        "reaper_slots_in_wheel",
        "gauge",
        "Slots in the wheel, beyond the ring's span.",
        core.slots_in_wheel,
    )
    yield Family("reaper_epochs", "counter", "Epochs closed, at most two per tick.", core.epochs)
    yield Family(
        "reaper_reaped",
        "counter",
        "Connections closed by reaper, by reason.",
        dict(seen.reasons),
        "reason",
    )
    yield Family(
        "reaper_expired", "counter", "Leases that came due and were not averted.", core.expired
    )
    yield Family(
        "reaper_averted",
        "counter",
        "Leases that came due and were spared by the final check.",
        core.averted,
    )
    yield Family(
        "reaper_moved", "counter", "Leases moved on in the ring, because of activity.", core.moved
    )
    yield Family("reaper_released", "counter", "Leases that ended without reaper.", core.released)
    for name, values, doc in (
        (
            "",
            seen.lateness,
            "Close - last activity - timeout, activity taken to be in the middle of its epoch.",
        ),
        ("_lower", seen.lateness_lower, "Least that the lateness of each close can have been."),
        ("_upper", seen.lateness_upper, "Most that the lateness of each close can have been."),
    ):
        yield Family(f"reaper_lateness{name}_seconds", "histogram", f"{doc} {unstalled}", values)
    yield Family(
        "reaper_late", "counter", "Connections certainly closed more than one tick late.", seen.late
    )
    yield Family(
        "reaper_tick_lag_seconds",
        "histogram",
        "How late the event loop woke reaper, each time.",
        seen.lags,
    )
    yield Family(
        "reaper_loop_lag_seconds", "gauge", "How late the event loop last woke reaper.", seen.lag
    )
    yield Family(
        "reaper_loop_lag_max_seconds", "gauge", "The latest it ever woke reaper.", seen.max_lag
    )
    yield Family(
        "reaper_loop_stalls",
        "counter",
        "Times the loop woke reaper more than one tick late.",
        seen.stalls,
    )
    yield Family(
        "reaper_loop_stalled_seconds",
        "counter",
        "Time of those, charged to no connection.",
        seen.stalled,
    )
    yield Family(
        "reaper_cpu_seconds",
        "counter",
        "CPU time of reaper's own task, without what it cancels.",
        seen.cpu,
    )
    yield Family(
        "reaper_abandoned",
        "counter",
        "Requests cancelled because their client was gone.",
        seen.abandoned,
    )
    if (journal := seen.journal) is not None:
        yield Family(
            "reaper_journal_rows", "gauge", "Journal rows that a kill does not lose.", journal.rows
        )
        yield Family("reaper_journal_dropped", "counter", "Journal rows lost.", journal.dropped)
        yield Family(
            "reaper_journal_errors", "counter", "Failures of the journal's writer.", journal.errors
        )
