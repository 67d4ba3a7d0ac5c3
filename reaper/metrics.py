"""What a reaper reports of itself: plain numbers, and the ways out of the process.

The rule of this module: *counting is adding to an int*. Names, labels and text are made on demand. The ways
out are optional: Prometheus (`ReaperCollector`, needs prometheus-client) and OpenTelemetry (`instrument`, needs
opentelemetry-api); neither is imported before it is used.
"""

from __future__ import annotations

import importlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from .core.lease import Statistics
from .errors import needs

__all__ = [
    "LoopStatistics",
    "Histogram",
    "JournalCounts",
    "Family",
    "families",
    "Told",
    "ReaperCollector",
    "instrument",
    "BOUNDS",
]

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds, seconds, inclusive, of a histogram's buckets; what is larger lies in one more. From a tenth of the
shortest sensible tick to a loop that is badly stalled."""


class Histogram:
    """Durations counted by size.

    Attributes:
        counts: One int a bucket of `BOUNDS`, and one for what is larger.
        total: Their sum, seconds.
    """

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0

    def add(self, seconds: float, times: int = 1) -> None:
        """Count *times* durations of *seconds* each. Cost: one bisection, however many."""
        self.counts[bisect_left(BOUNDS, seconds)] += times
        self.total += seconds * times

    def cumulative(self) -> list[tuple[float, int]]:
        """(upper bound, how many are not larger), the last bound infinite."""
        found, so_far = [], 0
        for bound, count in zip((*BOUNDS, float("inf")), self.counts, strict=True):
            so_far += count
            found.append((bound, so_far))
        return found


class JournalCounts(Protocol):
    """What is exported of a journal; `reaper.journal.JournalStatistics` says what each means."""

    @property
    def rows(self) -> int: ...
    @property
    def dropped(self) -> int: ...
    @property
    def errors(self) -> int: ...


@dataclass(frozen=True, slots=True)
class LoopStatistics:
    """What an adapter saw of its connections and of its loop. Times are seconds."""

    core: Statistics
    lag: float
    """How late the loop last came back."""
    max_lag: float
    """The largest of all."""
    stalls: int
    """How often it came back more than a tick late."""
    stalled: float
    """How long those stalls were together: time that was charged to no connection."""
    cpu: float
    """CPU seconds that the reaper's task has used. The unwinding of the handlers it cancelled is not in it."""
    parked: int
    """Open connections that have no task now."""
    reasons: Mapping[str, int]
    """Connections ended by the reaper, by reason."""
    lateness: Histogram
    """Of connections that came due: close - last activity - timeout. Goes on counting. Activity is noted by epochs and
    counts as in the middle of its own, so means are right and each single one is uncertain by `lateness_bound`."""
    lateness_bound: float
    """By how much each lateness may be off, in either direction."""
    lags: Histogram
    """How late the loop came back each time. Goes on counting."""
    journal: JournalCounts | None = None
    """The journal's own statistics; None: there is no journal."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: its name, and one value, one per label, or a histogram."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    doc: str
    values: float | Mapping[str, float] | Histogram
    label: str = field(default="")


def families(seen: LoopStatistics) -> Iterator[Family]:
    """Everything there is to report, in a stable order under stable names. Counters without Prometheus' `_total`."""
    core = seen.core
    yield Family("reaper_leases", "gauge", "Leases registered.", core.registered)
    yield Family("reaper_leases_suspended", "gauge", "Leases exempt: a request is in flight.", core.suspended)
    yield Family("reaper_parked", "gauge", "Open connections that cost no task now.", seen.parked)
    yield Family("reaper_slots", "gauge", "Slots that wait in the ring.", core.slots)
    yield Family("reaper_slots_in_wheel", "gauge", "Slots that wait beyond the ring's span.", core.slots_in_wheel)
    yield Family("reaper_epochs", "counter", "Epochs closed.", core.epochs)
    yield Family("reaper_reaped", "counter", "Connections reaped.", dict(seen.reasons), "reason")
    yield Family("reaper_expired", "counter", "Leases that came due and were not averted.", core.expired)
    yield Family("reaper_averted", "counter", "Reaps averted at the final check.", core.averted)
    yield Family("reaper_moved", "counter", "Leases moved on because they had been touched.", core.moved)
    yield Family("reaper_released", "counter", "Leases that ended without the reaper.", core.released)
    yield Family("reaper_lateness_seconds", "histogram", "Close - last activity - timeout.", seen.lateness)
    yield Family("reaper_lateness_bound_seconds", "gauge", "How far off each lateness may be.", seen.lateness_bound)
    yield Family("reaper_tick_lag_seconds", "histogram", "How late the loop came back.", seen.lags)
    yield Family("reaper_loop_lag_seconds", "gauge", "How late the loop last came back.", seen.lag)
    yield Family("reaper_loop_lag_max_seconds", "gauge", "The latest it ever came back.", seen.max_lag)
    yield Family("reaper_loop_stalls", "counter", "Times the loop came back more than a tick late.", seen.stalls)
    yield Family("reaper_loop_stalled_seconds", "counter", "Time of those, charged to no connection.", seen.stalled)
    yield Family("reaper_cpu_seconds", "counter", "CPU time of the reaper's task.", seen.cpu)
    if (journal := seen.journal) is not None:
        yield Family("reaper_journal_rows", "gauge", "Journal rows that a kill does not lose.", journal.rows)
        yield Family("reaper_journal_dropped", "counter", "Journal rows lost.", journal.dropped)
        yield Family("reaper_journal_errors", "counter", "Failures of the journal's writer.", journal.errors)


