"""The replay in Spark: every silence judged under every setting, with no order among
them.

The rule of this module: *a silence is judged by itself*. A client that was cut and
comes back connects again at that activity, so a silence that begins with it is the same
under any setting; only what is due, and when, differs. A client that does not come back
has no further silence: of each connection the first cut is marked. Epochs lie on one
grid per run, from its first opening on, as they do when the loop never stalls.

Grains: `silences` one row per silence; `hits` one row per silence and setting that it
may be cut under; `lives` one row per connection. Instants in ns on the writer's
clock, + offset_ns on the timeline that all share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...journal.schema import ENDS
from ..engine import F, Window
from ..read.frames import lifetimes, ns, of_connections, small_frame, with_run

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RETURNED, CLOSED, CUT = 0, 1, 2
"""How a silence ended: bytes came; the connection was closed; never, as far as the log
shows.
"""

BINS = 8192
"""Bins of time within which changes are put in order, each by itself."""

AS_LOGGED = -1
"""Stands for the log as it is: nothing is replayed."""

LOW, HIGH = 0, 1
"""The two ends of what is possible. High: a client that was cut comes back when the log
shows it, and one that the log's reaper cut stays silent until this timeout. Low: it
never comes back, and leaves as in the log.
"""

TELLING = 20
"""So many reaps are enough to tell from their distances how activity was logged."""

WORLDS: pa.Schema = pa.schema([("setting", pa.int32()), ("world", pa.int32())])

PLAN: pa.Schema = pa.schema(
    [
        *((name, pa.int32()) for name in ("setting", "run", "timeout_ms")),
        *(
            (name, pa.int64())
            for name in ("listener_hash", "timeout_ns", "epoch_ns", "origin_ns", "blur_ns")
        ),
    ]
)
"""Grain: one row per setting and (run, listener, timeout in force): what it means
there.
"""


def silences(events: DataFrame, runs: DataFrame) -> DataFrame:
    """The silences that an idle timeout watched, without those of deadlines. `how`:
    RETURNED, CLOSED or CUT.
    """
    kind = F.col("kind")
    how = (
        F.when(kind == "activity", RETURNED)
        .when(kind == "reap", CUT)
        .when(kind.isin(*ENDS), CLOSED)
    )
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
    """What the runs did, and under which timeouts. Grain: one row per run,
    listener_hash and timeout_ms.
    """
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
    """run -> origin_ns (its first opening), epochs (in a tick), blur_ns (the epoch to
    which its activity is known; 0: exactly).

    Leases that log themselves know activity to an epoch: all their reaps then lie
    equally far from the last activity plus timeout. Where activity is logged with a
    clock reading those distances are spread evenly over an epoch. Too few reaps to
    tell: two epochs, as reaper.trio has it.
    """
    facts: dict[int, dict[str, int]] = {}
    for run in {row.run for row in found}:
        mine = [row for row in found if row.run == run]
        telling = max(mine, key=lambda row: int(row.reaps))
        low, middle, high = telling.slack or (0, 0, 0)
        blurred = telling.reaps >= TELLING and low > 0 and low >= 0.8 * high
        opened = [row.opened for row in mine if row.opened is not None] or [
            row.first for row in mine
        ]
        # The 0.9 quantile of distances that are spread evenly from 0 to an epoch.
        epoch = middle if blurred else high / 0.9
        epochs = max(1, round(ticks[run] / epoch)) if telling.reaps >= TELLING and epoch > 0 else 2
        facts[run] = {
            "origin_ns": min(opened),
            "epochs": epochs,
            "blur_ns": middle if blurred else 0,
        }
    return facts


def lives(events: DataFrame, runs: DataFrame) -> DataFrame:
    """Every connection, a row each. `ended` is null where the log ends first; without
    an opening row `opened` is its first trace.
    """
    reaped = F.col("reaps") > 0
    return with_run(lifetimes(events), runs).select(
        "conn", "run", "listener_hash", "rows", "ended", "last_t", "log_end_ns", "offset_ns",
        F.coalesce("opened", "first_trace").alias("opened"),
        F.col("opened").isNull().alias("headless"),
        F.col("last_timeout_ms").alias("timeout_ms"),
        reaped.alias("reaped"),
        (reaped & F.col("end_timeout_ms").isNull()).alias("by_deadline"),
    )  # fmt: skip


def judged(rows: DataFrame, plan: DataFrame) -> DataFrame:
    """Every silence under every setting that may cut it, a row each.

    Columns beside those of `silences`: setting, timeout_ns, due (counted from the end
    of the epoch it began in); cut: it is; censored: the log cannot tell, because its
    reaper ended it before this timeout would have; certain: cut wherever the epochs
    lie; first, first_certain: the first of its connection that is cut, that is
    certainly cut.
    """
    both = rows.join(F.broadcast(plan), ["run", "listener_hash", "timeout_ms"])
    half = F.expr("blur_ns div 2")
    idle = F.col("until") - F.col("since")
    both = both.select(
        "setting",
        "conn",
        "how",
        "log_end_ns",
        "offset_ns",
        "origin_ns",
        "epoch_ns",
        "blur_ns",
        "timeout_ns",
        idle.alias("idle"),
        ns(F.col("timeout_ms")).alias("was"),
        F.least(F.col("since") + half, F.col("until")).alias("since"),
        (F.col("until") + F.when(F.col("how") == RETURNED, half).otherwise(0)).alias("until"),
    )
    timeout = F.col("timeout_ns")
    least = timeout - F.col("blur_ns")
    # The length of a silence that the log's reaper cut excludes nothing: it may have
    # gone on.
    both = both.where((F.col("how") == CUT) | (F.col("idle") > least))
    # The end of the epoch in which it began. An instant on the grid ends the epoch
    # before; the origin, which has none, belongs to the first.
    closed = F.expr(
        "origin_ns + greatest(1, (since - origin_ns + epoch_ns - 1) div epoch_ns) * epoch_ns"
    )
    both = both.withColumn("due", closed + timeout)
    was_cut, in_time = F.col("how") == CUT, F.col("due") < F.col("until")
    sure = F.col("idle") > timeout + F.col("epoch_ns") + F.col("blur_ns")
    found = both.withColumn("cut", in_time | (was_cut & (timeout <= F.col("was")))).select(
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


def sums(hits: DataFrame) -> dict[int, dict[str, int]]:
    """What each setting comes to: setting -> counts, held times in ns. `never_...`: as
    if a client that was cut never came back.
    """
    cut, how, censored, due = F.col("cut"), F.col("how"), F.col("censored"), F.col("due")
    cut_before, came = how == CUT, how == RETURNED
    possible = ~cut_before & (F.col("idle") + F.col("blur_ns") > F.col("timeout_ns"))
    counts = {
        "reaps": cut,
        "never_reaps": F.col("first"),
        "never_reaps_certain": F.col("first_certain"),
        "never_false": F.col("first") & came,
        "never_false_certain": F.col("first_certain") & came,
        "cut_as_logged": cut & cut_before,
        "reaps_possible": possible | (cut & cut_before),
        "false_cuts": cut & came,
        "false_possible": possible & came,
        "censored": censored,
        "censored_reaps": censored & (due <= F.col("log_end_ns")),
    }
    freed = F.sum(F.when(cut, F.col("until") - due))
    longer = F.sum(F.when(censored, F.least(due, F.col("log_end_ns")) - F.col("until")))
    rows = hits.groupBy("setting").agg(
        *(F.count(F.when(condition, 1)).alias(name) for name, condition in counts.items()),
        F.coalesce(freed, F.lit(0)).alias("freed_ns"),
        F.coalesce(longer, F.lit(0)).alias("censored_ns"),
    )
    return {row.setting: row.asDict() for row in rows.collect()}


def ended_early(hits: DataFrame, found: DataFrame) -> DataFrame:
    """The connections that each setting cuts. Grain: one row per setting and
    connection; due: of its first cut; ended: in the log (null: never). *hits*: see
    `judged`; *found*: see `lives`.
    """
    ends = found.select(F.col("conn").alias("of_conn"), "ended")
    cut = hits.where("first").select("setting", "conn", "due", "log_end_ns", "offset_ns")
    return cut.join(ends, F.col("conn") == F.col("of_conn"), "left").drop("of_conn")


def tails(found: DataFrame, plan: DataFrame) -> DataFrame:
    """Connections that may have fallen due unseen: open at the end of the log, which
    goes on for longer than their timeout after their last row. Grain: one row per
    setting and connection. `at`: the earliest instant.
    """
    open_still = found.where(F.col("ended").isNull() & (F.col("timeout_ms") > 0))
    at = F.col("last_t") + F.col("timeout_ns")
    return (
        open_still.join(F.broadcast(plan), ["run", "listener_hash", "timeout_ms"])
        .where(at < F.col("log_end_ns"))
        .select("setting", at.alias("at"), "log_end_ns", "offset_ns")
    )


def peaks(
    settings: list[int], found: DataFrame, hits: DataFrame, unseen: DataFrame, span: tuple[int, int]
) -> dict[tuple[int, int], int]:
    """(setting, `LOW` or `HIGH`) -> the most connections open at once, exactly.

    They are counted from `lives`, `judged` and `tails`, under *settings* and
    `AS_LOGGED`, which has one world. *span*: begin and end of the log on the shared
    timeline, ns.
    """
    asked = [(AS_LOGGED, LOW), *((setting, world) for setting in settings for world in (LOW, HIGH))]
    worlds = small_frame(found.sparkSession, asked, WORLDS)
    steps = _steps(found.crossJoin(F.broadcast(worlds)), ("opened", 1, 0), ("ended", 0, 1))
    at = F.when(F.col("cut"), F.col("due")).otherwise(F.least("due", "log_end_ns"))
    came = F.when(F.col("how") == RETURNED, 1).otherwise(0)
    # An end of the log that does not happen here is a `down` of -1 at its instant.
    stays = hits.where(F.col("cut") | F.col("censored")).withColumns(
        {"at": at, "world": F.lit(HIGH)}
    )
    high = _steps(stays, ("at", 0, 1), ("until", came, came - 1))
    leaves = ended_early(hits, found).withColumn("world", F.lit(LOW))
    gone = _steps(unseen.withColumn("world", F.lit(LOW)), ("at", 0, 1))
    steps = (
        steps.unionByName(high)
        .unionByName(_steps(leaves, ("due", 0, 1), ("ended", 0, -1)))
        .unionByName(gone)
    )
    key = ["setting", "world", "bin"]
    width = (span[1] - span[0]) // BINS + 1
    at_once = (
        steps.where(F.col("at").isNotNull())
        .withColumn("bin", F.expr(f"(at - {span[0]}) div {width}"))
        .groupBy(*key, "at")
        .agg(F.sum("up").alias("up"), F.sum("down").alias("down"))
    )
    until = Window.partitionBy(*key).orderBy("at").rowsBetween(Window.unboundedPreceding, 0)
    change = F.col("up") - F.col("down")
    level = F.sum(change).over(until) + F.col("down")  # openings come first
    bins = at_once.select(*key, change.alias("change"), level.alias("level")).groupBy(*key)
    open_now: Counter[tuple[int, int]] = Counter()
    most: Counter[tuple[int, int]] = Counter()
    for setting, world, _, in_bin, changed in sorted(
        bins.agg(F.max("level"), F.sum("change")).collect()
    ):
        which = setting, world
        most[which] = max(most[which], open_now[which] + in_bin)
        open_now[which] += changed
    return most


def _steps(frame: DataFrame, *steps: tuple[str, Column | int, Column | int]) -> DataFrame:
    """The openings and ends as changes of a level. Grain: one row per change; setting,
    world, at (shared timeline), up, down.
    """

    def step(instant: str, up: Column | int, down: Column | int) -> Column:
        at = (F.col(instant) + F.col("offset_ns")).alias("at")
        changes = (each if not isinstance(each, int) else F.lit(each) for each in (up, down))
        return F.struct(
            at, *(each.alias(name) for each, name in zip(changes, ("up", "down"), strict=True))
        )

    return frame.select("setting", "world", F.inline(F.array(*(step(*each) for each in steps))))
