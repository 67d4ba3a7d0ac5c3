"""Exports for programs that have Prometheus' client or OpenTelemetry already. Neither
is imported before it is used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from ..errors import needs
from .record import Family, Histogram, LoopStatistics, families

Told = Callable[[], Iterable[Family]]
"""A function that returns further metrics when they are asked for: those of pressure,
for instance.
"""


class ReaperCollector:
    """A Prometheus collector:
    `prometheus_client.REGISTRY.register(ReaperCollector(r.statistics))`.

    Args:
        statistics: A reaper's `statistics`, which is called at every scrape. The event
            loop's thread should serve the scrape, or its numbers may stem from
            neighbouring instants. None: there are only the families of *more*.
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
        """Return nothing: registering must not ask a reaper that does not run yet."""
        return iter(())

    def collect(self) -> Iterator[Any]:
        """Yield the families as those of Prometheus' client."""
        for family in _all(self._statistics, self._more):
            values = family.values
            if isinstance(values, Histogram):
                buckets = [
                    ("+Inf" if bound == float("inf") else repr(bound), n)
                    for bound, n in values.cumulative()
                ]
                yield self._core.HistogramMetricFamily(
                    family.name, family.doc, buckets, values.total
                )
                continue
            make = (
                self._core.GaugeMetricFamily
                if family.kind == "gauge"
                else self._core.CounterMetricFamily
            )
            if isinstance(values, Mapping):
                metric = make(family.name, family.doc, labels=[family.label])
                for label, number in sorted(values.items()):
                    metric.add_metric([label], number)
                yield metric
            else:
                yield make(family.name, family.doc, values)


def instrument(meter: Any, statistics: Callable[[], LoopStatistics], *more: Told) -> None:
    """Give an OpenTelemetry *meter* the same metrics, as observable instruments that it
    asks when it exports.

    `reaper_leases` is called `reaper.leases` there. The API has no observable
    histograms, so the sum and the count of each go out as two counters.

    Raises:
        ImportError: there is no opentelemetry-api.
    """
    with needs("instrument", "idle-reaper[opentelemetry]"):
        observation = importlib.import_module("opentelemetry.metrics").Observation

    def observed(name: str, _: object) -> list[Any]:
        for family in _split(_all(statistics, more)):
            if family.name == name and isinstance(family.values, Mapping):
                return [
                    observation(number, {family.label: label})
                    for label, number in family.values.items()
                ]
            if family.name == name:
                return [observation(family.values)]
        return []

    for family in _split(_all(statistics, more)):
        make = (
            meter.create_observable_gauge
            if family.kind == "gauge"
            else meter.create_observable_counter
        )
        name, observe = family.name.replace("_", ".", 1), partial(observed, family.name)
        make(name, [observe], description=family.doc)


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
