"""The numbers that a reaper counts, and the metrics that are made of them. *A name,
once exported, keeps its meaning.*
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from ..core.lease import Statistics

if TYPE_CHECKING:
    from ..journal.schema import JournalStatistics

BOUNDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15),
    *(0.25, 0.3, 0.5, 0.6, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0),
)
"""The upper bounds of a histogram's buckets, in seconds, inclusive; larger values have
one bucket more. They reach from a tenth of the shortest sensible tick to a loop that is
badly stalled, and are closest above a quarter and a half of usual ticks, where the
bounds of lateness lie.
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
        """Count *times* durations of *seconds* each. Cost: one bisection, however
        many.
        """
        self.counts[bisect_left(BOUNDS, seconds)] += times
        self.total += seconds * times

    def cumulative(self) -> list[tuple[float, int]]:
        """Pairs of an upper bound and how many durations are not larger; the last bound
        is infinite.
        """
        found, so_far = [], 0
        for bound, count in zip((*BOUNDS, float("inf")), self.counts, strict=True):
            so_far += count
            found.append((bound, so_far))
        return found


@dataclass(frozen=True, slots=True)
class LoopStatistics:
    """The numbers of one adapter about its connections and its loop. Times are
    seconds.
    """

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
    """CPU seconds that the reaper's task has used, without the unwinding of the
    handlers that it cancelled.
    """
    parked: int
    """Open connections that have no task now."""
    reasons: Mapping[str, int]
    """Connections ended by the reaper, by reason."""
    lateness: Histogram
    """The lateness of each connection that came due: close - last activity - timeout,
    without the time in which the loop stalled. The histogram goes on counting. Activity
    is known to its epoch only, and is taken to be in the middle of it: means are right,
    and each single lateness lies between its two bounds, which are counted in the next
    two histograms.
    """
    lateness_lower: Histogram
    """The least that the lateness of each can have been: activity came at the end of
    its epoch.
    """
    lateness_upper: Histogram
    """The most that the lateness of each can have been: activity came as its epoch
    began.
    """
    late: int
    """How many connections were certainly closed more than a tick after their timeout.
    One tick is the promise, where nothing stalls and `reaps_per_second` makes none
    wait.
    """
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


class Row(NamedTuple):
    """One metric of a reaper, and how it is read from its statistics."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    doc: str
    read: Callable[[LoopStatistics], float | Mapping[str, float] | Histogram]
    label: str = ""


UNSTALLED = "Time in which the loop stalled is not in it."
ROWS: Sequence[Row] = (
    Row(
        "reaper_leases",
        "gauge",
        "Leases: one per connection and per further limit on it.",
        lambda seen: seen.core.registered,
    ),
    Row(
        "reaper_leases_suspended",
        "gauge",
        "Leases that cannot expire: requests in flight.",
        lambda seen: seen.core.suspended,
    ),
    Row(
        "reaper_parked",
        "gauge",
        "Open connections that have no task now.",
        lambda seen: seen.parked,
    ),
    Row("reaper_tick_seconds", "gauge", "The precision configured.", lambda seen: seen.tick),
    Row(
        "reaper_slots",
        "gauge",
        "Slots in the ring, due within its span.",
        lambda seen: seen.core.slots,
    ),
    Row(
        "reaper_slots_in_wheel",
        "gauge",
        "Slots in the wheel, beyond the ring's span.",
        lambda seen: seen.core.slots_in_wheel,
    ),
    Row(
        "reaper_epochs",
        "counter",
        "Epochs closed, at most two per tick.",
        lambda seen: seen.core.epochs,
    ),
    Row(
        "reaper_reaped",
        "counter",
        "Connections closed by reaper, by reason.",
        lambda seen: dict(seen.reasons),
        "reason",
    ),
    Row(
        "reaper_expired",
        "counter",
        "Leases that came due and were not averted.",
        lambda seen: seen.core.expired,
    ),
    Row(
        "reaper_averted",
        "counter",
        "Leases that came due and were spared by the final check.",
        lambda seen: seen.core.averted,
    ),
    Row(
        "reaper_moved",
        "counter",
        "Leases moved on in the ring, because of activity.",
        lambda seen: seen.core.moved,
    ),
    Row(
        "reaper_released",
        "counter",
        "Leases that ended without reaper.",
        lambda seen: seen.core.released,
    ),
    Row(
        "reaper_lateness_seconds",
        "histogram",
        "Close - last activity - timeout, activity taken to be in the middle of its epoch. "
        + UNSTALLED,
        lambda seen: seen.lateness,
    ),
    Row(
        "reaper_lateness_lower_seconds",
        "histogram",
        f"Least that the lateness of each close can have been. {UNSTALLED}",
        lambda seen: seen.lateness_lower,
    ),
    Row(
        "reaper_lateness_upper_seconds",
        "histogram",
        f"Most that the lateness of each close can have been. {UNSTALLED}",
        lambda seen: seen.lateness_upper,
    ),
    Row(
        "reaper_late",
        "counter",
        "Connections certainly closed more than one tick late.",
        lambda seen: seen.late,
    ),
    Row(
        "reaper_tick_lag_seconds",
        "histogram",
        "How late the event loop woke reaper, each time.",
        lambda seen: seen.lags,
    ),
    Row(
        "reaper_loop_lag_seconds",
        "gauge",
        "How late the event loop last woke reaper.",
        lambda seen: seen.lag,
    ),
    Row(
        "reaper_loop_lag_max_seconds",
        "gauge",
        "The latest it ever woke reaper.",
        lambda seen: seen.max_lag,
    ),
    Row(
        "reaper_loop_stalls",
        "counter",
        "Times the loop woke reaper more than one tick late.",
        lambda seen: seen.stalls,
    ),
    Row(
        "reaper_loop_stalled_seconds",
        "counter",
        "Time of those, charged to no connection.",
        lambda seen: seen.stalled,
    ),
    Row(
        "reaper_cpu_seconds",
        "counter",
        "CPU time of reaper's own task, without what it cancels.",
        lambda seen: seen.cpu,
    ),
    Row(
        "reaper_abandoned",
        "counter",
        "Requests cancelled because their client was gone.",
        lambda seen: seen.abandoned,
    ),
)
"""Every metric, in a stable order under stable names. Counters lack Prometheus'
`_total`.
"""

JOURNAL: Sequence[tuple[str, Literal["gauge", "counter"], str, str]] = (
    ("reaper_journal_rows", "gauge", "Journal rows that a kill does not lose.", "rows"),
    ("reaper_journal_dropped", "counter", "Journal rows lost.", "dropped"),
    ("reaper_journal_errors", "counter", "Failures of the journal's writer.", "errors"),
)
"""Those of a journal: name, kind, description, and the field of its statistics."""


def families(seen: LoopStatistics) -> Iterator[Family]:
    """Yield every metric of `ROWS`; those of `JOURNAL`, too, where there is a
    journal.
    """
    for row in ROWS:
        yield Family(row.name, row.kind, row.doc, row.read(seen), row.label)
    if seen.journal is not None:
        for name, kind, doc, attribute in JOURNAL:
            yield Family(name, kind, doc, getattr(seen.journal, attribute))
