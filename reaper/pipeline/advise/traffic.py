"""Silences counted into buckets, connections into bins of time, under every candidate
timeout. All in Spark.

What comes out is small: a row per listener and bucket of 1 %, a row per listener,
candidate and bin.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from ...journal.schema import ACTIVITY, AVERTED, CONFIG, ENDS, KINDS, OPEN, REAP
from ..engine import F, Ladder, Part, here
from ..read.frames import ns, only_timeout, read_events, runs_frame, with_run
from ..read.inputs import Inputs
from ..read.runs import Facts, Timeline
from .survival import LEAST_NS, Beyond, Cut, Spread, width_sql

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

THRESHOLDS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 45.0, 90.0, 350.0, 1800.0)
"""Seconds. Beyond each the silences of every connection are counted, for
`survival.Spread`.
"""

BINS = 600
"""Bins of time for open connections."""

SLACK_NS = 250_000_000
"""How much later than its tick a close may come, as in the audit."""


_SILENT = (ACTIVITY, *map(KINDS.index, ENDS))
"""Kinds of rows by which a silence is over."""

Buckets = dict[int, dict[float, tuple[int, int]]]
"""listener_hash -> upper edge of the bucket in seconds -> (ended, censored)."""


class Silences(NamedTuple):
    """Silences that are over, counted."""

    buckets: Buckets
    lengths: frozenset[float]
    """The upper edge, s, of every bucket that has any, those in which the server works
    among them.
    """


def silences_of_journal(events: DataFrame) -> DataFrame:
    """The silences of connections that have ended. Grain: one row per silence;
    listener_hash, idle_ns, returned: null where the server worked.
    """
    # By its text, which an engine may look for as it reads: no number of it is needed.
    kind = F.col("kind")
    ended = (kind != KINDS[OPEN]) & (kind != KINDS[CONFIG])
    ended &= kind.isin(*(KINDS[code] for code in _SILENT))
    idle = F.col("timeout_ms").isNull() | (F.col("timeout_ms") > 0)
    return events.where(ended & F.col("idle_ns").isNotNull()).select(
        F.xxhash64("listener").alias("listener_hash"),
        "idle_ns",
        F.when(idle, kind == KINDS[ACTIVITY]).alias("returned"),
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


def histogram(rows: DataFrame) -> Silences:
    """Count *rows*, as `silences_of_journal` has them."""
    counted = (
        with_edge(rows, "idle_ns").groupBy("listener_hash", "edge_ns", "returned").count().collect()
    )
    result: Buckets = {}
    for row in counted:
        if row.returned is None:
            continue
        cells = result.setdefault(row.listener_hash, {})
        ended, censored = cells.get(edge := row.edge_ns / 1e9, (0, 0))
        cells[edge] = (
            (ended + row["count"], censored) if row.returned else (ended, censored + row["count"])
        )
    return Silences(result, frozenset(row.edge_ns / 1e9 for row in counted))


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked of connections. Each candidate and each threshold costs an
    aggregate over every row, and a place in the memory of every connection.
    """

    candidates: tuple[float, ...] = CANDIDATES
    counted: tuple[float, ...] = THRESHOLDS
    """Those of `THRESHOLDS` beyond which silences are counted one by one."""
    below: tuple[float, ...] = ()
    """Those that every silence that ended outlasted; the rest none did."""
    lengths: tuple[float, ...] | None = None
    """See `Silences.lengths`; ascending. None: they may be of any length."""

    @classmethod
    def of(
        cls, buckets: Buckets, threshold: float, lengths: frozenset[float] | None = None
    ) -> Wanted:
        """What matters to silences as *buckets* have them, of which those up to
        *threshold* seconds were not written. *lengths*: see `Silences`.
        """
        cells = [cell for each in buckets.values() for cell in each.items()]
        longest = max((edge for edge, _ in cells), default=0.0)
        ended = [edge for edge, (returned, _) in cells if returned]
        # An edge is the upper one, and a bucket is 1 % wide at most.
        least, most = min(ended, default=0.0) * 0.98, max(ended, default=0.0)
        return cls(
            cls.candidates_for(longest, threshold),
            tuple(each for each in THRESHOLDS if least <= each < most),
            tuple(each for each in THRESHOLDS if each < least),
            None if lengths is None else tuple(sorted(lengths)),
        )

    def steps(self, *, known: bool = True) -> dict[float, float | None]:
        """Each candidate and each threshold -> the least of them that no silence tells
        from it: where none is longer than the one and not than the other, both cut the
        same. None: no silence is longer.

        All are edges of buckets, so that no bucket has silences on both sides of one.

        Args:
            known: Whether silences are of `lengths`, and of no other.
        """
        asked = sorted({*self.candidates, *self.counted})
        if self.lengths is None or not known:
            return {each: each for each in asked}
        shorter = {each: bisect_right(self.lengths, each) for each in asked}
        least = {of: each for each, of in reversed(shorter.items())}
        return {each: least[of] if of < len(self.lengths) else None for each, of in shorter.items()}

    @staticmethod
    def candidates_for(longest: float, threshold: float) -> tuple[float, ...]:
        """Those of `CANDIDATES` that an answer shows: from *threshold* up to the first
        that is beyond the *longest* silence.
        """
        beyond = sum(each <= longest for each in CANDIDATES) + 1
        return (
            tuple(each for at, each in enumerate(CANDIDATES) if each >= threshold and at < beyond)
            or CANDIDATES[-1:]
        )

    def reaches(self, longest: float) -> bool:
        """Whether the candidates go on beyond a silence of *longest* seconds."""
        return longest < self.candidates[-1] or self.candidates[-1] == CANDIDATES[-1]


