"""The replay in Spark: every silence judged under every setting, with no order among them.

The rule of this module: *a silence is judged by itself*. A client that was cut and comes back connects again at that
activity, so a silence that begins with it is the same under any setting; only what is due, and when, differs. A client
that does not come back has no further silence: of each connection the first cut is marked. Epochs lie on one grid per
run, from its first opening on, as they do when the loop never stalls.

Grains: `silences` one row per silence; `hits` one row per silence and setting that it may be cut under; `lives` one row
per connection. Instants in ns on the writer's clock, + offset_ns on the timeline that all share.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ...journal.schema import ENDS
from ..engine import F, Window
from ..read.frames import ns, of_connections, small_frame, with_run

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

RETURNED, CLOSED, CUT = 0, 1, 2
"""How a silence ended: bytes came; the connection was closed; never, as far as the log shows."""

BINS = 8192
"""Bins of time in which the peak is looked for; inside those that may hold it, it is counted exactly."""

QUANTILES = (0.5, 0.9, 0.99)

AS_LOGGED = -1
"""In place of a setting: nothing is replayed."""

TELLING = 20
"""Reaps from which on their distances tell how activity was logged."""

ASKED: pa.Schema = pa.schema([pa.field("setting", pa.int32()), pa.field("bin", pa.int32())])

PLAN: pa.Schema = pa.schema(
    [
        pa.field("setting", pa.int32(), nullable=False),
        pa.field("run", pa.int32(), nullable=False),
        pa.field("listener_hash", pa.int64(), nullable=False),
        pa.field("timeout_ms", pa.int32(), nullable=False),
        pa.field("timeout_ns", pa.int64(), nullable=False),
        pa.field("steps", pa.int64(), nullable=False),
        pa.field("step_ns", pa.int64(), nullable=False),
        pa.field("epoch_ns", pa.int64(), nullable=False),
        pa.field("origin_ns", pa.int64(), nullable=False),
        pa.field("blur_ns", pa.int64(), nullable=False),
    ]
)
"""Grain: one row per setting and (run, listener, timeout in force): what it means there."""


def silences(events: DataFrame, runs: DataFrame) -> DataFrame:
    """Silences that an idle timeout was watching. `how`: RETURNED, CLOSED or CUT. Deadlines are not among them."""
    kind = F.col("kind")
    how = F.when(kind == "activity", RETURNED).when(kind == "reap", CUT).when(kind.isin(*ENDS), CLOSED)
    found = (
        of_connections(events)
        .where((F.col("timeout_ms") > 0) & F.col("idle_ns").isNotNull() & (kind != "averted"))
        .select(
            "conn",
            F.xxhash64("listener").alias("listener_hash"),
            "timeout_ms",
            (F.col("t") - F.col("idle_ns")).alias("since"),
            F.col("t").alias("until"),
            how.alias("how"),
        )
    )
    return with_run(found, runs).drop("writer", "first_conn", "last_conn", "full", "tick_ns")


def groups(events: DataFrame, runs: DataFrame) -> list[Any]:
    """Grain: one row per run, listener_hash and timeout_ms; what `facts_of_runs` and `timeouts_in_force` need."""
    kind, watched = F.col("kind"), (F.col("timeout_ms") > 0) & F.col("idle_ns").isNotNull()
    slack = F.col("due_ns") - ns(F.col("timeout_ms")) - (F.col("t") - F.col("idle_ns"))
    known = F.when((kind == "reap") & F.col("timeout_ms").isNotNull(), slack)
    return (
        with_run(of_connections(events), runs)
        .groupBy("run", F.xxhash64("listener").alias("listener_hash"), "timeout_ms")
        .agg(
            F.count(F.when(watched & (kind != "averted"), 1)).alias("silences"),
            F.min(F.when(kind == "open", F.col("t"))).alias("opened"),
            F.min("t").alias("first"),
            F.count(known).alias("reaps"),
            F.percentile_approx(known, [0.1, 0.5, 0.9], 1000).alias("slack"),
        )
        .collect()
    )


def facts_of_runs(found: list[Any], ticks: Mapping[int, int]) -> dict[int, dict[str, int]]:
    """run -> origin_ns, its first opening; epochs in a tick; blur_ns, the epoch its activity is known to, 0: exactly.

    Leases that log themselves know activity to an epoch: all their reaps then lie equally far from the last activity
    plus timeout. Where activity is logged with a clock reading those distances are spread evenly over an epoch. Too few
    reaps to tell: two epochs, as reaper.trio has it.
    """
    facts: dict[int, dict[str, int]] = {}
    for run in {row.run for row in found}:
        mine = [row for row in found if row.run == run]
        telling = max(mine, key=lambda row: int(row.reaps))
        low, middle, high = telling.slack or (0, 0, 0)
        blurred = telling.reaps >= TELLING and low > 0 and low >= 0.8 * high
        opened = [row.opened for row in mine if row.opened is not None] or [row.first for row in mine]
        epoch = middle if blurred else high / 0.9
        epochs = max(1, round(ticks[run] / epoch)) if telling.reaps >= TELLING and epoch > 0 else 2
        facts[run] = {"origin_ns": min(opened), "epochs": epochs, "blur_ns": middle if blurred else 0}
    return facts


def timeouts_in_force(found: list[Any]) -> list[Any]:
    """Those of *found* that silences were watched by; most silences first."""
    watching = [row for row in found if row.silences and row.timeout_ms]
    return sorted(watching, key=lambda row: (-row.silences, row.run, row.timeout_ms))


def lives(events: DataFrame, runs: DataFrame) -> DataFrame:
    """Every connection. `ended` is null where the log ends first; `opened` without an opening row: its first trace."""
    kind, t = F.col("kind"), F.col("t")
    grouped = (
        of_connections(events)
        .groupBy("conn")
        .agg(
            F.count(F.lit(1)).alias("rows"),
            F.coalesce(
                F.min(F.when(kind == "open", t)), F.min(t - F.coalesce(F.col("idle_ns"), F.lit(0)))
            ).alias("opened"),
            F.max(F.when(kind == "open", 1)).isNull().alias("headless"),
            F.min(F.when(kind.isin(*ENDS), t)).alias("ended"),
            F.max(t).alias("last_t"),
            F.max_by("timeout_ms", "t").alias("timeout_ms"),
            F.max(F.xxhash64("listener")).alias("listener_hash"),
            F.max(F.when(kind == "reap", 1)).isNotNull().alias("reaped"),
            F.max(F.when((kind == "reap") & F.col("timeout_ms").isNull(), 1)).isNotNull().alias("by_deadline"),
        )
    )  # fmt: skip
    return with_run(grouped, runs).drop("writer", "first_conn", "last_conn", "full", "tick_ns")


def judged(rows: DataFrame, plan: DataFrame) -> DataFrame:
    """Grain: one row per silence and setting it may be cut under.

    Columns beside those of `silences`: setting, timeout (ns, with jitter), closed (end of the epoch it began in), due;
    cut: it is; censored: the log cannot tell, because its reaper ended it before this timeout would have; certain: cut
    wherever the epochs lie; first, first_certain: the first of its connection that is cut, that is certainly cut.
    """
    both = rows.join(F.broadcast(plan), ["run", "listener_hash", "timeout_ms"])
    # A draw a connection, kept when it comes back: the same whatever the order of rows and partitions.
    draw = F.crc32(F.col("conn").cast("string").cast("binary")) % F.col("steps")
    half = F.expr("blur_ns div 2")
    idle = F.col("until") - F.col("since")
    both = both.select(
        "setting", "run", "conn", "listener_hash", "how", "log_end_ns", "offset_ns", "origin_ns", "epoch_ns", "blur_ns",
        idle.alias("idle"),
        ns(F.col("timeout_ms")).alias("was"),
        F.least(F.col("since") + half, F.col("until")).alias("since"),
        (F.col("until") + F.when(F.col("how") == RETURNED, half).otherwise(0)).alias("until"),
        (F.col("timeout_ns") + F.when(F.col("steps") > 1, draw * F.col("step_ns")).otherwise(0)).alias("timeout"),
    )  # fmt: skip
    least = F.col("timeout") - F.col("blur_ns")
    both = both.where((F.col("how") == CUT) | (F.col("idle") > least))
    closed = F.expr("origin_ns + greatest(1, (since - origin_ns + epoch_ns - 1) div epoch_ns) * epoch_ns")
    both = both.withColumn("closed", closed).withColumn("due", F.col("closed") + F.col("timeout"))
    was_cut, in_time = F.col("how") == CUT, F.col("due") < F.col("until")
    sure = F.col("idle") > F.col("timeout") + F.col("epoch_ns") + F.col("blur_ns")
    found = both.withColumn("cut", in_time | (was_cut & (F.col("timeout") <= F.col("was")))).select(
        "*",
        (was_cut & ~F.col("cut")).alias("censored"),
        (F.col("cut") & (was_cut | sure)).alias("certain"),
    )
    of_connection = Window.partitionBy("setting", "conn")
    first = F.min(F.when(F.col("cut"), F.col("due"))).over(of_connection)
    certain = F.min(F.when(F.col("certain"), F.col("due"))).over(of_connection)
    return found.withColumn("first", F.col("cut") & (F.col("due") == first)).withColumn(
        "first_certain", F.col("certain") & (F.col("due") == certain)
    )


def sums(hits: DataFrame) -> dict[int, Any]:
    """setting -> what was counted, and held times in ns.

    `slack`: how late its reaps are, ns: minimum, `QUANTILES`, maximum. `never_...`: where a client that was cut
    does not come back.
    """
    cut, how, censored = F.col("cut"), F.col("how"), F.col("censored")
    until = F.col("until")
    slack = F.when(cut, F.col("closed") - F.col("since"))
    possible = (how != CUT) & (F.col("idle") + F.col("blur_ns") > F.col("timeout"))
    longer = F.least(F.col("due"), F.col("log_end_ns")) - until

    def count(condition: Column) -> Column:
        return F.count(F.when(condition, 1))

    rows = (
        hits.groupBy("setting")
        .agg(
            count(cut).alias("reaps"),
            count(F.col("first")).alias("never_reaps"),
            count(F.col("first_certain")).alias("never_reaps_certain"),
            count(F.col("first") & (how == RETURNED)).alias("never_false"),
            count(F.col("first_certain") & (how == RETURNED)).alias("never_false_certain"),
            count(cut & (how == CUT)).alias("cut_as_logged"),
            count(possible | (cut & (how == CUT))).alias("reaps_possible"),
            count(cut & (how == RETURNED)).alias("false_cuts"),
            count(possible & (how == RETURNED)).alias("false_possible"),
            count(censored).alias("censored"),
            count(censored & (F.col("due") <= F.col("log_end_ns"))).alias("censored_reaps"),
            F.coalesce(F.sum(F.when(cut, until - F.col("due"))), F.lit(0)).alias("freed_ns"),
            F.coalesce(F.sum(F.when(censored, longer)), F.lit(0)).alias("censored_ns"),
            F.concat(
                F.array(F.min(slack)), F.percentile_approx(slack, list(QUANTILES), 2000), F.array(F.max(slack))
            ).alias("slack"),
        )
        .collect()
    )
    return {row.setting: row for row in rows}


def ended_early(hits: DataFrame, found: DataFrame) -> DataFrame:
    """Grain: one row per setting and connection that was cut; due, of its first cut; ended, in the log (null: never).

    Args:
        hits: See `judged`.
        found: See `lives`.
    """
    ends = found.select(F.col("conn").alias("of_conn"), "ended")
    cut = hits.where("first").select("setting", "conn", "due", "log_end_ns", "offset_ns")
    return cut.join(ends, F.col("conn") == F.col("of_conn"), "left").drop("of_conn")


def tails(found: DataFrame, plan: DataFrame) -> DataFrame:
    """Grain: one row per setting and connection that may have fallen due unseen: open at the end of the log, which
    goes on for longer than its timeout after its last row. `at`: the earliest instant."""
    open_still = found.where(F.col("ended").isNull() & (F.col("timeout_ms") > 0))
    at = F.col("last_t") + F.col("timeout_ns")
    return (
        open_still.join(F.broadcast(plan), ["run", "listener_hash", "timeout_ms"])
        .where(at < F.col("log_end_ns"))
        .select("setting", at.alias("at"), "log_end_ns", "offset_ns")
    )


def logged_steps(found: DataFrame) -> DataFrame:
    """Grain: one row per opening or end in the log; at (shared timeline), up, down."""
    opening = F.struct((F.col("opened") + F.col("offset_ns")).alias("at"), F.lit(1).alias("up"), F.lit(0).alias("down"))
    end = F.struct((F.col("ended") + F.col("offset_ns")).alias("at"), F.lit(0).alias("up"), F.lit(1).alias("down"))
    return found.select(F.inline(F.array(opening, end))).where(F.col("at").isNotNull())


def replayed_steps(hits: DataFrame, early: DataFrame) -> DataFrame:
    """Grain: one row per change against the log; setting, at, up, down_low, down_high and up_low, up_high.

    Low and high are the two ends of what is possible. High: a client that was cut comes back when the log shows it, and
    one that the log's reaper cut stays silent until this timeout. Low: it never comes back, and leaves as in the log.
    An end that does not happen here is a `down` of -1 at its instant.

    Args:
        early: See `ended_early`.
    """
    returned, due = F.col("how") == RETURNED, F.least("due", "log_end_ns")
    at = F.when(F.col("cut"), F.col("due")).otherwise(due)

    def step(instant: Column, **changes: Column | int) -> Column:
        columns = [changes.get(name, 0) for name in CHANGES]
        named = [(F.lit(c) if isinstance(c, int) else c).alias(n) for n, c in zip(CHANGES, columns, strict=True)]
        return F.struct((instant + F.col("offset_ns")).alias("at"), *named)

    stay = hits.where(F.col("cut") | F.col("censored")).select(
        "setting",
        F.inline(
            F.array(
                step(at, down_high=1),
                step(
                    F.col("until"),
                    up_high=F.when(returned, 1).otherwise(0),
                    down_high=F.when(returned, 0).otherwise(-1),
                ),
            )
        ),
    )
    leave = early.select(
        "setting", F.inline(F.array(step(F.col("due"), down_low=1), step(F.col("ended"), down_low=-1)))
    )
    return stay.unionByName(leave.where(F.col("at").isNotNull()))


def unseen_steps(unseen: DataFrame) -> DataFrame:
    """The changes of `tails`, as those of `replayed_steps`: at the low end they are gone."""
    zero = {name: F.lit(0).alias(name) for name in CHANGES}
    at = (F.col("at") + F.col("offset_ns")).alias("at")
    return unseen.select("setting", at, *{**zero, "down_low": F.lit(1).alias("down_low")}.values())


CHANGES = ("up_low", "down_low", "up_high", "down_high")


def peaks(
    spark: SparkSession, logged: DataFrame, replayed: DataFrame, settings: list[int], begin: int, end: int
) -> tuple[dict[int, tuple[int, int]], dict[int, Any], float]:
    """The most connections open at once, exactly, at the low and the high end; and the curves to draw.

    First per bin of time; a bin can hold the peak only if all its openings on top of what it began with exceed the
    highest level known. Only in those the order of events is looked at.

    Returns:
        setting (and AS_LOGGED) -> (low, high); setting -> (low, high) levels at the bins' ends; seconds a bin.
    """
    width = (end - begin) // BINS + 1
    in_bin = F.expr(f"(at - {begin}) div {width}").cast("int").alias("bin")
    both_ends = [F.col(name.split("_")[0]).alias(name) for name in CHANGES]
    both = logged.select(F.lit(AS_LOGGED).alias("setting"), "at", *both_ends).unionByName(replayed)
    change = {setting: np.zeros((4, BINS + 1), np.int64) for setting in [AS_LOGGED, *settings]}
    for row in both.groupBy("setting", in_bin).agg(*(F.sum(name) for name in CHANGES)).collect():
        change[row[0]][:, min(max(row[1], 0), BINS)] += row[2:]
    base = change[AS_LOGGED].copy()
    change[AS_LOGGED][:] = 0
    peak, curves, doubtful = {}, {}, set()
    for setting, delta in change.items():
        total = base + delta
        ends = [np.cumsum(total[2 * high] - total[2 * high + 1]) for high in (0, 1)]
        starts = [np.concatenate([[0], level[:-1]]) for level in ends]
        peak[setting] = [int(max(level.max(), 0)) for level in ends]
        curves[setting] = ends
        for high in (0, 1):
            doubtful |= {
                (setting, int(i)) for i in np.flatnonzero(starts[high] + total[2 * high] > peak[setting][high])
            }
    if doubtful:
        asked = small_frame(spark, sorted(doubtful), ASKED)
        of_log = logged.select("at", in_bin, *both_ends)
        ours = replayed.select("setting", "at", in_bin, *CHANGES)
        columns = ["setting", "at", "bin", *CHANGES]
        steps = (
            of_log.join(F.broadcast(asked), "bin")
            .select(columns)
            .unionByName(ours.join(F.broadcast(asked), ["setting", "bin"]).select(columns))
            .groupBy("setting", "bin", "at")
            .agg(*(F.sum(name).alias(name) for name in CHANGES))
        )
        until = Window.partitionBy("setting", "bin").orderBy("at").rowsBetween(Window.unboundedPreceding, 0)
        levels = steps.select(
            "setting", "bin",
            *(
                (F.sum(F.col(up) - F.col(down)).over(until) + F.col(down)).alias(down)  # openings come first
                for up, down in (CHANGES[:2], CHANGES[2:])
            ),
        )  # fmt: skip
        for row in levels.groupBy("setting", "bin").agg(F.max("down_low"), F.max("down_high")).collect():
            for high in (0, 1):
                start = int(curves[row[0]][high][row[1] - 1]) if row[1] else 0
                peak[row[0]][high] = max(peak[row[0]][high], start + row[2 + high])
    return {setting: (low, high) for setting, (low, high) in peak.items()}, curves, width / 1e9
