"""The law of time as one expression over one row per connection. docs/pipeline.md has the table in words.

A verdict is the first that applies, worst first, so that every connection has exactly one.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from ...journal.schema import STALL
from ..read.frames import ns, small_frame, with_run

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

Stalls = dict[int, list[tuple[int, int]]]
"""run -> (from, to) of each stall of its loop, on the timeline that all runs share."""

NO_RUN = -1

_STALL = T.StructType([T.StructField("s_from", T.LongType(), False), T.StructField("s_to", T.LongType(), False)])
_STALLS = T.StructType(
    [
        T.StructField("s_run", T.IntegerType(), False),
        T.StructField("s_c_run", T.IntegerType(), False),
        T.StructField("s_stalls", T.ArrayType(_STALL, False), False),
    ]
)
"""Grain: one row per pair of runs. One row per stall would need a second look at the connections, which computes them
again."""


def excuse_stalls(spark: SparkSession, frame: DataFrame, server: Stalls, client: Stalls) -> DataFrame:
    """*frame* with `stalled_ns`: how long a loop was stuck, the server's or its client's, to the cost of this one.

    That is while it was overdue, and while the epoch of its last activity was held open by it.

    Args:
        frame: Has conn, run, c_run (null: no client), offset_ns, due_ns, idle_timeout_ns, and due_from and due_to (ns
            on the writer's clock), null where nothing is to be excused. Cardinality: every row once.
        server: Of every run of the server, also those without a stall.
        client: What stuck at both sides at once counts once.
    """
    rows = [
        (run, c_run, [{"s_from": since, "s_to": to} for since, to in merged])
        for run in sorted(server)
        for c_run, theirs in sorted({NO_RUN: [], **client}.items())
        if (merged := merge([*server.get(run, []), *theirs]))
    ]
    nothing = F.lit(0).cast("long")
    if not rows:
        return frame.withColumn("stalled_ns", nothing)
    small = F.broadcast(small_frame(spark, rows, _STALLS))
    due_from, due_to = F.col("due_from") + F.col("offset_ns"), F.col("due_to") + F.col("offset_ns")
    # When that epoch ended is known of a reap: a timeout before it was due.
    active = due_from - F.col("idle_timeout_ns")
    closed = F.when(F.col("reaps") > 0, F.col("due_ns") - F.col("idle_timeout_ns") + F.col("offset_ns"))

    def add(sum_ns: Column, stall: Column) -> Column:
        overdue = F.least(due_to, stall["s_to"]) - F.greatest(due_from, stall["s_from"])
        held = F.least(closed, due_from, stall["s_to"]) - F.greatest(active, stall["s_from"])
        held = F.when(closed.isNotNull(), F.greatest(held, nothing)).otherwise(nothing)
        return sum_ns + F.greatest(overdue, nothing) + held

    same = (F.col("run") == F.col("s_run")) & (F.coalesce("c_run", F.lit(NO_RUN)) == F.col("s_c_run"))
    stalled = F.when(F.col("due_to").isNotNull(), F.aggregate("s_stalls", nothing, add))
    joined = frame.join(small, same, "left").withColumn("stalled_ns", F.coalesce(stalled, nothing))
    return joined.drop(*_STALLS.names)


def merge(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """*intervals* as a union: sorted, none touching another."""
    merged: list[tuple[int, int]] = []
    for since, to in sorted(intervals):
        if merged and since <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], to))
        else:
            merged.append((since, to))
    return merged


def own_rows(events: DataFrame, runs: DataFrame) -> tuple[Stalls, list[int]]:
    """What the writers say about themselves: the stalls of their loops, and the runs that have drained."""
    rows = events.where((F.col("kind") == "drain") | ((F.col("kind") == "config") & (F.col("reason") == STALL)))
    placed = with_run(rows.select("conn", "kind", "t", "idle_ns"), runs)
    found = placed.select("run", "kind", (F.col("t") + F.col("offset_ns")).alias("t"), "idle_ns").collect()
    stalls: Stalls = {}
    for row in found:
        if row.kind == "config":
            stalls.setdefault(row.run, []).append((row.t - row.idle_ns, row.t))
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
    overdue_end = F.when(~reaped, F.col("end_idle_ns") - timeout)
    closed_late = overdue_end > limit
    return (
        frame.withColumn("limit_ns", limit)
        .withColumn("idle_timeout_ns", timeout)
        .withColumn("lateness_ns", lateness)
        .withColumn("due_to", F.when(late | closed_late, F.col("ended")).when(missed, F.col("overdue_t")))
        .withColumn(
            "due_from",
            F.when(late, F.col("ended") - lateness)
            .when(closed_late, F.col("ended") - overdue_end)
            .when(missed, F.col("overdue_t") - F.col("overdue_ns")),
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