@dataclass(frozen=True, slots=True)
class Lives:
    """Connections, and the span of their log."""

    frames: Sequence[DataFrame]
    """Of each connection all is in one of them. Grain: one row per connection;
    listener_hash, opened (null: before the log), ended, end_0 and so on, rows, longest,
    short, running, n_ended, n_beyond_0 and so on, cut, offset_ns. end_i is its end
    under candidate i. It, opened and ended are on the writer's clock, which + offset_ns
    is the shared timeline. running: how long its silence had lasted when the log ended;
    null where there is none, or it is counted elsewhere. n_ended: silences that ended;
    n_beyond_i: of them, those longer than the i-th threshold of `wanted.counted`. cut:
    1 if the log's reaper cut its last one.
    """
    span: tuple[int, int] | None
    """From the first opening to the end of the last log, on the shared timeline; None
    if unknown.
    """
    wanted: Wanted = Wanted()


def _parts(*, alike: bool) -> list[Part]:
    """What is added up over the rows of a connection, kind by kind. *alike*: all
    activities state one timeout, so that it needs no row.
    """
    closes = tuple(KINDS.index(kind) for kind in ENDS)
    # Without a timeout it may be the server's turn: such a row reports no silence.
    silent = f"NOT (code = {CONFIG} AND timeout_ms = 0 AND idle_sum_ns IS NOT NULL)"
    any_listener = "max(xxhash64(listener))", ""
    return [
        Part(
            (OPEN,),
            {
                "listener_of_open": any_listener,
                "opened": ("min(t)", ""),
                "open_rows": ("count(1)", ""),
                **_latest_timeout("open", f"code = {OPEN}"),
            },
        ),
        Part(
            closes,
            {
                "listener_of_end": any_listener,
                "ended": ("min(t)", ""),
                "end_rows": ("count(1)", ""),
                "end_n": ("max(n)", ""),
                "reaped_after": ("min(t - idle_ns)", f"code = {REAP}"),
            },
        ),
        *_of_activities(alike=alike, closes=closes),
        Part((AVERTED,), {"listener_of_check": any_listener, "checks": ("count(1)", "")}),
        Part(
            (CONFIG,),
            {
                "listener_of_change": (any_listener[0], f"code = {CONFIG}"),
                "change_n": ("max(n)", f"code = {CONFIG}"),
                # A row that only reports of a connection says by its silence when it
                # was last active.
                "last_reported": ("max(t - idle_ns)", f"code = {CONFIG} AND {silent}"),
                "reported": ("max(t)", f"code = {CONFIG} AND {silent} AND idle_ns IS NOT NULL"),
                **_latest_timeout("change", f"code = {CONFIG}"),
            },
            "timeout_ms IS NOT NULL",
            unless=closes,
        ),
    ]


