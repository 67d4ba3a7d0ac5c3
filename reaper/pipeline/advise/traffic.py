"""Silences counted into buckets, connections into bins of time, under every candidate timeout. All
in Spark.

What comes out is small: a row per listener and bucket of 1 %, a row per listener, candidate and
bin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...journal.schema import ACTIVITY, AVERTED, OPEN, REAP
from ..engine import F, answering
from ..read.frames import IS_END, filtered, of_connections, runs_frame, with_run
from ..read.inputs import Inputs
from ..read.runs import Timeline
from .survival import LEAST_NS, width_sql

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

CANDIDATES = tuple(
    map(
        float,
        (
            1,
            2,
            3,
            4,
            5,
            7,
            10,
            15,
            20,
            30,
            45,
            60,
            75,
            90,
            120,
            180,
            300,
            350,
            600,
            900,
            1800,
            3600,
        ),
    )
)
"""Seconds. Those that people configure; the recommendation itself is not bound to them."""

BINS = 600
"""Bins of time for open connections."""


def silences_of_journal(events: DataFrame) -> DataFrame:
    """Grain: one row per silence; listener_hash, idle_ns, returned. Silences of a server at work
    are left out.
    """
    return (
        of_connections(events)
        .where(F.col("idle_ns").isNotNull() & (F.col("code") != AVERTED))
        .where(F.col("timeout_ms").isNull() | (F.col("timeout_ms") > 0))
        .select(
            F.xxhash64("listener").alias("listener_hash"),
            "idle_ns",
            (F.col("code") == ACTIVITY).alias("returned"),
        )
    )


def with_edge(rows: DataFrame, column: str) -> DataFrame:
    """*rows* with `edge_ns`, the upper edge of the bucket of the silence in *column* (ns), see
    `survival.width_sql`.
    """
    rows = rows.withColumn("_idle", F.greatest(F.col(column), F.lit(LEAST_NS)))
    rows = rows.withColumn("_width", F.expr(f"CAST({width_sql('_idle')} AS BIGINT)"))
    return rows.withColumn("edge_ns", F.expr("((_idle + _width - 1) div _width) * _width")).drop(
        "_idle", "_width"
    )


def histogram(rows: DataFrame) -> dict[int, dict[float, tuple[int, int]]]:
    """listener_hash -> upper edge of the bucket in seconds -> (ended, censored)."""
    counted = (
        with_edge(rows, "idle_ns").groupBy("listener_hash", "edge_ns", "returned").count().collect()
    )
    result: dict[int, dict[float, tuple[int, int]]] = {}
    for row in counted:
        cells = result.setdefault(row.listener_hash, {})
        ended, censored = cells.get(edge := row.edge_ns / 1e9, (0, 0))
        cells[edge] = (
            (ended + row["count"], censored) if row.returned else (ended, censored + row["count"])
        )
    return result


@dataclass(frozen=True, slots=True)
class Lives:
    """Connections, asked twice, for the bins of time are known only once all have been seen."""

    whole: DataFrame
    """Grain: one row per connection; listener_hash, opened (null: before the log), ended, rows,
    longest, short.
    """
    ends: DataFrame
    """Grain: one row per connection that opened; listener_hash, opened, offset_ns, ends. ends[i] is
    its end under candidate i; it and opened are on the writer's clock, which + offset_ns is that of
    `whole`."""


def lives_of_journal(spark: SparkSession, events: DataFrame, inputs: Inputs) -> Lives:
    """The connections of a journal."""
    is_open, is_activity, is_reap = f"code = {OPEN}", f"code = {ACTIVITY}", f"code = {REAP}"
    rows = of_connections(events)
    runs = runs_frame(spark, inputs.runs, Timeline.of(inputs.runs))
    always = [
        filtered("max(xxhash64(listener))", is_open).alias("listener_hash"),
        filtered("min(t)", is_open).alias("opened"),
        filtered("min(t)", IS_END).alias("ended"),
    ]
    counts = [
        F.count(F.lit(1)).alias("rows"),
        filtered("max(idle_ns)", is_activity).alias("longest"),
        (filtered("max(n)", IS_END) - filtered("count(1)", is_activity)).alias("short"),
    ]
    cuts = [
        filtered("min(t - idle_ns)", is_reap).alias("reaped_after"),
        *(
            filtered("min(t - idle_ns)", f"idle_ns > {_ns(c)}").alias(f"cut_{i}")
            for i, c in enumerate(CANDIDATES)
        ),
    ]
    if answering() == "embedded":
        whole = ends = rows.groupBy("conn").agg(*always, *counts, *cuts).persist()
    else:  # Spark takes longer to keep so many columns than to make them twice
        whole = rows.groupBy("conn").agg(*always, *counts)
        # Activity after less silence than any candidate ends nothing: in full mode that is a good
        # part of the rows.
        telling = rows.where(
            (F.col("code") != ACTIVITY) | (F.col("idle_ns") > _ns(min(CANDIDATES)))
        )
        ends = telling.groupBy("conn").agg(*always, *cuts)
    each = [
        F.coalesce(F.coalesce(f"cut_{i}", "reaped_after") + F.lit(_ns(c)), "ended", "log_end_ns")
        for i, c in enumerate(CANDIDATES)
    ]
    return Lives(
        with_run(whole, runs).select(
            "listener_hash",
            (F.col("opened") + F.col("offset_ns")).alias("opened"),
            (F.coalesce("ended", "log_end_ns") + F.col("offset_ns")).alias("ended"),
            "rows",
            "longest",
            "short",
        ),
        with_run(ends.where(F.col("opened").isNotNull()), runs).select(
            "listener_hash", "opened", "offset_ns", F.array(*each).alias("ends")
        ),
    )


def lives_of_requests(gaps: DataFrame) -> Lives:
    """The same for access logs: a connection begins with the end of its first request."""
    end = F.col("at_ns") + F.col("idle_ns")
    cuts = [
        F.min(F.when(F.col("idle_ns") > _ns(c), F.col("at_ns") + F.lit(_ns(c)))) for c in CANDIDATES
    ]
    lives = gaps.groupBy("key", F.xxhash64("listener").alias("listener_hash")).agg(
        F.min("at_ns").alias("opened"),
        F.max(end).alias("ended"),
        F.count(F.lit(1)).alias("rows"),
        F.max(F.when(F.col("returned"), F.col("idle_ns"))).alias("longest"),
        F.lit(0).cast("long").alias("short"),
        F.lit(0).cast("long").alias("offset_ns"),
        F.array(*(F.coalesce(cut, F.max(end)) for cut in cuts)).alias("ends"),
    )
    return Lives(lives, lives)


@dataclass(slots=True)
class Traffic:
    """Connections, counted."""

    listeners: dict[int, dict[str, Any]]
    """listener_hash -> connections, uncounted short silences; per candidate: those cut, peak and
    mean open.
    """
    span_s: float = 0.0
    rows: int = 0
    """Rows of all connections."""
    headless: int = 0
    """Connections that began before the log: in none of the figures."""


def connections(lives: Lives) -> Traffic:
    """Count *lives* under every candidate."""
    begun = F.col("opened").isNotNull()

    by_longest = with_edge(lives.whole, "longest").groupBy("listener_hash", "edge_ns")
    head = by_longest.agg(
        F.count("opened").alias("connections"),
        F.sum("rows").alias("rows"),
        F.count(F.when(~begun, 1)).alias("headless"),
        F.sum(F.when(begun, F.greatest(F.coalesce("short", F.lit(0)), F.lit(0)))).alias("short"),
        F.min("opened").alias("begin"),
        F.max(F.when(begun, F.col("ended"))).alias("end"),
    )
    found = head.collect()
    counted = Traffic({}, 0.0, sum(row.rows for row in found), sum(row.headless for row in found))
    rows = [row for row in found if row.connections]
    if not rows:
        return counted
    begin, end = min(row.begin for row in rows), max(row.end for row in rows)
    width = max((end - begin) // BINS, 1_000_000)
    last = (end - begin) // width
    counts = _counts(lives.ends, begin, width, last + 1)
    for listener in {row.listener_hash for row in rows}:
        mine = [row for row in rows if row.listener_hash == listener]
        series = [counts.get((listener, i), {}) for i in range(len(CANDIDATES) + 1)]
        opened = series[-1]
        peaks, means = [], []
        for ended in series[:-1]:
            level = peak = area = 0
            for at in range(last + 1):
                level += opened.get(at, 0)
                peak = max(peak, level)
                area += level
                level -= ended.get(at, 0)
            peaks.append(peak)
            means.append(area * width / max(end - begin, width))
        counted.listeners[listener] = {
            **{key: sum(row[key] for row in mine) for key in ("connections", "short")},
            "cut": [
                sum(row.connections for row in mine if row.edge_ns > _ns(c)) for c in CANDIDATES
            ],
            "peak": peaks,
            "mean": means,
        }
    counted.span_s = (end - begin) / 1e9
    return counted


def _counts(
    ends: DataFrame, begin: int, width: int, beyond: int
) -> dict[tuple[int, int], dict[int, int]]:
    """(listener_hash, i) -> bin -> connections. i: a candidate, whose ends are counted; then
    openings. Bins from *beyond* on are one.

    Where all candidates end a connection in one bin, as they mostly do, that is one row to count,
    not one a candidate.
    """
    opened, alike = range(len(CANDIDATES), len(CANDIDATES) + 2)
    bits = alike.bit_length()
    since = F.lit(begin) - F.col("offset_ns")

    def place(instant: Column) -> Column:
        return F.least(F.floor((instant - F.col("since")) / width), F.lit(beyond))

    def key(i: int | Column, at: Column) -> Column:
        # Bits, for a product and a sum would be checked.
        return F.shiftleft(at, bits).bitwiseOR(i)

    first, last = place(F.array_min("ends")), place(F.array_max("ends"))
    # A function over the array: twenty places written out are a method that Java, for its length,
    # never compiles.
    each = F.transform("ends", lambda end, i: key(i, place(end)))
    begun = key(opened, place(F.col("opened")))
    keys = F.when(first == last, F.array(begun, key(alike, last))).otherwise(
        F.concat(F.array(begun), each)
    )
    placed = ends.withColumn("since", since).select("listener_hash", F.explode(keys).alias("key"))
    result: dict[tuple[int, int], dict[int, int]] = {}
    for row in placed.groupBy("listener_hash", "key").count().collect():
        at, i = row.key >> bits, row.key & (1 << bits) - 1
        for series in range(len(CANDIDATES)) if i == alike else (i,):
            bins = result.setdefault((row.listener_hash, series), {})
            bins[at] = bins.get(at, 0) + row["count"]
    return result


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
