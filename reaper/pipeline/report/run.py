"""What the charts of the report show, counted by Spark from one row per connection into small frames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import functions as F  # noqa: N812

from ..audit.run import Audit
from ..read.frames import listener_names
from ..read.inputs import Inputs

BINS = 240
LATENESS_BINS = 40
SUSPECTS = 12


@dataclass(slots=True)
class Charted:
    """The small frames behind the charts. Times in seconds from the first opening."""

    tick: float
    lateness: list[tuple[float, int]]
    """Reaps per slice of lateness: as the client saw it where it did, else as the server logged it."""
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
    span = frame.agg(F.min(F.coalesce(begun, over)), F.max(F.greatest(begun, F.coalesce(over, begun)))).first()
    start, end = (span[0] or 0, span[1] or 1) if span is not None else (0, 1)
    width = max((end - start) // BINS, 1)
    seen = "joined" in audited.summary and frame.where(F.col("seen_lateness_ns").isNotNull()).limit(1).count() > 0
    lateness = F.col("seen_lateness_ns" if seen else "lateness_ns")
    slice_ns = round(tick * 2 / LATENESS_BINS * 1e9)
    buckets = F.greatest(F.least(F.floor(lateness / slice_ns), F.lit(LATENESS_BINS - 1)), F.lit(-2))

    def per(at: Any, size: int, condition: Any = None) -> dict[int, int]:
        chosen = frame.where(at.isNotNull() & (F.lit(True) if condition is None else condition))
        return {row[0]: row[1] for row in chosen.groupBy(F.floor((at - start) / size)).count().collect()}

    reaps = F.col("reaps") > 0
    tick_ns = round(tick * 1e9)
    late = frame.where(lateness.isNotNull()).groupBy(buckets.alias("bucket")).count().collect()
    return Charted(
        tick=tick,
        lateness=sorted((row.bucket * slice_ns / 1e9, row["count"]) for row in late),
        seen=seen,
        width=width / 1e9,
        opened=per(begun, width),
        reaped=per(over, width, reaps),
        closed=per(over, width, ~reaps),
        mass=mass_reaps(per(over, tick_ns, reaps), per(begun, tick_ns), tick),
        suspects=_suspects(frame, listener_names(frame.sparkSession, server)),
    )


def mass_reaps(reaps: dict[int, int], openings: dict[int, int], tick: float) -> list[tuple[float, int, int]]:
    """Ticks in which far more was reaped than usual, and what came back right after."""
    if not reaps:
        return []
    usual = sum(reaps.values()) / (max(reaps) - min(0, *reaps) + 1)
    heavy = sorted((-n, at) for at, n in reaps.items() if n >= max(20, 5 * usual))
    return [(at * tick, -n, sum(openings.get(at + k, 0) for k in range(1, 6))) for n, at in heavy[:10]]


def _suspects(frame: Any, listeners: dict[int, str]) -> list[dict[str, Any]]:
    """Connections that stay open by a few bytes just before each timeout: slow drips."""
    timeout = F.coalesce("end_timeout_ms", "open_timeout_ms").cast("long") * 1_000_000
    mean_idle = F.col("activity_idle_ns") / F.col("activities")
    mean_bytes = F.col("nbytes") / F.col("activities")
    rows = (
        frame.where((F.col("activities") >= 3) & (mean_idle > 0.5 * timeout) & (F.coalesce(mean_bytes, F.lit(0)) <= 16))
        .select(
            "conn",
            "listener_hash",
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
            "listener": listeners.get(row.listener_hash, "(none)"),
            "activities": row.activities,
            "bytes": row.mean_bytes,
            "idle_share": row.mean_idle / row.timeout,
            "held_s": row.held / 1e9,
        }
        for row in rows
    ]