def _of_activities(*, alike: bool, closes: tuple[int, ...]) -> list[Part]:
    """Nine rows in ten: what can be known by other rows is not asked of them. *alike*:
    see `_parts`.
    """
    always = {"active_rows": ("count(1)", ""), "longest": ("max(idle_ns)", "")}
    last = {
        "listener_of_activity": ("max(xxhash64(listener))", ""),
        "active": ("max(t)", ""),
    }
    if alike:
        return [Part((ACTIVITY,), always | last)]
    return [
        Part((ACTIVITY,), always | {"n_ended": ("count(1)", _IDLE)}),
        # Of connections that have ended nobody asks whether a silence still runs.
        Part((ACTIVITY,), last | _latest_timeout("active", f"code = {ACTIVITY}"), unless=closes),
    ]


def _cuts(wanted: Wanted, steps: dict[float, float | None], *, plain: bool) -> Ladder:
    """When the first silence began that each of *steps* would have cut, and how many
    that ended were longer than each threshold. *plain*: see `_is_plain`.
    """
    silent = f"kind <> '{KINDS[CONFIG]}'"
    if not plain:  # of changes those of a connection, but where the server works
        silent = f"({silent} OR timeout_ms > 0 OR (timeout_ms = 0 AND idle_sum_ns IS NULL))"
    counted = tuple((name, _ns(steps[seconds] or seconds)) for name, seconds in _beyond(wanted))
    cut = tuple(map(_ns, _kept(wanted, steps))) or (_ns(wanted.candidates[0]),)
    return Ladder("cut", "t - idle_ns", "idle_ns", cut, silent, counted, _IDLE)


def _kept(wanted: Wanted, steps: dict[float, float | None]) -> list[float]:
    """Those of *steps* that candidates take, ascending."""
    return sorted({step for each in wanted.candidates if (step := steps[each]) is not None})


def _is_plain(inputs: Inputs) -> bool:
    """Whether each silence of *inputs* that is over has a row by which it ended.

    Then the rows by which connections are still open, of which each file has one for
    each of them, tell no more than that row, but for silences that still run. Where
    rows are missing, or one tells of a silence after which the server worked, they may
    be all that is known.
    """
    missing = inputs.dropped_rows or inputs.holes or inputs.quarantined
    return not missing and not any(facts.changes for facts in inputs.files)


def _latest_timeout(name: str, of: str) -> dict[str, tuple[str, str]]:
    """The timeout that the latest of the rows *of* a kind states, and when."""
    stated = f"{of} AND timeout_ms IS NOT NULL"
    return {
        f"{name}_timeout_ms": ("max_by(timeout_ms, t)", stated),
        f"{name}_stated": ("max(t)", stated),
    }


def lives_of_journal(
    spark: SparkSession, events: DataFrame, inputs: Inputs, wanted: Wanted = Wanted()
) -> Lives:
    """The connections of a journal.

    The check of the files knows when the first connection was opened and when the logs
    end. So the bins of time are known before, and one pass over the rows is enough.
    """
    timeline = Timeline.of(inputs.runs)
    portions = _portions(inputs, here().PORTION)
    of_each = (
        [read_events(spark, replace(inputs, files=files)) for files in portions]
        if len(portions) > 1
        else [events]
    )
    begun = [
        run.opened_ns + timeline.offset_ns(run) for run in inputs.runs if run.opened_ns is not None
    ]
    over = [run.log_end_ns + timeline.offset_ns(run) for run in inputs.runs]
    return Lives(
        [_lives(spark, rows, inputs, timeline, wanted) for rows in of_each],
        (min(begun), max(over)) if begun else (0, 0),
        wanted,
    )


def _portions(inputs: Inputs, most: int | None) -> list[list[Facts]]:
    """The files of *inputs*, those of each writer together: its connections are in no
    other's. Each has *most* rows, or one writer's; None: all are together.
    """
    if most is None or inputs.table is not None:
        return [inputs.files]
    portions: list[list[Facts]] = []
    room = 0
    for _, files in groupby(sorted(inputs.files, key=_writer), _writer):
        theirs = list(files)
        rows = sum(facts.rows for facts in theirs)
        if rows > room:
            portions.append([])
            room = most
        portions[-1] += theirs
        room -= rows
    return portions


def _writer(facts: Facts) -> int:
    return facts.writer