Told = Callable[[], Iterable[Family]]
"""More to report, at the time of asking: pressure for instance."""


class ReaperCollector:
    """A Prometheus collector: `prometheus_client.REGISTRY.register(ReaperCollector(r.statistics))`.

    Args:
        statistics: A reaper's `statistics`. Asked at every scrape; the event loop's thread should serve it, or numbers
            of one scrape may stem from neighbouring instants. None: there are only *more*.
        more: Further families.
    Raises:
        ImportError: there is no prometheus-client.
    """

    def __init__(self, statistics: Callable[[], LoopStatistics] | None, *more: Told) -> None:
        with needs("ReaperCollector", "idle-reaper[prometheus]"):
            from prometheus_client import core
        self._core = core
        self._statistics = statistics
        self._more = more

    def describe(self) -> Iterator[Any]:
        """Nothing: registering must not ask a reaper that does not run yet."""
        return iter(())

    def collect(self) -> Iterator[Any]:
        """The families as Prometheus' own."""
        for family in _all(self._statistics, self._more):
            values = family.values
            if isinstance(values, Histogram):
                buckets = [("+Inf" if bound == float("inf") else repr(bound), n) for bound, n in values.cumulative()]
                yield self._core.HistogramMetricFamily(family.name, family.doc, buckets, values.total)
                continue
            make = self._core.GaugeMetricFamily if family.kind == "gauge" else self._core.CounterMetricFamily
            if isinstance(values, Mapping):
                metric = make(family.name, family.doc, labels=[family.label])
                for label, number in sorted(values.items()):
                    metric.add_metric([label], number)
                yield metric
            else:
                yield make(family.name, family.doc, values)


def instrument(meter: Any, statistics: Callable[[], LoopStatistics], *more: Told) -> None:
    """Tell an OpenTelemetry *meter* the same by observable instruments, asked when it exports.

    `reaper_leases` is `reaper.leases` there. The API has no observable histograms: of each, sum and count go out as
    two counters.

    Raises:
        ImportError: there is no opentelemetry-api.
    """
    with needs("instrument", "idle-reaper[opentelemetry]"):
        observation = importlib.import_module("opentelemetry.metrics").Observation

    def observe(name: str) -> Callable[[object], list[Any]]:
        def observed(options: object) -> list[Any]:
            for family in _split(_all(statistics, more)):
                if family.name == name:
                    values = family.values
                    assert not isinstance(values, Histogram)
                    if isinstance(values, Mapping):
                        return [observation(number, {family.label: label}) for label, number in values.items()]
                    return [observation(values)]
            return []

        return observed

    for family in _split(_all(statistics, more)):
        name = family.name.replace("_", ".", 1)
        make = meter.create_observable_gauge if family.kind == "gauge" else meter.create_observable_counter
        make(name, [observe(family.name)], description=family.doc)


def _all(statistics: Callable[[], LoopStatistics] | None, more: Iterable[Told]) -> Iterator[Family]:
    if statistics is not None:
        yield from families(statistics())
    for told in more:
        yield from told()


def _split(told: Iterable[Family]) -> Iterator[Family]:
    """Histograms as two counters each."""
    for family in told:
        values = family.values
        if isinstance(values, Histogram):
            yield Family(f"{family.name}.sum", "counter", family.doc, values.total)
            yield Family(f"{family.name}.count", "counter", family.doc, sum(values.counts))
        else:
            yield family
