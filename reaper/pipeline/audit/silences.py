"""Each silence that outlasted its timeout, judged by itself, and the stalls that
excuse.

The rule of this module: *an excuse belongs to one silence*. A stall excuses as much as
it overlaps with that silence, because time in which a loop stood still is charged to no
connection; a final check that found bytes unread ends one silence and begins the next.
These rows are few, and the check of the files knows which have any: no other is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from ...journal.schema import ACTIVITY, AVERTED, CONFIG, ENDS, KINDS, OPEN, REAP
from ..engine import F, Window
from ..read.frames import OVERDUE, ns, of_connections, read_events, small_frame, with_run
from ..read.inputs import Inputs
from ..read.runs import Stalls, merge

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

NO_RUN = -1

RARE = ("conn", "code", "t", "idle_ns", "timeout_ms", "due_ns", "idle_sum_ns")
"""Columns of rows that are rare: one per final check that spared, and one per silence
beyond its timeout.
"""

_STALL = pa.struct([("s_from", pa.int64()), ("s_to", pa.int64())])
_ONE_STALL = pa.schema([("s_run", pa.int32()), ("s_from", pa.int64()), ("s_to", pa.int64())])
_STALLS = pa.schema(
    [("s_run", pa.int32()), ("s_c_run", pa.int32()), ("s_stalls", pa.list_(_STALL))]
)
"""Grain: one row per pair of runs that stalled. One per stall would multiply the rows
it is joined with.
"""

SILENCES = {
    "missed": 0,
    "came_back": 0,
    "missed_ns": None,
    "missed_t": None,
    "reaped_late": 0,
    "spared_lateness_ns": None,
    "doubted": 0,
    "unsaid": 0,
}
"""The values for a connection without such a silence. missed: silences that ought to
have been reaped and were not; came_back: those of them that bytes ended; missed_ns,
missed_t: of the worst, the first of several, how long it was overdue and when that
ended; reaped_late: reaps too late; spared_lateness_ns: lateness of a reap that counts
from a final check (null: it counts from the silence); doubted: those that nothing but a
stall excuses during which the loop was seen to run; unsaid: those that outlasted the
timeout that rows had put in force, and state another.
"""


def overdue_rows(
    spark: SparkSession, inputs: Inputs, least_ns: int, shortest_ns: int | None = None
) -> DataFrame:
    """The rows of `RARE` in *inputs*, without silences that outlasted their timeout by
    *least_ns* or less.

    Args:
        shortest_ns: Also silences longer than this, whatever they state, and all that
            puts a timeout in force. None: without them.
    """
    events = read_events(spark, inputs)
    own = F.col("code") == CONFIG
    late = ((F.col("code") == REAP) | own) & (F.col("t") - F.col("due_ns") > least_ns)
    # A change during a silence: that is due no earlier.
    changed = own & F.col("timeout_ms").isNotNull() & F.col("idle_sum_ns").isNull()
    changed &= F.col("idle_ns").isNotNull()
    spared = F.col("code") == AVERTED
    rare = spared | changed | (F.expr(OVERDUE) > least_ns) | late
    if shortest_ns is not None:
        ends = [KINDS.index(kind) for kind in ENDS]
        silent = F.col("code").isin(ACTIVITY, *ends) & (F.col("idle_ns") > shortest_ns)
        stated = own & F.col("timeout_ms").isNotNull() & F.col("idle_sum_ns").isNull()
        rare = rare | silent | stated | (F.col("code") == OPEN)
    return events.where(rare).select(*RARE)


def unproven_stalls(spark: SparkSession, inputs: Inputs, stalls: Stalls, runs: DataFrame) -> Stalls:
    """Those of *stalls*, longer than a tick, during which rows of the same run were
    written.

    A loop that stands still writes no row. A loop that was busy with other connections
    may: then the stall is real, but proves nothing. Cost: one pass over the rows, of
    three columns.
    """
    ticks = {run.index: run.tick_ns for run in inputs.runs}
    rows = [
        (run, since, to)
        for run, found in sorted(stalls.items())
        for since, to in found
        if to - since > ticks[run]
    ]
    if not rows:
        return {}
    events = of_connections(read_events(spark, inputs)).select("conn", "t")
    at = F.col("t") + F.col("offset_ns")
    inside = (F.col("run") == F.col("s_run")) & (at > F.col("s_from")) & (at < F.col("s_to"))
    small = F.broadcast(small_frame(spark, rows, _ONE_STALL))
    met = with_run(events, runs).join(small, inside, "inner").groupBy("s_run", "s_from", "s_to")
    found: Stalls = {}
    for row in met.count().collect():
        found.setdefault(row.s_run, []).append((row.s_from, row.s_to))
    return found


def judge_silences(
    spark: SparkSession,
    rare: DataFrame,
    stalls: Stalls,
    unproven: Stalls,
    runs: DataFrame,
    grace_ns: int,
) -> DataFrame:
    """One row per connection with a silence beyond its timeout and the limit, see
    `SILENCES`.

    *unproven*: those of *stalls* that `unproven_stalls` found.
    """
    ends = [KINDS.index(kind) for kind in ENDS]
    t, reaped, averted = F.col("t"), F.col("code") == REAP, F.col("code") == AVERTED
    told = F.col("code") == CONFIG
    changes = told & F.col("idle_sum_ns").isNull()
    # Of a change that has no instant of its own nobody knows when it came.
    changed = changes & F.col("idle_ns").isNotNull()
    instant = Window.partitionBy("conn", "t")
    shortest, longest = (
        each(F.when(changed, F.col("timeout_ms"))).over(instant) for each in (F.min, F.max)
    )
    # Rows of one instant: the check that spared, then a change of the timeout, then a
    # check that states that one, then the row that ends the silence and has to see all.
    states_it = averted & F.coalesce(F.col("timeout_ms").isin(shortest, longest), F.lit(False))
    order = F.when(states_it, 2).when(averted, 0).when(told, 1).otherwise(3)
    rare = rare.withColumn("order_at_t", order)
    before = Window.partitionBy("conn").orderBy("t", "order_at_t")
    before = before.rowsBetween(Window.unboundedPreceding, -1)
    last_check = F.max(F.when(averted, t)).over(before)
    last_change = F.max(F.when(changed, t)).over(before)
    states = changes | (F.col("code") == OPEN)
    stated = rare.where(F.col("code").isin(ACTIVITY, AVERTED, *ends, OPEN) | changes)
    silent = stated.withColumns(
        {
            "last_check": last_check,
            "last_change": last_change,
            "stated_at": F.max(F.when(states, t)).over(before),
            "stated_ms": F.max_by(F.when(states, F.col("timeout_ms")), F.when(states, t)).over(
                before
            ),
        }
    ).where(F.col("idle_ns").isNotNull())
    silent = (
        with_run(silent, runs)
        # `greatest` passes over null: without a check the silence begins at the last
        # byte.
        .withColumn("since", F.greatest(t - F.col("idle_ns"), "last_check"))
        .withColumn("spared", reaped & (F.col("last_check") > t - F.col("idle_ns")))
        .withColumn(
            "from", F.least("since", F.when(reaped | told, F.col("due_ns"))) + F.col("offset_ns")
        )
        .withColumn("to", t + F.col("offset_ns"))
    )
    timeout = F.when(F.col("timeout_ms") > 0, ns(F.col("timeout_ms")))
    within = F.col("last_change") > F.col("since")
    due = F.greatest(
        F.col("since") + timeout, F.when(timeout.isNotNull() & within, F.col("last_change"))
    )
    # In `gaps` mode a change has a row where the silence was long enough for one of its
    # own. In `full` mode each has.
    known = F.col("full") | (F.col("stated_at") > t - F.col("idle_ns"))
    in_force = F.when(known & (F.col("stated_ms") > 0), ns(F.col("stated_ms")))
    due_by_rows = F.greatest(
        F.col("since") + in_force, F.when(in_force.isNotNull() & within, F.col("last_change"))
    )
    by_change = told & F.coalesce(F.col("due_ns") > due_by_rows, F.lit(True))
    other = by_change | (~told & (F.col("timeout_ms") != F.col("stated_ms")))
    over = F.greatest(
        F.when(~told, t - due),
        F.when(reaped, t - F.col("due_ns")),
        # Until that change no timeout was in force where it states no due.
        F.when(told & F.col("due_ns").isNotNull(), t - F.greatest("due_ns", "last_check")),
    )
    silent = silent.withColumn("over", over)
    limit = F.col("tick_ns") + F.lit(grace_ns)
    # Doubted: excused by all stalls, and not by those that are proven.
    doubted = F.lit(False)
    if unproven:
        proven = {
            run: [stall for stall in found if stall not in unproven.get(run, ())]
            for run, found in stalls.items()
        }
        silent = excuse(spark, silent, proven, {})
        silent = silent.withColumn("proven_ns", F.col("stalled_ns")).drop("stalled_ns")
        doubted = F.col("over") > limit + F.col("proven_ns")
    silent = excuse(spark, silent, stalls, {})
    wrong = F.col("over") > limit + F.col("stalled_ns")
    # What a stall excuses of the one, it excuses of the other.
    unsaid = other & (t - due_by_rows > limit + F.col("stalled_ns")) & ~F.col("run_holed")
    missed = wrong & ~reaped
    # Of several that are as bad the first, or each engine would name its own.
    worst = F.struct("over", (F.lit(0) - t).alias("sooner"))
    return silent.groupBy("conn").agg(
        F.count(F.when(missed, 1)).alias("missed"),
        F.count(F.when(missed & F.col("code").isin(ACTIVITY, AVERTED), 1)).alias("came_back"),
        F.max(F.when(missed, F.col("over"))).alias("missed_ns"),
        F.max_by(F.when(missed, t), F.when(missed, worst)).alias("missed_t"),
        F.count(F.when(wrong & reaped, 1)).alias("reaped_late"),
        F.max(F.when(F.col("spared"), F.col("over"))).alias("spared_lateness_ns"),
        F.count(F.when(doubted & ~wrong, 1)).alias("doubted"),
        F.count(F.when(unsaid, 1)).alias("unsaid"),
    )


def with_silences(
    spark: SparkSession,
    lives: DataFrame,
    rare: DataFrame | None,
    stalls: Stalls,
    unproven: Stalls,
    runs: DataFrame,
    grace_ns: int,
) -> DataFrame:
    """*lives* with the columns of `judge_silences`. Each row once."""
    if rare is None:  # as in a journal that kept the law: no plan for what is not there
        return lives.withColumns(
            {name: F.lit(none).cast("long") for name, none in SILENCES.items()}
        )
    silences = judge_silences(spark, rare, stalls, unproven, runs, grace_ns)
    known = {
        name: F.coalesce(name, F.lit(none)) for name, none in SILENCES.items() if none is not None
    }
    return lives.join(silences, "conn", "left").withColumns(known)


def with_backed(spark: SparkSession, lives: DataFrame, stalls: Stalls, grace_ns: int) -> DataFrame:
    """*lives* with what rows before the end tell of it: `hasty` and `outlasted`.

    `outlasted`: the connection was silent for longer than the timeout that those rows
    say was in force, and the limit. `hasty`: it was reaped sooner than that, or than
    its timeout after a final check had spared it. See `_backed` for which timeout
    counts, and `_by_told` for the row that tells of an open connection.

    told_due_ns: no later than that timeout allows, or a change of which there is a row,
    or of which the row may be in a file that is gone.
    """
    opened = F.col("ends") == 0
    backed = _backed(opened)
    told_due = _told_due()
    by_rows, by_told = _by_rows(opened, backed), _by_told(told_due)
    told = F.coalesce(opened & _tells(told_due), F.lit(False))
    since, until, due = (
        F.when(told, one).otherwise(other) for one, other in zip(by_told, by_rows, strict=True)
    )
    limit = F.col("tick_ns") + F.lit(grace_ns)
    overdue = until - due > limit
    judged = lives.withColumns(
        {
            "hasty": F.coalesce(_hasty(backed), F.lit(False)),
            "over": F.when(overdue, until - due),
            "from": F.when(overdue, since + F.col("offset_ns")),
            "to": F.when(overdue, until + F.col("offset_ns")),
            "told_due_ns": F.when(opened, told_due),
        }
    ).drop("last_averted")
    late = F.col("over") > limit + F.col("stalled_ns")
    excused = excuse(spark, judged, stalls, {}).withColumn(
        "outlasted", F.coalesce(late, F.lit(False))
    )
    return excused.drop("over", "from", "to", "stalled_ns")


def _backed(opened: Column) -> Column:
    """The timeout that rows before the end say was in force, ns; null: they do not
    count.

    They count where the end is missing, or says none (a deadline's) or another. In
    `gaps` mode short silences leave no row, and a change of the timeout only during a
    long one, or before such a reap: without that nothing is known, nor where rows of
    the run are missing.
    """
    full, known, stated = F.col("full"), F.col("last_timeout_ms"), F.col("end_timeout_ms")
    apart = stated.isNull() | (full & (stated != known))
    during = F.coalesce(F.col("changed") > F.col("ended") - F.col("end_idle_ns"), F.lit(False))
    changed = (F.col("reaps") > 0) & ((F.col("changes") > 0) | during)
    counts = apart & ~opened & ~F.col("run_holed") & (full | changed)
    return F.when(counts | (opened & full), ns(known))


def _hasty(backed: Column) -> Column:
    """Whether it was reaped too soon, by *backed* or after a final check."""
    timeout = F.when(F.col("end_timeout_ms") > 0, ns(F.col("end_timeout_ms")))
    # A check that spared counts from an instant of the loop's clock, which may lag
    # behind the row's by up to a tick.
    after_check = F.greatest(timeout - F.col("tick_ns"), timeout / 2)
    unbacked = timeout.isNotNull() & ((F.col("end_idle_ns") < backed) | (backed == 0))
    soon = F.col("ended") - F.col("last_averted") < after_check
    return (F.col("reaps") > 0) & (soon | unbacked)


Silence: TypeAlias = "tuple[Column, Column, Column]"
"""The last silence of a connection: since when, until when, and when it was due, ns."""


def _by_rows(opened: Column, backed: Column) -> Silence:
    """As the rows of its activities tell it, with the timeout *backed*."""
    quiet = F.col("ended") - F.col("end_idle_ns")
    last = F.when(opened, F.greatest("opened", "last_activity")).otherwise(quiet)
    since = F.greatest(last, "last_averted")
    until = F.when(opened, F.col("log_end_ns")).otherwise(F.col("ended"))
    changed = F.when(F.col("changed") > since, F.col("changed"))
    return since, until, F.when(backed > 0, F.greatest(since + backed, changed))


def _told_timeout() -> Column:
    """The timeout by which the row of an open connection tells of its silence, ns."""
    # In `full` mode a change since then has a row, and what was silent has stayed so.
    latest = F.when(F.col("full"), F.col("last_timeout_ms"))
    told_ms = F.coalesce(latest, F.col("told_timeout_ms"))
    return F.when(told_ms > 0, ns(told_ms))


def _told_due() -> Column:
    """When an open connection was due, as the row that tells of it says."""
    silent, timeout = F.col("told") - F.col("told_idle_ns"), _told_timeout()
    gone = F.when(F.col("told_due_ns") < F.col("log_begin_ns"), F.col("told_due_ns"))
    changed = F.when(F.col("changed") > silent, F.col("changed"))
    return F.when(timeout.isNotNull(), F.greatest(silent + timeout, changed, gone))


def _tells(told_due: Column) -> Column:
    """Whether the row that tells of an open connection counts: no row came after what
    it tells. In `full` mode it counts where no other row tells of a silence, as where
    the oldest files are gone.
    """
    silent, heard = F.col("told") - F.col("told_idle_ns"), F.greatest("opened", "last_activity")
    return told_due.isNotNull() & (heard.isNull() | (~F.col("full") & (heard <= silent)))


def _by_told(told_due: Column) -> Silence:
    """As the row that tells of an open connection says: for how long it was silent."""
    full = F.col("full")
    until = F.when(full, F.col("log_end_ns")).otherwise(F.col("told"))
    spared = F.col("last_averted") + F.when(full, _told_timeout()).otherwise(0)
    return F.col("told") - F.col("told_idle_ns"), until, F.greatest(told_due, spared)


def no_skew(run: int, c_run: int, t: int) -> int:
    """Return 0, the skew of two runs with one clock."""
    return 0


def excuse(
    spark: SparkSession,
    frame: DataFrame,
    server: Stalls,
    client: Stalls,
    skew: Callable[[int, int, int], int] = no_skew,
) -> DataFrame:
    """*frame* with `stalled_ns`: how much of the lateness stalls explain, of the
    server's loop or its client's.

    A stall longer than a tick explains all that it shares with the silence: the clock
    of silence stood still as well. A shorter one is made up for at once. It explains
    what it shares with the silence if it began within a tick of the last activity,
    whose epoch it may have held open; else what it shares with the time in which the
    reap was overdue.

    Args:
        frame: Has run, tick_ns, from and to (ns on the shared timeline; null: nothing
            to excuse), over (ns, how long before `to` it was due), with *client* also
            c_run (null: no client). Cardinality: every row once.
        client: What stood still at both sides at once counts once.
        skew: (run, c_run, t) -> how far the server's clock is ahead of the client's at
            t, ns.
    """
    rows = [
        (run, c_run, [{"s_from": since, "s_to": to} for since, to in merged])
        for run in sorted(server)
        # NO_RUN: a connection without a client is excused by the server's stalls alone.
        for c_run, theirs in sorted({NO_RUN: [], **client}.items())
        if (
            merged := merge(
                [
                    *server.get(run, []),
                    *((at + skew(run, c_run, at), to + skew(run, c_run, to)) for at, to in theirs),
                ]
            )
        )
    ]
    nothing = F.lit(0).cast("long")
    if not rows:
        return frame.withColumn("stalled_ns", nothing)
    small = F.broadcast(small_frame(spark, rows, _STALLS))

    def shared(stalls: Column, since: Column) -> Column:
        def add(sum_ns: Column, stall: Column) -> Column:
            # Where a stall and the silence do not meet, the difference is negative.
            return sum_ns + F.greatest(
                F.least(F.col("to"), stall["s_to"]) - F.greatest(since, stall["s_from"]), nothing
            )

        return F.aggregate(stalls, nothing, add)

    def whole(stall: Column) -> Column:
        tick = F.col("tick_ns")
        return (stall["s_to"] - stall["s_from"] > tick) | (stall["s_from"] <= F.col("from") + tick)

    c_run = F.coalesce("c_run", F.lit(NO_RUN)) if client else F.lit(NO_RUN)
    same = (F.col("run") == F.col("s_run")) & (c_run == F.col("s_c_run"))
    stalls = F.when(F.col("to").isNotNull(), F.col("s_stalls"))
    joined = frame.join(small, same, "left").withColumn(
        "_whole_ns", shared(F.filter(stalls, whole), F.col("from"))
    )
    since_due = F.greatest(
        F.col("from"), F.col("to") - F.greatest(F.col("over") - F.col("_whole_ns"), nothing)
    )
    stalled = F.col("_whole_ns") + shared(F.filter(stalls, lambda stall: ~whole(stall)), since_due)
    stalled = F.when(F.col("to").isNotNull(), F.coalesce(stalled, F.col("_whole_ns")))
    return joined.withColumn("stalled_ns", F.coalesce(stalled, nothing)).drop(
        "_whole_ns", *_STALLS.names
    )
