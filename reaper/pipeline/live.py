"""A growing journal followed with Structured Streaming: figures per window, and who has gone silent.

A row carries the timeout in force, so a connection's session ends, by `session_window` with a gap per row, when that
has passed and no row of its came: what a reaper far away decided locally is decided again here, across all servers, on
event time. The state and the sinks' commits live in the checkpoint; a restart loses and doubles nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from ..journal.schema import ENDS, OWN, arrow_schema
from .frames import EVENTS

SCHEMA = "reaper-live/1"
MARKER = "drained"
"""Reason of the marker row that lets the last sessions out: nothing follows it, so nothing can come too late."""


def event_time(t: str = "t") -> Any:
    """The instant of a row on the wall clock, as Spark's timestamp (microseconds, rounded down)."""
    return F.timestamp_micros(F.floor((F.col(t) + F.coalesce("wall_offset_ns", F.lit(0))) / 1000))


def windows(events: DataFrame, window_ns: int, delay_ns: int) -> DataFrame:
    """Figures per window and listener. Grain: one row per (window, listener); event time; append."""
    kind = F.col("kind")
    lateness = F.when(kind == "reap", F.col("t") - F.col("due_ns"))
    return (
        events.where(~kind.isin(*OWN) | (F.col("reason") == MARKER))
        .withWatermark("at", f"{delay_ns // 1_000_000} milliseconds")
        .groupBy(F.window("at", f"{window_ns // 1_000_000} milliseconds"), "listener")
        .agg(
            F.count(F.when(kind == "open", 1)).alias("opened"),
            F.count(F.when(kind == "reap", 1)).alias("reaped"),
            F.count(F.when(kind.isin("close_peer", "close_app"), 1)).alias("closed"),
            F.count(F.when(kind == "averted", 1)).alias("averted"),
            F.max(lateness).alias("max_lateness_ns"),
        )
        .select("window.start", "window.end", "listener", "opened", "reaped", "closed", "averted", "max_lateness_ns")
        .where(F.col("opened") + F.col("reaped") + F.col("closed") + F.col("averted") > 0)
    )


def idle(events: DataFrame, delay_ns: int) -> DataFrame:
    """Sessions of activity, each ended by a silence of the timeout in force. Grain: one row per session; append.

    Columns: conn, started, idle_from (the last row's instant + its timeout), rows, ended (it was closed within it). A
    session without `ended` is a connection gone silent; reaps are left out, because that is what is decided here. Exact
    for journals in `full` mode; in `gaps` mode a connection that only ever pauses briefly writes nothing, and looks it.
    """
    gap = F.when(
        F.col("timeout_ms") > 0, F.concat(F.col("timeout_ms").cast("string"), F.lit(" milliseconds"))
    ).otherwise("1 day")
    return (
        events.where(~F.col("kind").isin(*OWN, "reap", "averted") | (F.col("reason") == MARKER))
        .withWatermark("at", f"{delay_ns // 1_000_000} milliseconds")
        .groupBy(F.session_window("at", gap), "conn")
        .agg(
            F.count(F.lit(1)).alias("rows"),
            F.max(F.when(F.col("kind").isin(*ENDS), 1).otherwise(0)).alias("ended"),
            F.max(F.when(F.col("reason") == MARKER, 1).otherwise(0)).alias("marker"),
        )
        .where(F.col("marker") == 0)
        .select(
            "conn",
            F.col("session_window.start").alias("started"),
            F.col("session_window.end").alias("idle_from"),
            "rows",
            (F.col("ended") == 1).alias("ended"),
        )
    )


def follow(
    spark: SparkSession,
    events_dir: Path,
    out: Path,
    *,
    window_ns: int,
    delay_ns: int,
    seconds: float,
    drain: bool,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Process what is there and, for *seconds*, what comes; go on later from the checkpoints in *out*.

    Writes `windows/` and `idle/` below *out* (Parquet; read them with Spark, whose commit log in them is what makes a
    restart exact).

    Args:
        drain: Nobody writes any more: a marker row far ahead lets the last windows and sessions out.
    """
    marks = out.resolve() / "marker"
    marks.mkdir(parents=True, exist_ok=True)
    source = _stream(spark, events_dir.resolve())
    events = source.unionByName(_stream(spark, marks)).withColumn("at", event_time())
    if drain:
        _mark(spark, events_dir, marks, delay_ns)
    tables = {"windows": windows(events, window_ns, delay_ns), "idle": idle(events, delay_ns)}
    dropped = 0
    rows = 0
    deadline = time.monotonic() + seconds
    while True:
        for name, table in tables.items():
            progress(f"processing what is new into {name}")
            query = (
                table.writeStream.format("parquet")
                .outputMode("append")
                .option("checkpointLocation", str(out.resolve() / "checkpoint" / name))
                .option("path", str(out.resolve() / name))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            dropped += _dropped(query)
            rows += sum(step["numInputRows"] for step in query.recentProgress) if name == "windows" else 0
        if time.monotonic() >= deadline:
            break
        time.sleep(min(1.0, max(0.0, deadline - time.monotonic())))
    return {
        "schema": SCHEMA,
        "new_rows": rows,
        "dropped_by_watermark": dropped,
        "windows": _count(spark, out / "windows", None),
        "sessions": _count(spark, out / "idle", None),
        "idle_connections": _count(spark, out / "idle", ~F.col("ended")),
    }


def as_text(summary: dict[str, Any]) -> str:
    """The summary in a few lines."""
    sessions = f"{summary['sessions']:,} sessions, {summary['idle_connections']:,} of them ended by silence alone"
    lines = [f"{summary['new_rows']:,} new rows; so far {summary['windows']:,} windows, {sessions}"]
    if summary["dropped_by_watermark"]:
        lines.append(f"{summary['dropped_by_watermark']:,} rows came later than --delay allows and were left out")
    return "\n".join(lines)


def _stream(spark: SparkSession, directory: Path) -> DataFrame:
    return spark.readStream.schema(EVENTS).option("recursiveFileLookup", "true").parquet(str(directory))


def _mark(spark: SparkSession, events_dir: Path, marks: Path, delay_ns: int) -> None:
    """Write the marker row: later than every row by the longest timeout, the delay, and a day."""
    batch = spark.read.schema(EVENTS).option("recursiveFileLookup", "true").parquet(str(events_dir.resolve()))
    latest = batch.agg(F.max(F.col("t") + F.coalesce("wall_offset_ns", F.lit(0))), F.max("timeout_ms")).first()
    if latest is None or latest[0] is None:
        return
    t = latest[0] + (latest[1] or 0) * 1_000_000 + delay_ns + 2 * 86_400 * 10**9
    values: dict[str, Any] = {"t": t, "conn": 0, "kind": "drain", "reason": MARKER, "wall_offset_ns": 0}
    schema = arrow_schema()
    pq.write_table(pa.Table.from_pylist([values], schema=schema), marks / f"marker-{time.time_ns()}.parquet")


def _dropped(query: StreamingQuery) -> int:
    return sum(
        operator["numRowsDroppedByWatermark"] for step in query.recentProgress for operator in step["stateOperators"]
    )


def _count(spark: SparkSession, directory: Path, condition: Any) -> int:
    if not directory.exists() or not any(directory.glob("*.parquet")):
        return 0
    frame = spark.read.parquet(str(directory.resolve()))
    return frame.count() if condition is None else frame.where(condition).count()