def _lives(
    spark: SparkSession, events: DataFrame, inputs: Inputs, timeline: Timeline, wanted: Wanted
) -> DataFrame:
    """See `Lives.frames`; *events*: rows of *inputs*."""
    plain, only = _is_plain(inputs), only_timeout(inputs.files)
    steps = wanted.steps(known=plain)
    parts = _parts(alike=only is not None)
    added = here().grouped(events, "conn", parts, _cuts(wanted, steps, plain=plain))
    known = with_run(added, runs_frame(spark, inputs.runs, timeline))
    if only is not None:
        theirs = F.when(F.col("active_rows") > 0, F.lit(only).cast("int"))
        known = known.withColumns(
            {
                "active_timeout_ms": theirs,
                "active_stated": F.col("active"),
                "n_ended": F.col("active_rows"),
            }
        )
    # The kind decides between rows of one instant: a change comes last.
    change, active = F.col("change_stated"), F.col("active_stated")
    before = F.greatest("open_stated", "active_stated")
    timeout_ms = (
        F.when(change >= F.coalesce(before, change), F.col("change_timeout_ms"))
        .when(active >= F.coalesce("open_stated", "active_stated"), F.col("active_timeout_ms"))
        .otherwise(F.col("open_timeout_ms"))
    )
    counts = ("open_rows", "end_rows", "active_rows", "checks", "n_ended")
    names = [name for name, _ in _beyond(wanted)]
    none = F.lit(0).cast("long")
    known = known.withColumns({name: F.coalesce(name, none) for name in (*counts, *names)})
    known = known.withColumns(
        {
            "timeout_ms": timeout_ms,
            "last_active": F.greatest("opened", "active"),
            # An end says how many silences there were, and so does a row by which it is
            # open.
            "short": F.coalesce("end_n", "change_n") - F.col("active_rows"),
            "rows": F.col("open_rows") + F.col("end_rows") + F.col("active_rows") + F.col("checks"),
        }
    )
    known = known.withColumns(
        {"since": F.greatest("last_active", "last_reported"), "running": _running()}
    )
    kept = _kept(wanted, steps)
    # What a row tells of a connection that is still open.
    told = F.when(F.col("ended").isNull(), F.col("last_reported"))
    told_ns = F.col("reported") - F.col("last_reported")

    def cut(candidate: float) -> list[Column]:
        """Where the silence began that *candidate*, or the log's reaper, cut."""
        step = steps[candidate]
        found = [] if step is None else [F.col(f"cut_{kept.index(step)}")]
        found.append(F.col("reaped_after"))
        return [*found, F.when(told_ns > _ns(candidate), told)] if plain else found

    ends = [
        F.coalesce(
            F.coalesce(*cut(c)) + F.lit(_ns(c)),
            F.when(F.col("running") > _ns(c), F.col("since") + F.lit(_ns(c))),
            "ended",
            "log_end_ns",
        )
        for c in wanted.candidates
    ]
    listener = F.greatest(
        "listener_of_activity", "listener_of_end", "listener_of_check", "listener_of_change"
    )
    return known.select(
        F.coalesce(F.col("listener_of_open"), listener).alias("listener_hash"),
        "opened",
        F.coalesce("ended", "log_end_ns").alias("ended"),
        *(end.alias(f"end_{i}") for i, end in enumerate(ends)),
        "rows",
        "longest",
        "short",
        "running",
        "n_ended",
        *names,
        F.when(F.col("reaped_after").isNotNull(), 1).otherwise(0).alias("cut"),
        "offset_ns",
    )


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


