"""Each silence that outlasted its timeout, judged by itself, and the stalls that excuse.

The rule of this module: *an excuse belongs to one silence*. A stall excuses as much as it overlaps with that silence,
because time in which a loop stood still is charged to no connection; a final check that found bytes unread ends the
silence in which it was made. These rows are few, and the check of the files knows which have any: no other is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from ...journal.schema import ACTIVITY, AVERTED, ENDS, KINDS, REAP
from ..read.frames import OVERDUE, RUNS, ns, read_events, small_frame, with_run
from ..read.inputs import Inputs
from ..read.runs import Facts, Run, Timeline, as_rows
from ..read.writer_facts import Said, Stalls, merge

MOST_ROWS = 200_000
"""Rows of an `Overdue` that are kept in the driver. Beyond, the events are looked at again where they lie."""

NO_RUN = -1

RARE: T.StructType = T.StructType(
    [
        T.StructField("conn", T.LongType(), False),
        T.StructField("code", T.ByteType(), False),
        T.StructField("t", T.LongType(), False),
        T.StructField("idle_ns", T.LongType()),
        T.StructField("timeout_ms", T.IntegerType()),
        T.StructField("due_ns", T.LongType()),
    ]
)
"""Grain: one row per final check that spared, and per silence beyond its timeout."""

_STALL = T.StructType([T.StructField("s_from", T.LongType(), False), T.StructField("s_to", T.LongType(), False)])
_STALLS = T.StructType(
    [
        T.StructField("s_run", T.IntegerType(), False),
        T.StructField("s_c_run", T.IntegerType(), False),
        T.StructField("s_stalls", T.ArrayType(_STALL, False), False),
    ]
)
"""Grain: one row per pair of runs that stalled. One per stall would multiply the rows it is joined with."""

JUDGED_RUNS: T.StructType = T.StructType(
    [
        *RUNS.fields,
        T.StructField("run_stalled_ns", T.LongType(), False),
        T.StructField("run_drained", T.BooleanType(), False),
    ]
)
"""`RUNS`; how long the run's loop stood still in all; whether it said that no connection of its is left."""

SILENCES: T.StructType = T.StructType(
    [
        T.StructField("conn", T.LongType(), False),
        T.StructField("missed", T.LongType(), False),
        T.StructField("came_back", T.LongType(), False),
        T.StructField("missed_ns", T.LongType()),
        T.StructField("missed_t", T.LongType()),
        T.StructField("reaped_late", T.LongType(), False),
        T.StructField("spared_lateness_ns", T.LongType()),
    ]
)
"""Grain: one row per connection with such a silence. missed: silences that ought to have been reaped and were not;
came_back: those of them that activity ended; missed_ns, missed_t: of the worst, how long it was overdue and when that
ended; reaped_late: reaps too late; spared_lateness_ns: lateness of a reap that counts from a final check (null: it
counts from the silence)."""


@dataclass(frozen=True, slots=True)
class Overdue:
    """The rows of `RARE` in some events."""

    frame: DataFrame
    few: bool
    """They are in the driver."""


def overdue_rows(spark: SparkSession, inputs: Inputs, files: list[Facts], least_ns: int) -> Overdue:
    """Look through *files*, of *inputs*, once; of compacted ones through their table.

    Args:
        least_ns: Silences that outlasted their timeout by no more are left out.
    """
    tables = {facts.within for facts in files}
    events = read_events(spark, Inputs(files, tables=[table for table in inputs.tables if table.path in tables]))
    late = (F.col("code") == REAP) & (F.col("t") - F.col("due_ns") > least_ns)
    found = events.where((F.col("code") == AVERTED) | (F.expr(OVERDUE) > least_ns) | late).select(*RARE.names)
    table = found.limit(MOST_ROWS + 1).toArrow()
    few = table.num_rows <= MOST_ROWS
    return Overdue(spark.createDataFrame(table, RARE) if few else found, few)


def judged_runs(
    spark: SparkSession, runs: Iterable[Run], timeline: Timeline, tick_ns: int, by_writers: Said
) -> DataFrame:
    """*runs* as a small frame, see `JUDGED_RUNS`; *tick_ns* where a file does not state it.

    Columns, so that the text of the plan is the same for every journal: Java has compiled it when it is asked again.
    """
    stalled = {run: sum(to - since for since, to in found) for run, found in by_writers.stalls.items()}
    rows = as_rows(runs, timeline, tick_ns)
    rows = [(*row, stalled[row[0]], row[0] in by_writers.drained) for row in rows]
    return small_frame(spark, rows, JUDGED_RUNS)


