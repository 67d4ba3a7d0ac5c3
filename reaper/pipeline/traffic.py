"""Silences counted into buckets, connections into bins of time, under every candidate timeout. All in Spark.

What comes out is small: a row per listener and bucket of 1 %, a row per listener, candidate and bin.
"""

from __future__ import annotations

import math
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ..journal.schema import ENDS
from .frames import of_connections, runs_frame, with_run
from .inputs import Inputs
from .survival import RATIO, bucket_edge

BINS = 600
"""Bins of time for open connections."""


def silences_of_journal(events: DataFrame) -> DataFrame:
    """Grain: one row per silence; listener_hash, idle_ns, returned. Silences of a server at work are left out."""
    return (
        of_connections(events)
        .where(F.col("idle_ns").isNotNull() & (F.col("kind") != "averted"))
        .where(F.col("timeout_ms").isNull() | (F.col("timeout_ms") > 0))
        .select(
            F.xxhash64("listener").alias("listener_hash"), "idle_ns", (F.col("kind") == "activity").alias("returned")
        )
    )


def histogram(rows: DataFrame) -> dict[int, dict[float, tuple[int, int]]]:
    """listener_hash -> upper edge of the bucket in seconds -> (ended, censored)."""
    seconds = F.greatest(F.col("idle_ns") / 1e9, F.lit(1e-6))
    bucket = F.ceil(F.log(seconds) / math.log(RATIO)).cast("int")
    counted = rows.groupBy("listener_hash", bucket.alias("bucket"), "returned").count().collect()
    result: dict[int, dict[float, tuple[int, int]]] = {}
    for row in counted:
        cells = result.setdefault(row.listener_hash, {})
        ended, censored = cells.get(edge := bucket_edge(row.bucket), (0, 0))
        cells[edge] = (ended + row["count"], censored) if row.returned else (ended, censored + row["count"])
    return result


def lives_of_journal(spark: SparkSession, events: DataFrame, inputs: Inputs, candidates: list[float]) -> DataFrame:
    """Grain: one row per connection. See `_connections` for the columns; ends_<i> is its end under candidate i."""
    kind, t, idle = F.col("kind"), F.col("t"), F.col("idle_ns")
    is_end = kind.isin(*ENDS)
    grouped = (
        of_connections(events)
        .groupBy("conn")
        .agg(
            F.min(F.when(kind == "open", t)).alias("opened"),
            F.max(F.xxhash64("listener")).alias("listener_hash"),
            F.max(F.when(kind == "activity", idle)).alias("longest"),
            F.min(F.when(is_end, t)).alias("ended"),
            F.min(F.when(kind == "reap", t - idle)).alias("reaped_after"),
            (F.max(F.when(is_end, F.col("n"))) - F.count(F.when(kind == "activity", 1))).alias("short"),
            F.max(F.when(kind == "reap", 1)).alias("reaped"),
            *(F.min(F.when(idle > _ns(c), t - idle + _ns(c))).alias(f"cut_{i}") for i, c in enumerate(candidates)),
        )
        .where(F.col("opened").isNotNull())
    )
    runs = runs_frame(spark, inputs, 1)
    placed = with_run(grouped, runs)
    ends = [
        F.coalesce(f"cut_{i}", F.col("reaped_after") + F.lit(_ns(c)), "ended", "log_end_ns") + F.col("offset_ns")
        for i, c in enumerate(candidates)
    ]
    return placed.select(
        "listener_hash",
        (F.col("opened") + F.col("offset_ns")).alias("opened"),
        (F.coalesce("ended", "log_end_ns") + F.col("offset_ns")).alias("ended"),
        "longest",
        "short",
        "reaped",
        *(end.alias(f"ends_{i}") for i, end in enumerate(ends)),
    )


def lives_of_requests(gaps: DataFrame, candidates: list[float]) -> DataFrame:
    """The same for access logs: a connection begins with the end of its first request."""
    end = F.col("at_ns") + F.col("idle_ns")
    cuts = [F.min(F.when(F.col("idle_ns") > _ns(c), F.col("at_ns") + F.lit(_ns(c)))) for c in candidates]
    return (
        gaps.groupBy("key", F.xxhash64("listener").alias("listener_hash"))
        .agg(
            F.min("at_ns").alias("opened"),
            F.max(end).alias("ended"),
            F.max(F.when(F.col("returned"), F.col("idle_ns"))).alias("longest"),
            F.lit(0).cast("long").alias("short"),
            F.lit(0).alias("reaped"),
            *(F.coalesce(cut, F.max(end)).alias(f"ends_{i}") for i, cut in enumerate(cuts)),
        )
        .drop("key")
    )


def connections(lives: DataFrame, candidates: list[float]) -> tuple[dict[int, dict[str, Any]], float]:
    """Per listener: connections, reaps, uncounted short silences; per candidate: connections cut, peak, mean open.

    Returns:
        listener_hash -> facts, and the seconds observed.
    """
    lives = lives.cache()
    columns = [f"ends_{i}" for i in range(len(candidates))]
    head = lives.groupBy("listener_hash").agg(
        F.count(F.lit(1)).alias("connections"),
        F.sum(F.coalesce("reaped", F.lit(0))).alias("reaps"),
        F.sum(F.greatest(F.coalesce("short", F.lit(0)), F.lit(0))).alias("short"),
        F.min("opened").alias("begin"),
        F.max("ended").alias("end"),
        *(F.count(F.when(F.col("longest") > _ns(c), 1)).alias(f"cut_{i}") for i, c in enumerate(candidates)),
    )
    rows = head.collect()
    if not rows:
        return {}, 0.0
    begin, end = min(row.begin for row in rows), max(row.end for row in rows)
    width = max((end - begin) // BINS, 1_000_000)
    each = lives.select(
        "listener_hash",
        F.posexplode(F.array(*(F.floor((F.col(column) - begin) / width) for column in columns))).alias("i", "to"),
    )
    openings = lives.groupBy("listener_hash", F.floor((F.col("opened") - begin) / width).alias("bin")).count().collect()
    endings = each.groupBy("listener_hash", "i", F.col("to").alias("bin")).count().collect()
    lives.unpersist()
    result: dict[int, dict[str, Any]] = {}
    for row in rows:
        opened: dict[int, int] = {r.bin: r["count"] for r in openings if r.listener_hash == row.listener_hash}
        peaks, means = [], []
        for i in range(len(candidates)):
            ended = {r.bin: r["count"] for r in endings if r.listener_hash == row.listener_hash and r.i == i}
            level = peak = area = 0
            for at in range((end - begin) // width + 1):
                level += opened.get(at, 0)
                peak = max(peak, level)
                area += level
                level -= ended.get(at, 0)
            peaks.append(peak)
            means.append(area * width / max(end - begin, width))
        result[row.listener_hash] = {
            "connections": row.connections,
            "reaps": row.reaps,
            "short": row.short,
            "cut": [row[f"cut_{i}"] for i in range(len(candidates))],
            "peak": peaks,
            "mean": means,
        }
    return result, (end - begin) / 1e9


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
