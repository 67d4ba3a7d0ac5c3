"""What the stream computes, and how it is kept: the same functions for a stream and for
a frame that stands still.

`windows` and `idle` are pure: of a frame that holds all of the feed they are the answer
that the stream must come to. The sinks may be given a batch twice; it counts once.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from ..places import sync
from ..read.frames import ns
from .feed import CHANGE, COUNTS, MARKER
from .feed import FEED as _FEED

PART_ROWS = 250_000
"""Rows after which the sessions go on in a new file: few files, and no batch rewrites
more than this.
"""

BATCH = b"reaper.batch"

FEED: StructType = from_arrow_schema(_FEED)
"""`feed.FEED`, as Spark says it."""

IN_USE_GAP = "1 minute"
"""How long a session waits after a row without a timeout in force: silence is no
idleness then.
"""

ENDED, IDLE, IN_USE = "ended", "idle", "in_use"
"""How a session of activity ended: closed within it; no row for its timeout; no timeout
in force at its last row.
"""


def windows(events: DataFrame, window_ns: int, delay_ns: int) -> DataFrame:
    """Figures per window and listener. Grain: one row per (start, listener); event
    time; for `update` or static frames.

    Columns: start, end, listener, opened, reaped, closed, averted, overdue (rows that
    end a silence which outlasted its timeout by more than a tick, other than reaps:
    missed by the reaper, or averted; exact in both modes of a journal, for timeouts
    above its threshold), max_lateness_ns (null: nothing was reaped).
    """
    kind = F.col("kind")
    silence = F.col("idle_ns") > ns(F.col("timeout_ms")) + F.col("tick_ns")
    overdue = kind.isin("activity", "close_peer", "close_app") & (F.col("timeout_ms") > 0) & silence
    return (
        events.withWatermark("at", f"{delay_ns // 1_000_000} milliseconds")
        .groupBy(F.window("at", f"{window_ns // 1_000_000} milliseconds"), "listener")
        .agg(
            F.count(F.when(kind == "open", 1)).alias("opened"),
            F.count(F.when(kind == "reap", 1)).alias("reaped"),
            F.count(F.when(kind.isin("close_peer", "close_app"), 1)).alias("closed"),
            F.count(F.when(kind == "averted", 1)).alias("averted"),
            F.count(F.when(overdue, 1)).alias("overdue"),
            F.max("lateness_ns").alias("max_lateness_ns"),
            F.count(F.when(~kind.isin(MARKER, CHANGE), 1)).alias("rows"),
        )
        .where(F.col("rows") > 0)
        .select("window.start", "window.end", "listener", *COUNTS, "max_lateness_ns")
    )


def idle(events: DataFrame, delay_ns: int) -> DataFrame:
    """Sessions of activity, each ended by a silence of the timeout in force. Grain: one
    row per session; append.

    Key: run, conn, started. Columns: listener, last (its last row), outcome (see
    `ENDED`), idle_from (its last row + the timeout; null unless idle), rows, certain
    (written in `full` mode; in `gaps` mode brief pauses leave no row, and an idle
    connection may only be one that never paused for long).

    A row reports the timeout in force before it; what is in force after it only the
    next row tells: in `full` mode the row of a change, which makes the session longer,
    never shorter. Reaps end a session that still lasts, and open none: who has gone
    silent is decided here. What was averted is decided by the next row.
    """
    kind, timeout = F.col("kind"), F.col("timeout_ms")
    over = kind.isin("reap", "close_peer", "close_app")
    watched = timeout > 0
    gap = (
        F.when(over, "1 millisecond")
        .when(watched, F.concat(timeout.cast("string"), F.lit(" milliseconds")))
        .otherwise(IN_USE_GAP)
    )
    return (
        events.where(kind != "averted")
        .withWatermark("at", f"{delay_ns // 1_000_000} milliseconds")
        .groupBy(F.session_window("at", gap), "run", "conn")
        .agg(
            F.max("listener").alias("listener"),
            F.max("at").alias("last"),
            F.count(F.when(~kind.isin("reap", CHANGE), 1)).alias("rows"),
            F.count(F.when(kind == MARKER, 1)).alias("markers"),
            F.max(F.when(over, 1).otherwise(0)).alias("over"),
            # Fixed-width, and the same whatever the order of rows: the flag rides in
            # the lowest bits of the instant. A change is at the instant of the activity
            # before it, and later; of several, that to no timeout counts.
            F.max(
                F.unix_micros("at") * 4
                + F.when(kind == CHANGE, 2).otherwise(0)
                + F.when(watched, 0).otherwise(1)
            ).alias("at_last"),
            F.min(F.col("full").cast("int")).alias("full"),
        )
        .where((F.col("rows") > 0) & (F.col("markers") == 0))
        .withColumn(
            "outcome",
            F.when(F.col("over") == 1, ENDED)
            .when(F.col("at_last") % 2 == 1, IN_USE)
            .otherwise(IDLE),
        )
        .select(
            "run",
            "conn",
            "listener",
            F.col("session_window.start").alias("started"),
            "last",
            "outcome",
            F.when(F.col("outcome") == IDLE, F.col("session_window.end")).alias("idle_from"),
            "rows",
            (F.col("full") == 1).alias("certain"),
        )
    )


def keep_windows(directory: Path, batch: DataFrame, _: int = 0) -> None:
    """Write the windows of *batch* over those that *directory* has: one file per day,
    each window once.
    """
    changed = batch.toArrow()  # always: it is this that makes Spark commit its state
    days = pc.floor_temporal(changed["start"], unit="day").cast(pa.date32())
    for day in sorted(set(days.to_pylist())):
        rows = changed.filter(pc.equal(days, pa.scalar(day, pa.date32())))
        path = directory / f"{day.isoformat()}.parquet"
        if path.exists():
            before, given = pq.ParquetFile(path).read(), set(_keys(rows))
            rows = pa.concat_tables(
                [before.filter([key not in given for key in _keys(before)]), rows]
            )
        write_atomically(rows.sort_by([("start", "ascending"), ("listener", "ascending")]), path)


def _keys(windows: pa.Table) -> list[tuple[int, str | None]]:
    return list(
        zip(
            windows["start"].cast(pa.int64()).to_pylist(),
            windows["listener"].to_pylist(),
            strict=True,
        )
    )


def keep_sessions(directory: Path, batch: DataFrame, number: int) -> None:
    """Append the sessions of batch *number* to the newest file in *directory*, or to a
    new one. A batch given twice counts once.
    """
    rows = batch.toArrow()  # always, as above
    parts = sorted(directory.glob("[0-9]*.parquet"))
    serial = int(parts[-1].stem) if parts else 0
    if not rows.num_rows:
        return
    if parts:
        with pq.ParquetFile(parts[-1]) as file:
            if int(file.schema_arrow.metadata[BATCH]) >= number:
                return
            if file.metadata.num_rows < PART_ROWS:
                rows = pa.concat_tables(
                    [file.read().replace_schema_metadata(None), rows.replace_schema_metadata(None)]
                )
            else:
                serial += 1
    write_atomically(
        rows.replace_schema_metadata({BATCH: str(number)}), directory / f"{serial:06d}.parquet"
    )


def write_atomically(table: pa.Table, path: Path) -> None:
    """Put *table* in place as one Parquet file: a reader sees the old file or the new
    one.
    """
    hidden = path.with_name(f".{path.name}")
    pq.write_table(table, hidden, compression="zstd")
    sync(hidden)
    hidden.replace(path)