def judge_silences(spark: SparkSession, rare: DataFrame, stalls: Stalls, runs: DataFrame, grace_ns: int) -> DataFrame:
    """One row per connection with a silence beyond its timeout and the limit, see `SILENCES`."""
    ends = [KINDS.index(kind) for kind in ENDS]
    spared = (
        rare.where(F.col("code") == AVERTED)
        .groupBy(F.col("conn").alias("spared_conn"))
        .agg(F.collect_list("t").alias("spared_at"))
    )
    silent = with_run(rare.where(F.col("code").isin(ACTIVITY, *ends)), runs)
    silent = silent.join(spared, F.col("conn") == F.col("spared_conn"), "left").drop("spared_conn")
    since, t, reaped = F.col("t") - F.col("idle_ns"), F.col("t"), F.col("code") == REAP
    checks = F.filter("spared_at", lambda at: (at > since) & (at <= t))
    first, last = F.array_min(checks), F.array_max(checks)
    silent = (
        silent.withColumn("since", F.when(reaped, F.coalesce(last, since)).otherwise(since))
        .withColumn("until", F.when(reaped, t).otherwise(F.coalesce(first, t)))
        .withColumn("spared", reaped & last.isNotNull())
        .withColumn("from", F.least("since", F.when(reaped, F.col("due_ns"))) + F.col("offset_ns"))
        .withColumn("to", F.col("until") + F.col("offset_ns"))
    )
    timeout = F.when(F.col("timeout_ms") > 0, ns(F.col("timeout_ms")))
    over = F.greatest(F.col("until") - F.col("since") - timeout, F.when(reaped, t - F.col("due_ns")))
    silent = excuse(spark, silent.withColumn("over", over), stalls, {})
    wrong = F.col("over") > F.col("tick_ns") + F.lit(grace_ns) + F.col("stalled_ns")
    missed = wrong & ~reaped
    return silent.groupBy("conn").agg(
        F.count(F.when(missed, 1)).alias("missed"),
        F.count(F.when(missed & (F.col("code") == ACTIVITY), 1)).alias("came_back"),
        F.max(F.when(missed, F.col("over"))).alias("missed_ns"),
        F.max_by(F.when(missed, F.col("until")), F.when(missed, F.col("over"))).alias("missed_t"),
        F.count(F.when(wrong & reaped, 1)).alias("reaped_late"),
        F.max(F.when(F.col("spared"), F.col("over"))).alias("spared_lateness_ns"),
    )


def with_silences(
    spark: SparkSession, lives: DataFrame, overdue: Overdue | None, stalls: Stalls, runs: DataFrame, grace_ns: int
) -> DataFrame:
    """*lives* with what `judge_silences` finds of them. Each row once."""
    if overdue is None:  # as in a journal that kept the law: no plan for what is not there
        columns = {f.name: F.lit(None if f.nullable else 0).cast(f.dataType) for f in SILENCES if f.name != "conn"}
        return lives.withColumns(columns)
    silences = judge_silences(spark, overdue.frame, stalls, runs, grace_ns)
    if overdue.few:
        silences = F.broadcast(silences)
    joined = lives.join(
        silences.withColumnRenamed("conn", "silent_conn"), F.col("conn") == F.col("silent_conn"), "left"
    )
    return joined.drop("silent_conn").fillna(0, ["missed", "came_back", "reaped_late"])


def excuse(spark: SparkSession, frame: DataFrame, server: Stalls, client: Stalls) -> DataFrame:
    """*frame* with `stalled_ns`: how much of the lateness stalls explain, of the server's loop or its client's.

    A stall longer than a tick explains all that it shares with the silence: the clock of silence stood still as well.
    A shorter one is made up for at once. It explains what it shares with the silence if it began within a tick of the
    last activity, whose epoch it may have held open; else what it shares with the time in which the reap was overdue.

    Args:
        frame: Has run, tick_ns, from and to (ns on the shared timeline; null: nothing to excuse), over (ns, how long
            before `to` it was due), with *client* also c_run (null: no client). Cardinality: every row once.
        client: What stood still at both sides at once counts once.
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

    def shared(stalls: Column, since: Column) -> Column:
        def add(sum_ns: Column, stall: Column) -> Column:
            return sum_ns + F.greatest(
                F.least(F.col("to"), stall["s_to"]) - F.greatest(since, stall["s_from"]), nothing
            )

        return F.aggregate(stalls, nothing, add)

    def whole(stall: Column) -> Column:
        tick = F.col("tick_ns")
        return (stall["s_to"] - stall["s_from"] > tick) | (stall["s_from"] <= F.col("from") + tick)

    c_run = F.coalesce("c_run", F.lit(NO_RUN)) if client else F.lit(NO_RUN)
    same = (F.col("run") == F.col("s_run")) & (c_run == F.col("s_c_run"))
    stalls = F.col("s_stalls")
    joined = frame.join(small, same, "left").withColumn("_whole_ns", shared(F.filter(stalls, whole), F.col("from")))
    since_due = F.greatest(F.col("from"), F.col("to") - F.greatest(F.col("over") - F.col("_whole_ns"), nothing))
    stalled = F.col("_whole_ns") + shared(F.filter(stalls, lambda stall: ~whole(stall)), since_due)
    stalled = F.when(F.col("to").isNotNull(), F.coalesce(stalled, F.col("_whole_ns")))
    return joined.withColumn("stalled_ns", F.coalesce(stalled, nothing)).drop("_whole_ns", *_STALLS.names)
