"""Silences counted into buckets, connections into bins of time, under every candidate
timeout. All in Spark.

What comes out is small: a row per listener and bucket of 1 %, a row per listener,
candidate and bin.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...journal.schema import ACTIVITY, CONFIG, KINDS, OPEN, OWN, REAP
from ..engine import F
from ..read.frames import IS_END, filtered, ns, of_connections, runs_frame, with_run
from ..read.inputs import Inputs
from ..read.runs import Timeline
from .survival import LEAST_NS, Beyond, Spread, width_sql

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
"""Timeouts that people configure, seconds. The recommendation need not be one of them.
"""

THRESHOLDS = (2.0, 5.0, 10.0, 20.0, 45.0, 90.0, 350.0, 1800.0)
"""Seconds. Beyond each the silences of every connection are counted, for
`survival.Spread`.
"""

BINS = 600
"""Bins of time for open connections."""

SLACK_NS = 250_000_000
"""How much later than its tick a close may come, as in the audit."""


def silences_of_journal(events: DataFrame) -> DataFrame:
    """The silences of connections that have ended, except those in which the server
    works. Grain: one row per silence; listener_hash, idle_ns, returned.
    """
    return (
        of_connections(events)
        .where(f"idle_ns IS NOT NULL AND (code = {ACTIVITY} OR {IS_END})")
        .where(F.col("timeout_ms").isNull() | (F.col("timeout_ms") > 0))
        .select(
            F.xxhash64("listener").alias("listener_hash"),
            "idle_ns",
            (F.col("code") == ACTIVITY).alias("returned"),
        )
    )


def with_edge(rows: DataFrame, column: str, label: str = "edge_ns") -> DataFrame:
    """*rows* with *label*: the upper edge of the bucket of the silence in *column*
    (ns), see `survival.width_sql`.
    """
    rows = rows.withColumn("_idle", F.greatest(F.col(column), F.lit(LEAST_NS)))
    rows = rows.withColumn("_width", F.expr(f"CAST({width_sql('_idle')} AS BIGINT)"))
    return rows.withColumn(label, F.expr("((_idle + _width - 1) div _width) * _width")).drop(
        "_idle", "_width"
    )


def histogram(rows: DataFrame) -> dict[int, dict[float, tuple[int, int]]]:
    """Count *rows*: listener_hash -> upper edge of the bucket in seconds -> (ended,
    censored).
    """
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
    """Connections, and the span of their log."""

    frame: DataFrame
    """Grain: one row per connection; listener_hash, opened (null: before the log),
    ended, ends, rows, longest, short, running, n_ended, n_beyond_0 and so on,
    offset_ns. ends[i] is its end under candidate i. It, opened and ended are on the
    writer's clock, which + offset_ns is the shared timeline. running: how long its
    silence had lasted when the log ended; null where there is none, or it is counted
    elsewhere. n_ended: silences that ended; n_beyond_i: of them, those longer than
    `THRESHOLDS[i]`.
    """
    span: tuple[int, int] | None
    """From the first opening to the end of the last log, on the shared timeline; None
    if unknown.
    """


def lives_of_journal(spark: SparkSession, events: DataFrame, inputs: Inputs) -> Lives:
    """The connections of a journal.

    The check of the files knows when the first connection was opened and when the logs
    end. So the bins of time are known before, and one pass over the rows is enough.
    """
    is_open, is_activity, is_reap = f"code = {OPEN}", f"code = {ACTIVITY}", f"code = {REAP}"
    timeline = Timeline.of(inputs.runs)
    own = F.col("code").isin(*(KINDS.index(kind) for kind in OWN))
    # Without a timeout it may be the server's turn: such a row reports no silence.
    of_one = (F.col("code") == CONFIG) & F.col("timeout_ms").isNotNull()
    at_work = F.expr(f"code = {CONFIG} AND timeout_ms = 0 AND idle_sum_ns IS NOT NULL")
    grouped = (
        events.where(~own | of_one)
        .withColumn("idle_ns", F.when(~at_work, F.col("idle_ns")))
        .groupBy("conn")
        .agg(
            filtered("max(xxhash64(listener))", is_open).alias("listener_of_open"),
            F.max(F.xxhash64("listener")).alias("listener_of_any"),
            filtered("min(t)", is_open).alias("opened"),
            filtered("min(t)", IS_END).alias("ended"),
            filtered("count(1)", f"code <> {CONFIG}").alias("rows"),
            filtered("max(idle_ns)", is_activity).alias("longest"),
            # An end says how many silences there were, and so does a row by which it is
            # open.
            (F.max("n") - filtered("count(1)", is_activity)).alias("short"),
            filtered("min(t - idle_ns)", is_reap).alias("reaped_after"),
            filtered("max(t)", f"code IN ({OPEN}, {ACTIVITY})").alias("last_active"),
            # A row that only reports of a connection says by its silence when it was
            # last active.
            filtered("max(t - idle_ns)", f"code = {CONFIG}").alias("last_reported"),
            filtered("max(t)", f"code = {CONFIG} AND idle_ns IS NOT NULL").alias("reported"),
            filtered(
                # The kind decides between rows of one instant: codes are below 8.
                "max_by(timeout_ms, t * 8 + code)",
                f"timeout_ms IS NOT NULL AND code IN ({OPEN}, {ACTIVITY}, {CONFIG})",
            ).alias("timeout_ms"),
            filtered("count(1)", _IDLE).alias("n_ended"),
            *(
                filtered("min(t - idle_ns)", f"idle_ns > {_ns(c)}").alias(f"cut_{i}")
                for i, c in enumerate(CANDIDATES)
            ),
            *(
                filtered("count(1)", f"idle_ns > {_ns(c)} AND {_IDLE}").alias(name)
                for name, c in _beyond()
            ),
        )
    )
    known = with_run(grouped, runs_frame(spark, inputs.runs, timeline)).withColumns(
        {"since": F.greatest("last_active", "last_reported"), "running": _running()}
    )
    ends = [
        F.coalesce(
            # From the beginning of the silence that the candidate, or the log's reaper,
            # cut.
            F.coalesce(f"cut_{i}", "reaped_after") + F.lit(_ns(c)),
            F.when(F.col("running") > _ns(c), F.col("since") + F.lit(_ns(c))),
            "ended",
            "log_end_ns",
        )
        for i, c in enumerate(CANDIDATES)
    ]
    lives = known.select(
        F.coalesce("listener_of_open", "listener_of_any").alias("listener_hash"),
        "opened",
        F.coalesce("ended", "log_end_ns").alias("ended"),
        F.array(*ends).alias("ends"),
        "rows",
        "longest",
        "short",
        "running",
        "n_ended",
        *(name for name, _ in _beyond()),
        "offset_ns",
    )
    begun = [
        run.opened_ns + timeline.offset_ns(run) for run in inputs.runs if run.opened_ns is not None
    ]
    over = [run.log_end_ns + timeline.offset_ns(run) for run in inputs.runs]
    return Lives(lives, (min(begun), max(over)) if begun else (0, 0))


def _running() -> Column:
    """How long the silence of a connection without an end had lasted when its log
    ended; null where none is known to run.

    None runs while the server works (timeout 0), nor after a writer said that no
    connection was left. In `gaps` mode short silences have no row. So a connection
    whose latest row is older than its timeout has been active since, and when is not in
    the log, unless a later row reports it.
    """
    since = F.greatest("last_active", "last_reported")
    silent = F.greatest(F.col("log_end_ns") - since, F.lit(0))
    told = F.col("full") | F.coalesce(F.col("reported") >= F.col("last_active"), F.lit(False))
    limit = ns(F.col("timeout_ms")) + F.col("tick_ns") + F.lit(SLACK_NS)
    in_time = F.col("timeout_ms").isNull() | (silent <= limit)
    works = F.coalesce(F.col("timeout_ms") == 0, F.lit(False))
    runs = F.col("ended").isNull() & ~F.col("run_drained") & ~works & (told | in_time)
    return F.when(runs, silent)


def lives_of_requests(gaps: DataFrame) -> Lives:
    """The connections of access logs. One begins with the end of its first request."""
    end = F.col("at_ns") + F.col("idle_ns")
    cuts = [
        F.min(F.when(F.col("idle_ns") > _ns(c), F.col("at_ns") + F.lit(_ns(c)))) for c in CANDIDATES
    ]
    lives = gaps.groupBy("key", "visit", F.xxhash64("listener").alias("listener_hash")).agg(
        F.min("at_ns").alias("opened"),
        F.max(end).alias("ended"),
        F.array(*(F.coalesce(cut, F.max(end)) for cut in cuts)).alias("ends"),
        F.count(F.lit(1)).alias("rows"),
        F.max(F.when(F.col("returned"), F.col("idle_ns"))).alias("longest"),
        F.lit(0).cast("long").alias("short"),
        F.lit(None).cast("long").alias("running"),
        F.count(F.when(F.col("returned"), 1)).alias("n_ended"),
        *(
            F.count(F.when(F.col("returned") & (F.col("idle_ns") > _ns(c)), 1)).alias(name)
            for name, c in _beyond()
        ),
        F.lit(0).cast("long").alias("offset_ns"),
    )
    return Lives(lives, None)


@dataclass(slots=True)
class Traffic:
    """The counts over all connections."""

    listeners: dict[int, dict[str, Any]]
    """listener_hash -> connections, uncounted short silences; per candidate: those cut,
    peak and mean open.
    """
    running: dict[int, dict[float, int]] = field(default_factory=dict)
    """listener_hash -> upper edge of the bucket in seconds -> silences that still ran
    when the log ended.
    """
    spread: dict[int, Spread] = field(default_factory=dict)
    """listener_hash -> how the silences that ended lie among its connections."""
    span_s: float = 0.0
    rows: int = 0
    """Rows of all connections."""
    headless: int = 0
    """Connections that began before the log. No other figure counts them."""


def connections(lives: Lives) -> Traffic:
    """Count *lives* under every candidate."""
    begun = F.col("opened").isNotNull()
    since, to = (F.col(name) + F.col("offset_ns") for name in ("opened", "ended"))
    begin, end = lives.span or (None, None)
    if begin is None or end is None:
        bounds = lives.frame.agg(F.min(since), F.max(F.when(begun, to))).collect()[0]
        begin, end = bounds[0] or 0, bounds[1] or 0
    width = max((end - begin) // BINS, 1_000_000)
    found = _counted(lives.frame, begin, width, (end - begin) // width + 1)
    heads = [row for row in found if row.key % _SERIES == _LONGEST]
    counted = Traffic(
        {},
        rows=sum(row.rows for row in heads),
        headless=sum(row.headless for row in heads),
        running=_running_counts(found),
        spread=_spread(heads),
    )
    rows = [row for row in heads if row.connections]
    if not rows:
        return counted
    end = max(row.until for row in rows)
    last = (end - begin) // width
    bins = _bins(found)
    for listener in {row.listener_hash for row in rows}:
        mine = [row for row in rows if row.listener_hash == listener]
        opened = bins.get((listener, _OPENED), {})
        peaks, means = [], []
        for i in range(len(CANDIDATES)):
            ended = bins.get((listener, i), {})
            level = peak = area = 0
            for at in range(last + 1):
                # Openings of a bin before its ends: a peak within the bin is not
                # missed.
                level += opened.get(at, 0)
                peak = max(peak, level)
                area += level
                level -= ended.get(at, 0)
            peaks.append(peak)
            means.append(area * width / max(end - begin, width))
        counted.listeners[listener] = {
            **{key: sum(row[key] for row in mine) for key in ("connections", "short")},
            "cut": [
                sum(row.connections for row in mine if row.key // _SERIES > i)
                for i in range(len(CANDIDATES))
            ],
            "peak": peaks,
            "mean": means,
        }
    counted.span_s = (end - begin) / 1e9
    return counted


_OPENED, _ALIKE, _LONGEST, _RUNNING = range(len(CANDIDATES), len(CANDIDATES) + 4)
"""What a key counts besides the ends under a candidate: openings; ends, where they are
in one bin under all candidates; connections, by how many candidates their longest
silence outlasted; silences that still run, by their bucket.
"""

_IDLE = f"code = {ACTIVITY} AND (timeout_ms IS NULL OR timeout_ms > 0)"
"""A row that ended a silence; while the timeout is 0 the server works."""

_BITS = _RUNNING.bit_length()
_SERIES = 1 << _BITS
"""A key is a bin (or that number of candidates, or a bucket) times this, and what it
counts.
"""

_GRAIN = 10_000
"""Every edge of a bucket is a multiple of so many ns."""


def _counted(frame: DataFrame, begin: int, width: int, beyond: int) -> list[Any]:
    """One row per listener and key: `count`, and of `_LONGEST` what is summed besides.
    All in one pass. Bins from *beyond* on are one.

    Where all candidates end a connection in one bin, as they mostly do, that is one row
    to count, not one a candidate.
    """

    def place(instant: Column) -> Column:
        return F.least(F.floor((instant - F.col("since")) / width), F.lit(beyond))

    def key(series: int | Column, at: Column) -> Column:
        # Bits, for a product and a sum would be checked.
        return F.shiftleft(at, _BITS).bitwiseOR(series)

    begun = F.col("opened").isNotNull()
    # Of one that began before the log nobody knows how many.
    short = F.when(begun, F.greatest(F.coalesce("short", F.lit(0)), F.lit(0))).otherwise(0)
    outlasted = " ".join(
        f"WHEN edge_ns > {_ns(c)} THEN {i + 1}" for i, c in reversed(list(enumerate(CANDIDATES)))
    )
    longest = key(_LONGEST, F.expr(f"CAST(CASE {outlasted} ELSE 0 END AS BIGINT)"))
    first, last = place(F.array_min("ends")), place(F.array_max("ends"))
    # A function over the array: twenty places written out are a method that Java, for
    # its length, never compiles.
    each = F.transform("ends", lambda end, i: key(i, place(end)))
    opened = key(_OPENED, place(F.col("opened")))
    keys = (
        F.when(~begun, F.array(longest))
        .when(first == last, F.array(longest, opened, key(_ALIKE, last)))
        .otherwise(F.concat(F.array(longest, opened), each))
    )
    running = F.array(key(_RUNNING, F.expr(f"CAST(running_edge div {_GRAIN} AS BIGINT)")))
    keys = F.when(F.col("running").isNull(), keys).otherwise(F.concat(keys, running))
    placed = (
        with_edge(with_edge(frame, "longest"), "running", "running_edge")
        .withColumn("since", F.lit(begin) - F.col("offset_ns"))
        .select(
            "listener_hash",
            F.when(begun, F.col("ended") + F.col("offset_ns")).alias("until"),
            F.when(begun, 1).otherwise(0).alias("begun"),
            short.alias("short"),
            "rows",
            (F.col("n_ended") + short).alias("n_ended"),
            *(name for name, _ in _beyond()),
            F.explode(keys).alias("key"),
        )
    )
    sums = {"n_ended": "n_ended", "n_n": "n_ended * n_ended"}
    for name, _ in _beyond():
        sums |= {name: name, f"{name}_2": f"{name} * {name}", f"{name}_n": f"{name} * n_ended"}
    of_longest = f"key % {_SERIES} = {_LONGEST}"
    counted: list[Any] = (
        placed.groupBy("listener_hash", "key")
        .agg(
            F.count(F.lit(1)).alias("count"),
            filtered("sum(begun)", of_longest).alias("connections"),
            filtered("sum(1 - begun)", of_longest).alias("headless"),
            filtered("sum(rows)", of_longest).alias("rows"),
            filtered("sum(short)", of_longest).alias("short"),
            filtered("max(until)", of_longest).alias("until"),
            filtered("max(n_ended)", of_longest).alias("most"),
            *(filtered(f"sum({each})", of_longest).alias(name) for name, each in sums.items()),
        )
        .collect()
    )
    return counted


def _bins(found: list[Any]) -> dict[tuple[int, int], dict[int, int]]:
    """(listener_hash, i) -> bin -> connections. i: a candidate, for its ends, or
    `_OPENED`.
    """
    result: dict[tuple[int, int], dict[int, int]] = {}
    for row in found:
        at, i = divmod(row.key, _SERIES)
        if i not in (_LONGEST, _RUNNING):
            for series in range(len(CANDIDATES)) if i == _ALIKE else (i,):
                bins = result.setdefault((row.listener_hash, series), {})
                bins[at] = bins.get(at, 0) + row["count"]
    return result


def _beyond() -> list[tuple[str, float]]:
    """The columns `n_beyond_i` of `Lives`, each with its threshold."""
    return [(f"n_beyond_{i}", seconds) for i, seconds in enumerate(THRESHOLDS)]


def _spread(heads: list[Any]) -> dict[int, Spread]:
    """See `Traffic.spread`."""
    result: dict[int, Spread] = {}
    for listener in {row.listener_hash for row in heads}:
        mine = [row for row in heads if row.listener_hash == listener]

        def total(name: str, mine: list[Any] = mine) -> int:
            return sum(row[name] for row in mine)

        beyond = [
            Beyond(seconds, total(name), total(f"{name}_2"), total(f"{name}_n"))
            for name, seconds in _beyond()
        ]
        most = max(row.most for row in mine)
        result[listener] = Spread(total("n_ended"), total("n_n"), most, beyond)
    return result


def _running_counts(found: list[Any]) -> dict[int, dict[float, int]]:
    """See `Traffic.running`."""
    result: dict[int, dict[float, int]] = {}
    for row in found:
        at, i = divmod(row.key, _SERIES)
        if i == _RUNNING:
            result.setdefault(row.listener_hash, {})[at * _GRAIN / 1e9] = row["count"]
    return result


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
