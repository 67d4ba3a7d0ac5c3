"""What a reaper tells: counts under stable names, the same by every way out."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reaper.journal import Journal
from reaper.metrics import (
    BOUNDS,
    Family,
    Histogram,
    ReaperCollector,
    exposition,
    families,
    instrument,
    merged,
)
from reaper.policy.pressure import Pressure, Resources
from tests.helpers.driver_loop import Loop

NAMES = [
    *("reaper_leases", "reaper_leases_suspended", "reaper_parked", "reaper_tick_seconds"),
    *("reaper_slots", "reaper_slots_in_wheel", "reaper_epochs"),
    *("reaper_reaped", "reaper_expired", "reaper_averted", "reaper_moved", "reaper_released"),
    *(
        "reaper_lateness_seconds",
        "reaper_lateness_lower_seconds",
        "reaper_lateness_upper_seconds",
        "reaper_late",
    ),
    *("reaper_tick_lag_seconds", "reaper_loop_lag_seconds", "reaper_loop_lag_max_seconds"),
    *("reaper_loop_stalls", "reaper_loop_stalled_seconds", "reaper_cpu_seconds"),
    "reaper_abandoned",
]
JOURNAL_NAMES = ["reaper_journal_rows", "reaper_journal_dropped", "reaper_journal_errors"]


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 5)), max_size=30))
def test_a_histogram_counts_like_the_definition_of_its_buckets(
    durations: list[tuple[float, int]],
) -> None:
    histogram = Histogram()
    for seconds, times in durations:
        histogram.add(seconds, times)
    for bound, count in histogram.cumulative():
        assert count == sum(times for seconds, times in durations if seconds <= bound)
    assert histogram.total == pytest.approx(sum(seconds * times for seconds, times in durations))
    assert len(histogram.cumulative()) == len(BOUNDS) + 1


def lived(**options: Any) -> Loop:
    """Of three connections two were silent and one sent no headers; one ended by
    itself, and one is in use.
    """
    loop = Loop(**options)
    loop.watch(5).leave()
    for reason in ("idle", "idle", "headers"):
        loop.watch(5, reason=reason)
    loop.run_until(10)
    loop.watch(5).suspend()
    return loop


class Meter:
    """A meter of OpenTelemetry that keeps what it is given."""

    def __init__(self) -> None:
        self.made: dict[str, tuple[str, list[Any]]] = {}

    def create_observable_gauge(self, name: str, callbacks: list[Any], description: str) -> None:
        self.made[name] = ("gauge", callbacks)

    def create_observable_counter(self, name: str, callbacks: list[Any], description: str) -> None:
        self.made[name] = ("counter", callbacks)


def test_everything_is_exported_under_stable_names_and_the_same_by_every_way_out(
    tmp_path: Path,
) -> None:
    for package in ("pyarrow", "opentelemetry.metrics"):
        pytest.importorskip(package)
    prometheus, meter = pytest.importorskip("prometheus_client"), Meter()
    with Journal(tmp_path, clock_ns=lambda: 0, background=False, queue_rows=4) as journal:
        statistics = lived(journal=journal).driver.statistics
        exported: dict[str, Any] = {f.name: f.values for f in families(statistics())}
        instrument(meter, statistics)
        registry = prometheus.CollectorRegistry()
        registry.register(
            ReaperCollector(statistics, lambda: [Family("more", "gauge", "More.", 0.5)])
        )
        text = prometheus.generate_latest(registry).decode().splitlines()
        told = {
            name: {tuple((o.attributes or {}).items()): o.value for o in callbacks[0](None)}
            for name, (_, callbacks) in meter.made.items()
        }
    assert list(exported) == [*NAMES, *JOURNAL_NAMES]
    assert exported["reaper_reaped"] == {"idle": 2, "headers": 1}
    assert (exported["reaper_leases"], exported["reaper_leases_suspended"]) == (1, 1)
    assert (exported["reaper_expired"], exported["reaper_released"]) == (3, 1)
    assert sum(exported["reaper_lateness_seconds"].counts) == 3
    assert sum(exported["reaper_tick_lag_seconds"].counts) >= 10
    assert exported["reaper_journal_rows"] == 0
    assert exported["reaper_journal_dropped"] > 0
    assert {
        'reaper_reaped_total{reason="idle"} 2.0',
        'reaper_lateness_seconds_bucket{le="+Inf"} 3.0',
        "reaper_lateness_seconds_count 3.0",
        "reaper_averted_total 0.0",
        "reaper_leases 1.0",
        "more 0.5",
    } <= set(text)
    assert told["reaper.reaped"] == {(("reason", "idle"),): 2, (("reason", "headers"),): 1}
    assert told["reaper.leases"] == {(): 1}
    assert told["reaper.lateness_seconds.count"] == {(): 3}
    assert meter.made["reaper.reaped"][0] == "counter"


def test_every_metric_is_documented_by_its_name() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "production.md").read_text()
    pressure = [family.name for family in Pressure(Resources()).families()]
    assert not [
        name
        for name in NAMES + JOURNAL_NAMES + pressure
        if f"`{name}`" not in page and f"`{name}_total" not in page
    ]


def test_the_log_says_which_connection_why_and_how_late(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="reaper"):
        lived()
    closed: list[Any] = [record for record in caplog.records if hasattr(record, "reason")]
    assert sorted(record.reason for record in closed) == ["headers", "idle", "idle"]
    assert all(record.lateness >= 0 and record.due > 0 for record in closed)


def test_the_mean_lateness_is_the_one_a_user_would_measure() -> None:
    """From the end of the timeout, counted from the last activity, to the close.
    Activity may come at any instant.
    """
    chance, loop = random.Random(4), Loop()
    last = {loop.watch(5): chance.uniform(0, 4) for _ in range(400)}
    for connection, instant in sorted(last.items(), key=lambda pair: pair[1]):
        loop.run_until(instant)
        connection.touch()
    measured = []
    while last:
        loop.run_until(loop.driver.rest())
        measured += [
            loop.time - last.pop(connection) - 5 for connection in list(last) if connection.reaped
        ]
    told = loop.driver.statistics()
    mean = told.lateness.total / sum(told.lateness.counts)
    assert mean == pytest.approx(sum(measured) / len(measured), abs=0.02)
    assert mean > 0.2
    assert told.lateness_lower.total <= sum(measured) <= told.lateness_upper.total
    bounds = zip(told.lateness_lower.cumulative(), told.lateness_upper.cumulative(), strict=True)
    for (bound, least), (_, most) in bounds:
        assert most <= sum(each <= bound + 1e-9 for each in measured) <= least
    assert told.late == 0


def test_a_timeout_that_is_shortened_fakes_no_lateness() -> None:
    loop = Loop()
    connection = loop.watch(1000)
    loop.run_until(500)
    connection.retime(5)
    loop.run_until(510)
    seen = loop.driver.statistics()
    assert (seen.core.expired, sum(seen.lateness.counts)) == (1, 1)
    assert seen.lateness.total < 1


def test_a_lease_that_is_no_connection_has_no_lateness() -> None:
    loop = Loop()
    loop.driver.register("a timer of the server's", 5)
    loop.run_until(510)
    seen = loop.driver.statistics()
    assert (seen.core.expired, sum(seen.lateness.counts)) == (1, 0)


def test_label_values_are_escaped_and_samples_of_one_metric_stand_together() -> None:
    reason = Family("reaped", "counter", "By reason.", {'a "quoted" \\ one\n': 2}, "reason")
    one = exposition([({}, [reason, Family("open", "gauge", "Open.", 0.5)])])
    assert one.splitlines() == [
        "# HELP reaped_total By reason.",
        "# TYPE reaped_total counter",
        r'reaped_total{reason="a \"quoted\" \\ one\n"} 2',
        "# HELP open Open.",
        "# TYPE open gauge",
        "open 0.5",
    ]
    both = merged({"0": one, "1": "", "2": one}, "worker").splitlines()
    assert both[3] == r'reaped_total{worker="2",reason="a \"quoted\" \\ one\n"} 2'
    assert both[4:] == [
        "# HELP open Open.",
        "# TYPE open gauge",
        'open{worker="0"} 0.5',
        'open{worker="2"} 0.5',
    ]