def lives_of_requests(gaps: DataFrame, wanted: Wanted = Wanted()) -> Lives:
    """The connections of access logs. One begins with the end of its first request."""
    end = F.col("at_ns") + F.col("idle_ns")
    steps = wanted.steps()

    def cut(candidate: float) -> list[Column]:
        step = steps[candidate]
        if step is None:
            return []
        began = F.min(F.when(F.col("idle_ns") > _ns(step), F.col("at_ns")))
        return [began + F.lit(_ns(candidate))]

    lives = gaps.groupBy("key", "visit", F.xxhash64("listener").alias("listener_hash")).agg(
        F.min("at_ns").alias("opened"),
        F.max(end).alias("ended"),
        *(
            F.coalesce(*cut(c), F.max(end)).alias(f"end_{i}")
            for i, c in enumerate(wanted.candidates)
        ),
        F.count(F.lit(1)).alias("rows"),
        F.max(F.when(F.col("returned"), F.col("idle_ns"))).alias("longest"),
        F.lit(0).cast("long").alias("short"),
        F.lit(None).cast("long").alias("running"),
        F.count(F.when(F.col("returned"), 1)).alias("n_ended"),
        *(
            F.count(F.when(F.col("returned") & (F.col("idle_ns") > _ns(steps[c] or c)), 1)).alias(
                name
            )
            for name, c in _beyond(wanted)
        ),
        # Which were cut no access log tells: the last silence of each is taken to be.
        F.lit(0).alias("cut"),
        F.lit(0).cast("long").alias("offset_ns"),
    )
    return Lives([lives], None, wanted)


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
    candidates: tuple[float, ...] = CANDIDATES
    """Those that are counted."""
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
        (frame,) = lives.frames
        bounds = frame.agg(F.min(since), F.max(F.when(begun, to))).collect()[0]
        begin, end = bounds[0] or 0, bounds[1] or 0
    width = max((end - begin) // BINS, 1_000_000)
    wanted = lives.wanted
    beyond = (end - begin) // width + 1
    found = [row for frame in lives.frames for row in _counted(frame, wanted, begin, width, beyond)]
    heads = [row for row in found if row.key % _SERIES == _LONGEST]
    counted = Traffic(
        {},
        rows=sum(row.rows for row in heads),
        headless=sum(row.headless for row in heads),
        running=_running_counts(found),
        spread=_spread(heads, wanted),
        candidates=wanted.candidates,
    )
    rows = [row for row in heads if row.connections]
    if not rows:
        return counted
    end = max(row.until for row in rows)
    last = (end - begin) // width
    of = len(wanted.candidates)
    bins = _bins(found, of)
    for listener in {row.listener_hash for row in rows}:
        mine = [row for row in rows if row.listener_hash == listener]
        opened = bins.get((listener, _OPENED), {})
        peaks, means = [], []
        for i in range(of):
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
                sum(row.connections for row in mine if row.key // _SERIES > i) for i in range(of)
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


def _counted(frame: DataFrame, wanted: Wanted, begin: int, width: int, beyond: int) -> list[Any]:
    """One row per listener and key of *frame*, see `Lives`: `count`, and of `_LONGEST`
    what is summed besides. All in one pass. Bins from *beyond* on are one.

    Where all candidates end a connection in one bin, as they mostly do, that is one row
    to count, not one a candidate.
    """

    def place(instant: Column) -> Column:
        # An int: an engine keeps one a candidate of every connection. What lies before
        # the first bin is counted nowhere, however long before.
        at = F.floor((instant - F.col("since")) / width)
        return F.greatest(F.least(at, F.lit(beyond)), F.lit(-1)).cast("int")

    def key(series: int | Column, at: Column) -> Column:
        # Bits, for a product and a sum would be checked.
        return F.shiftleft(at, _BITS).bitwiseOR(series)

    begun = F.col("opened").isNotNull()
    # Of one that began before the log nobody knows how many.
    short = F.when(begun, F.greatest(F.coalesce("short", F.lit(0)), F.lit(0))).otherwise(0)
    outlasted = " ".join(
        f"WHEN edge_ns > {_ns(c)} THEN {i + 1}"
        for i, c in reversed(list(enumerate(wanted.candidates)))
    )
    longest = key(_LONGEST, F.expr(f"CAST(CASE {outlasted} ELSE 0 END AS INT)"))
    ends = [F.col(f"end_{i}") for i in range(len(wanted.candidates))]
    # Columns, for a plan would hold what they are once for each candidate.
    first, last = F.col("first_at"), F.col("last_at")
    apart = begun & (first != last)
    keys = [
        [F.when(begun, key(_OPENED, place(F.col("opened"))))],
        [F.when(begun & (first == last), key(_ALIKE, last))],
        [F.when(apart, key(i, place(end))) for i, end in enumerate(ends)],
        [
            F.when(
                F.col("running").isNotNull(),
                key(_RUNNING, F.expr(f"CAST(running_edge div {_GRAIN} AS BIGINT)")),
            )
        ],
    ]
    placed = (
        with_edge(with_edge(frame, "longest"), "running", "running_edge")
        .withColumn("since", F.lit(begin) - F.col("offset_ns"))
        .select(
            "listener_hash",
            F.when(begun, F.col("ended") + F.col("offset_ns")).alias("until"),
            F.when(begun, 1).otherwise(0).alias("begun"),
            short.alias("short"),
            "rows",
            F.col("n_ended").alias("n_all"),
            (F.col("n_ended") + short).alias("n_ended"),
            *(name for name, _ in _beyond(wanted)),
            "cut",
            *("opened", "running", "since", "edge_ns", "running_edge"),
            *(f"end_{i}" for i in range(len(ends))),
            place(F.least(*ends, ends[0])).alias("first_at"),
            place(F.greatest(*ends, ends[0])).alias("last_at"),
        )
    )
    sums = {"n_ended": "n_ended", "n_n": "n_ended * n_ended"}
    sums["n_cut"] = "n_ended * cut"
    for name in _sums(wanted):
        sums[f"{name}_cut"] = f"{name} * cut"
        sums |= {name: name, f"{name}_2": f"{name} * {name}", f"{name}_n": f"{name} * n_ended"}
    added = {
        "connections": "sum(begun)",
        "headless": "sum(1 - begun)",
        "rows": "sum(rows)",
        "short": "sum(short)",
        "until": "max(until)",
        "most": "max(n_ended)",
        **{name: f"sum({each})" for name, each in sums.items()},
    }
    counted: list[Any] = here().counted(placed, "listener_hash", longest, added, keys)
    return counted


def _bins(found: list[Any], candidates: int) -> dict[tuple[int, int], dict[int, int]]:
    """(listener_hash, i) -> bin -> connections. i: a candidate, for its ends, or
    `_OPENED`.
    """
    result: dict[tuple[int, int], dict[int, int]] = {}
    for row in found:
        at, i = divmod(row.key, _SERIES)
        if i not in (_LONGEST, _RUNNING):
            for series in range(candidates) if i == _ALIKE else (i,):
                bins = result.setdefault((row.listener_hash, series), {})
                bins[at] = bins.get(at, 0) + row["count"]
    return result


def _beyond(wanted: Wanted) -> list[tuple[str, float]]:
    """The columns `n_beyond_i` of `Lives`, each with its threshold."""
    return [(f"n_beyond_{i}", seconds) for i, seconds in enumerate(wanted.counted)]


def _sums(wanted: Wanted) -> dict[str, tuple[float, ...]]:
    """Each column that is summed up for `Spread`, with the thresholds that it is of."""
    found: dict[str, tuple[float, ...]] = {name: (seconds,) for name, seconds in _beyond(wanted)}
    return found | {"n_all": wanted.below} if wanted.below else found


def _spread(heads: list[Any], wanted: Wanted) -> dict[int, Spread]:
    """See `Traffic.spread`."""
    result: dict[int, Spread] = {}
    for listener in {row.listener_hash for row in heads}:
        mine = [row for row in heads if row.listener_hash == listener]

        def total(name: str, mine: list[Any] = mine) -> int:
            return sum(row[name] for row in mine)

        beyond = [
            Beyond(seconds, total(name), total(f"{name}_2"), total(f"{name}_n"))
            for name, thresholds in _sums(wanted).items()
            for seconds in thresholds
        ]
        beyond.sort(key=lambda each: each.seconds)
        most, ended, cut = max(row.most for row in mine), total("n_ended"), total("n_cut")
        cuts = [
            Cut(seconds, (cut, longer), (ended - cut, total(name) - longer))
            for name, seconds in _beyond(wanted)
            for longer in (total(f"{name}_cut"),)
        ]
        result[listener] = Spread(ended, total("n_n"), most, beyond, cuts if cut else ())
    return result


def _running_counts(found: list[Any]) -> dict[int, dict[float, int]]:
    """See `Traffic.running`."""
    result: dict[int, dict[float, int]] = {}
    for row in found:
        at, i = divmod(row.key, _SERIES)
        if i == _RUNNING:
            edges = result.setdefault(row.listener_hash, {})
            edge = at * _GRAIN / 1e9
            edges[edge] = edges.get(edge, 0) + row["count"]
    return result


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
