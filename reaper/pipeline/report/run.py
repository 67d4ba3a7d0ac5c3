"""What the charts of the report show, counted by Spark from one row per connection into small frames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..audit.run import Audit
from ..engine import F, together
from ..html.charts import ROUND_S
from ..read.inputs import Inputs

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

BINS = 240
LATENESS_TICKS = 2
"""Lateness of so many ticks and more is counted together."""
SUSPECTS = 12


@dataclass(slots=True)
class Charted:
    """The small frames behind the charts. Times in seconds from the first opening."""

    tick: float
    lateness: list[tuple[float, int]]
    """Reaps per slice of lateness: as the client saw it where it did, else as the server logged it. The first is of all
    that were early by two slices or more, the last of all that were late by `LATENESS_TICKS` or more."""
    slice: float
    """A round tenth of a tick, or so."""
    seen: bool
    width: float
    """Of a bin of time."""
    opened: dict[int, int]
    reaped: dict[int, int]
    closed: dict[int, int]
    mass: list[tuple[float, int, int]]
    """(when, reaps in one tick, openings in the five ticks after it), most reaps first."""
    suspects: list[dict[str, Any]]


def gather(audited: Audit, server: Inputs) -> Charted:
    """Count what the charts show, from one row per connection."""
    frame = audited.connections
    ticks = audited.summary["settings_s"]["tick"]
    tick = max(ticks) if ticks else 1.0
    begun, over = F.col("opened") + F.col("offset_ns"), F.col("ended") + F.col("offset_ns")
    joined = "joined" in audited.summary
    first, last = F.min(F.coalesce(begun, over)), F.max(F.greatest(begun, F.coalesce(over, begun)))
    span = frame.agg(first, last, *([F.count("seen_lateness_ns")] if joined else [])).collect()[0]
    start, end, observed = span[0] or 0, span[1] or 1, span[2] if joined else 0
    width = round(_round((end - start) / BINS / 1e9) * 1e9)
    lateness = F.col("seen_lateness_ns" if observed else "lateness_ns")
    slice_ns, tick_ns = round(_round(tick / 10) * 1e9), round(tick * 1e9)
    last_slice = LATENESS_TICKS * tick_ns // slice_ns
    reaps = F.col("reaps") > 0

    def bins(at: Column, size: int) -> Column:
        return F.floor((at - start) / size)

    series = [
        bins(begun, width),
        F.when(reaps, bins(over, width)),
        F.when(~reaps, bins(over, width)),
        bins(begun, tick_ns),
        F.when(reaps, bins(over, tick_ns)),
        F.greatest(F.least(F.floor(lateness / slice_ns), F.lit(last_slice)), F.lit(-2)),
    ]
    # A null of `lateness` would be no null among the greatest and the least.
    series[-1] = F.when(lateness.isNotNull(), series[-1])
    counted, suspects = together(lambda: _counts(frame, series), lambda: _suspects(frame))
    opened, reaped, closed, opened_by_tick, reaped_by_tick, late = counted
    return Charted(
        tick=tick,
        lateness=sorted((bucket * slice_ns / 1e9, count) for bucket, count in late.items()),
        slice=slice_ns / 1e9,
        seen=observed > 0,
        width=width / 1e9,
        opened=opened,
        reaped=reaped,
        closed=closed,
        mass=mass_reaps(reaped_by_tick, opened_by_tick, tick),
        suspects=suspects,
    )


def _round(least: float) -> float:
    """The next length of time that people count in, seconds."""
    return next((step for step in ROUND_S if step >= least * 0.999), least)


def _counts(frame: DataFrame, series: list[Column]) -> list[dict[int, int]]:
    """Per column of *series*: value -> rows that have it; nulls are left out. All in one look at *frame*."""
    many = len(series)
    keys = F.array(*(column * F.lit(many) + F.lit(i) for i, column in enumerate(series)))
    rows = frame.select(F.explode(keys).alias("key")).where(F.col("key").isNotNull()).groupBy("key").count().collect()
    found: list[dict[int, int]] = [{} for _ in series]
    for row in rows:
        value, i = divmod(row.key, many)
        found[i][value] = row["count"]
    return found


def mass_reaps(reaps: dict[int, int], openings: dict[int, int], tick: float) -> list[tuple[float, int, int]]:
    """Ticks in which far more was reaped than usual, and what came back right after."""
    if not reaps:
        return []
    usual = sum(reaps.values()) / (max(reaps) - min(0, *reaps) + 1)
    heavy = sorted((-n, at) for at, n in reaps.items() if n >= max(20, 5 * usual))
    return [(at * tick, -n, sum(openings.get(at + k, 0) for k in range(1, 6))) for n, at in heavy[:10]]


def _suspects(frame: Any) -> list[dict[str, Any]]:
    """Connections that stay open by a few bytes just before each timeout: slow drips."""
    timeout = F.coalesce("end_timeout_ms", "open_timeout_ms").cast("long") * 1_000_000
    mean_idle = F.col("activity_idle_ns") / F.col("activities")
    mean_bytes = F.col("nbytes") / F.col("activities")
    rows = (
        frame.where((F.col("activities") >= 3) & (mean_idle > 0.5 * timeout) & (F.coalesce(mean_bytes, F.lit(0)) <= 16))
        .select(
            "conn",
            "listener",
            "activities",
            mean_bytes.alias("mean_bytes"),
            mean_idle.alias("mean_idle"),
            timeout.alias("timeout"),
            F.col("activity_idle_ns").alias("held"),
        )
        .orderBy(F.desc("held"), "conn")
        .limit(SUSPECTS)
        .collect()
    )
    return [
        {
            "conn": row.conn,
            "listener": row.listener or "(none)",
            "activities": row.activities,
            "bytes": row.mean_bytes,
            "idle_share": row.mean_idle / row.timeout,
            "held_s": row.held / 1e9,
        }
        for row in rows
    ]
