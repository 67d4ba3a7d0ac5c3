"""The law of time as one expression over one row per connection. docs/pipeline.md has the table in words.

A verdict is the first that applies, worst first, so that every connection has exactly one.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from ..journal.schema import STALL
from .frames import ns, with_run

VERDICTS = {
    "activity_after_end": "something happened on it after it had ended",
    "duplicate": "it was opened or ended more than once, or a row of it is there twice",
    "early": "reaped before it had been silent for its timeout",
    "missed": "silent for more than its timeout, one tick and the grace, and not reaped",
    "late": "reaped more than one tick, the grace and the stalls of its loop after it was due",
    "lost": "it has no end although it was due long before the log ends, or left no row at all",
    "missing_touch": "the silences written do not add up to what its end row says",
    "unknown": "its beginning is not in the log, or its clock ran backwards",
    "open_at_end": "still open, and rightly, when the log ends",
    "ok_reaped": "reaped, in time",
    "ok_closed": "ended by a peer or the program, in time",
}
VIOLATIONS = ("early", "missed", "late", "lost", "duplicate", "activity_after_end", "missing_touch")
"""An audit with any of these fails; so does quarantined input."""

_STALLS = T.StructType([T.StructField(n, T.LongType(), False) for n in ("stall_run", "stall_from", "stall_to")])


def excuse_stalls(spark: SparkSession, frame: DataFrame, stalls: list[tuple[int, int, int]]) -> DataFrame:
    """*frame* with `stalled_ns`: how long the loop was stuck while the connection was overdue.

    Args:
        frame: Has conn, run, due_from and due_to (ns on the writer's clock), null where nothing is to be excused.
        stalls: (run, from, to) of every stall; they do not overlap within a run.
    """
    if not stalls:
        return frame.withColumn("stalled_ns", F.lit(0).cast("long"))
    small = F.broadcast(spark.createDataFrame(stalls, _STALLS))
    overlap = F.least("due_to", "stall_to") - F.greatest("due_from", "stall_from")
    excused = (
        frame.where(F.col("due_to").isNotNull())
        .join(small, (F.col("run") == F.col("stall_run")) & (overlap > 0), "inner")
        .groupBy(F.col("conn").alias("excused_conn"))
        .agg(F.sum(overlap).alias("stalled_ns"))
    )
    joined = frame.join(excused, F.col("conn") == F.col("excused_conn"), "left").drop("excused_conn")
    return joined.withColumn("stalled_ns", F.coalesce("stalled_ns", F.lit(0)))


def own_rows(events: DataFrame, runs: DataFrame) -> tuple[list[tuple[int, int, int]], list[int]]:
    """What the writers say about themselves: stalls as `excuse_stalls` wants them, and the runs that have drained."""
    rows = events.where((F.col("kind") == "drain") | ((F.col("kind") == "config") & (F.col("reason") == STALL)))
    found = with_run(rows.select("conn", "kind", "t", "idle_ns"), runs).select("run", "kind", "t", "idle_ns").collect()
    stalls = [(row.run, row.t - row.idle_ns, row.t) for row in found if row.kind == "config"]
    return stalls, sorted({row.run for row in found if row.kind == "drain"})


def prepare(frame: DataFrame, grace_ns: int) -> DataFrame:
    """*frame* (lifetimes with their run) with what the expression names.

    Adds: limit_ns, idle_timeout_ns (null: none in force), lateness_ns (of a reap), due_from and due_to.
    """
    timeout = F.when(F.col("end_timeout_ms") > 0, ns(F.col("end_timeout_ms")))
    reaped = F.col("reaps") > 0
    limit = F.col("tick_ns") + F.lit(grace_ns)
    lateness = F.when(reaped, F.greatest(F.col("end_idle_ns") - timeout, F.col("ended") - F.col("due_ns")))
    late = reaped & (lateness > limit)
    missed = F.col("overdue_activities") > 0
    return (
        frame.withColumn("limit_ns", limit)
        .withColumn("idle_timeout_ns", timeout)
        .withColumn("lateness_ns", lateness)
        .withColumn("due_to", F.when(late, F.col("ended")).when(missed, F.col("overdue_t")))
        .withColumn(
            "due_from",
            F.when(late, F.col("ended") - lateness).when(missed, F.col("overdue_t") - F.col("overdue_ns")),
        )
    )


def judge(frame: DataFrame, drained: list[int]) -> DataFrame:
    """*frame* (prepared and excused) with `verdict`, from the server's log alone. *drained*: runs with no one left."""
    ended, opened = F.col("ended"), F.col("opened")
    reaped = F.col("reaps") > 0
    limit = F.col("limit_ns") + F.col("stalled_ns")
    no_end = F.col("ends") == 0
    rows_idle = F.coalesce("activity_idle_ns", F.lit(0))
    early = reaped & (
        (F.col("end_idle_ns") < F.col("idle_timeout_ns"))
        | (ended < F.col("due_ns"))
        | (ended - F.col("last_activity") < F.col("idle_timeout_ns"))
    )
    unread = ended - F.col("end_idle_ns") - opened - F.col("end_idle_sum_ns")  # silences that were not written
    doubled = (rows_idle > F.col("end_idle_sum_ns")) | (F.col("activities") > F.col("end_n"))
    missing = (
        (rows_idle < F.col("end_idle_sum_ns"))
        | (unread < 0)
        | (F.col("full") & ((unread != 0) | (F.col("activities") < F.col("end_n"))))
    )
    silent_end = ~reaped & (F.col("end_idle_ns") - F.col("idle_timeout_ns") > limit)
    silent_before = (F.col("overdue_activities") > F.col("averts")) & (F.col("overdue_ns") > limit)
    last_seen = F.greatest(F.coalesce("last_activity", opened), opened)
    due_ms = F.when(F.col("open_timeout_ms") > 0, F.col("open_timeout_ms"))
    # In `gaps` mode short silences leave no row: a quiet log proves a quiet connection only in `full` mode.
    forgotten = F.col("full") & (F.col("log_end_ns") - last_seen > ns(due_ms) + limit)
    return frame.withColumn(
        "verdict",
        _first(
            ("unknown", F.col("backward") > 0),
            ("activity_after_end", F.col("last_activity") > ended),
            ("duplicate", (F.col("opens") > 1) | (F.col("ends") > 1) | ((F.col("opens") == 1) & ~no_end & doubled)),
            ("early", early),
            ("missed", silent_end | silent_before),
            ("late", reaped & (F.col("lateness_ns") > limit)),
            ("unknown", F.col("opens") == 0),
            ("lost", no_end & (forgotten | F.col("run").isin(drained))),
            ("missing_touch", missing),
            ("open_at_end", no_end),
            ("ok_reaped", reaped),
        ),
    )


def _first(*cases: tuple[str, Column]) -> Column:
    expression = F.when(cases[0][1], cases[0][0])
    for verdict, condition in cases[1:]:
        expression = expression.when(condition, verdict)
    return expression.otherwise("ok_closed")
