"""Events as a DataFrame, and one row per connection: added up, no window, no sort, no
string in a buffer.

Strings stay out of the aggregation because Spark aggregates them by sorting; listeners
travel as hashes, each engine's own, and get their names back from a frame of a few
rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...journal.schema import (
    ACTIVITY,
    AVERTED,
    CLOSE_PEER,
    CONFIG,
    ENDS,
    KINDS,
    OPEN,
    OWN,
    REAP,
    SEQUENCE_BITS,
)
from ..arguments import Fault
from ..engine import F, Part, here
from .file import EVENTS, FILE
from .inputs import Inputs, Table
from .runs import Facts, Run, Timeline

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_SAID = pa.schema([(FILE, pa.string())])

RUNS: pa.Schema = pa.schema(
    [
        ("run", pa.int32()),
        ("writer", pa.int64()),
        ("first_conn", pa.int64()),
        ("last_conn", pa.int64()),
        ("tick_ns", pa.int64()),
        ("full", pa.bool_()),
        ("gap_threshold_ns", pa.int64()),
        ("log_begin_ns", pa.int64()),
        ("log_end_ns", pa.int64()),
        ("first_opened", pa.int64()),
        ("offset_ns", pa.int64()),
        ("unix_ns", pa.int64()),
        ("run_drained", pa.bool_()),
        ("run_holed", pa.bool_()),
        ("stood_ns", pa.int64()),
        ("awake_to_ns", pa.int64()),
    ]
)
"""Grain: one row per writer and start of it. unix_ns: what to add to its instants for
Unix time, null where it does not know that. run_drained, run_holed: see `Run`.
stood_ns, awake_to_ns: see `Run`.
"""


def small_frame(
    spark: SparkSession, rows: Sequence[tuple[Any, ...]], schema: pa.Schema
) -> DataFrame:
    """*rows* as a frame that travels within the plan. By way of Arrow: from a list,
    Spark runs Python on executors.
    """
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
    return spark.createDataFrame(pa.Table.from_arrays(arrays, schema=schema))


def read_events(spark: SparkSession, inputs: Inputs) -> DataFrame:
    """Every row of the files that passed the check. Grain: one row per event.

    Columns: those of `EVENTS`, and `code`: the kind as a number, its place in `KINDS`;
    an unknown one is the next.
    """
    if not inputs.files:
        return with_code(small_frame(spark, [], EVENTS))
    if inputs.table is not None:
        return with_code(_rows_of(inputs.table, inputs.files).select(*EVENTS.names))
    paths = [facts.path for facts in inputs.files]
    return with_code(here().read_parquet(spark, paths, EVENTS))


def _rows_of(table: Table, files: Sequence[Facts]) -> DataFrame:
    """The rows of *files* in *table*."""
    if len(files) == table.files:
        return table.rows
    said = small_frame(table.rows.sparkSession, [(facts.said,) for facts in files], _SAID)
    return table.rows.join(F.broadcast(said), FILE, "left_semi")


def with_code(events: DataFrame) -> DataFrame:
    """*events* with `code`. The commonest kind is asked for first, so that most rows
    cost one comparison.
    """
    kind = F.col("kind")
    order = sorted(range(len(KINDS)), key=lambda code: code != ACTIVITY)
    code = F.when(kind == KINDS[order[0]], order[0])
    for other in order[1:]:
        code = code.when(kind == KINDS[other], other)
    return events.withColumn("code", code.otherwise(len(KINDS)).cast("tinyint"))


def runs_frame(spark: SparkSession, runs: Iterable[Run], timeline: Timeline) -> DataFrame:
    """*runs* as a small frame, see `RUNS`."""
    rows = [
        (
            *(
                run.index,
                run.writer,
                run.first_conn,
                run.last_conn,
                run.tick_ns,
                run.full,
                run.gap_threshold_ns,
                run.log_begin_ns,
                run.log_end_ns,
                run.first_opened,
            ),
            timeline.offset_ns(run),
            Timeline.UNIX.offset_ns(run) if run.anchors else None,
            *(run.drained, run.holed),
            run.stood_ns,
            run.awake_to_ns,
        )
        for run in runs
    ]
    return small_frame(spark, rows, RUNS)


def ns(milliseconds: Column) -> Column:
    """Milliseconds as ns. The column is made long, because 32 bits of ns are two
    seconds.
    """
    return milliseconds.cast("long") * F.lit(1_000_000)


def with_run(frame: DataFrame, runs: DataFrame) -> DataFrame:
    """*frame* (which has `conn`) with the columns of its run. Each row once; rows of no
    run are dropped.
    """
    conn = F.col("conn")
    own = (F.shiftright(conn, SEQUENCE_BITS) == F.col("writer")) & conn.between(
        F.col("first_conn"), F.col("last_conn")
    )
    return frame.join(F.broadcast(runs), own, "inner")


IS_END = f"code IN ({', '.join(str(KINDS.index(kind)) for kind in ENDS)})"
OVERDUE = (
    f"CASE WHEN timeout_ms > 0 AND code <> {CONFIG} "
    "THEN idle_ns - CAST(timeout_ms AS BIGINT) * 1000000 END"
)
IS_CHANGE = f"code = {CONFIG} AND timeout_ms IS NOT NULL AND idle_sum_ns IS NULL"
"""A change of a connection's timeout, among the rows of connections. One during a
silence has `idle_ns`.
"""
IS_TOLD = f"code = {CONFIG} AND idle_sum_ns IS NOT NULL"
"""That a connection is still open."""


def filtered(aggregate: str, condition: str) -> Column:
    """*aggregate*, one function of one expression, over the rows where *condition*
    holds.

    A FILTER, not a CASE within: rows of other kinds, nine in ten, then neither read nor
    write its buffer.
    """
    return F.expr(f"{aggregate} FILTER (WHERE {condition})")


def of_connections(events: DataFrame) -> DataFrame:
    """*events* without those of the writers themselves."""
    return events.where(~F.col("code").isin(*(KINDS.index(kind) for kind in OWN)))


_CLOSES = tuple(KINDS.index(kind) for kind in ENDS)
_IS_OPEN, _IS_ACTIVITY = f"code = {OPEN}", f"code = {ACTIVITY}"
_IS_REAP, _IS_CHECK = f"code = {REAP}", f"code = {AVERTED}"


_TIMEOUTS = ("active_timeout_ms", "active_least_ms", "active_most_ms")


def _of_activities(untimed: bool, *, alike: bool) -> Part:
    """Nine rows in ten: what can be known by other rows is not asked of them.

    *untimed*: a row states no timeout, or that none is in force. *alike*: all state the
    same one, so that `_TIMEOUTS` need no row.
    """
    stated = f"{_IS_ACTIVITY} AND timeout_ms IS NOT NULL" if untimed else ""
    columns = {
        "activities": ("count(1)", ""),
        "first_activity": ("min(t)", ""),
        "last_activity": ("max(t)", ""),
        "activity_idle_ns": ("try_sum(idle_ns)", ""),
        "nbytes": ("sum(nbytes)", ""),
        "active_timeout_ms": ("max_by(timeout_ms, t)", stated),
        "active_least_ms": ("min(timeout_ms)", ""),
        "active_most_ms": ("max(timeout_ms)", ""),
    }
    if alike:
        columns = {name: each for name, each in columns.items() if name not in _TIMEOUTS}
    if untimed:
        columns |= {
            "active_stated": ("max(t)", stated),
            "last_untimed": ("max(t)", f"{_IS_ACTIVITY} AND timeout_ms = 0"),
            "untimed_ns": ("try_sum(idle_ns)", f"{_IS_ACTIVITY} AND timeout_ms = 0"),
            "timeout_unknown_ns": (
                "try_sum(idle_ns)",
                f"{_IS_ACTIVITY} AND timeout_ms IS NULL",
            ),
        }
    return Part((ACTIVITY,), columns)


_OF_OPENINGS = Part(
    (OPEN,),
    {
        "opens": ("count(1)", ""),
        "opened": ("min(t)", ""),
        "last_opened": ("max(t)", ""),
        "open_timeout_ms": ("max(timeout_ms)", ""),
        # Which of two is the greater hash is each engine's own: of an opening the
        # earliest counts.
        "listener_of_open": (
            "max_by(xxhash64(listener), -t)",
            f"{_IS_OPEN} AND listener IS NOT NULL",
        ),
        "peer": ("max(peer)", ""),
    },
)

_OF_ENDS = Part(
    _CLOSES,
    {
        "ends": ("count(1)", ""),
        "reaps": ("count(1)", _IS_REAP),
        "listener_of_end": ("max_by(xxhash64(listener), t)", f"{IS_END} AND listener IS NOT NULL"),
        "last_end": ("max(t)", ""),
        "ended": ("min(t)", ""),
        "end_idle_ns": ("max(idle_ns)", ""),
        "end_timeout_ms": ("max(timeout_ms)", ""),
        "close_least_ms": ("min(timeout_ms)", f"{IS_END} AND NOT {_IS_REAP}"),
        "close_most_ms": ("max(timeout_ms)", f"{IS_END} AND NOT {_IS_REAP}"),
        "by_peer": ("max(1)", f"code = {CLOSE_PEER}"),
        "due_ns": ("max(due_ns)", _IS_REAP),
        "end_n": ("max(n)", ""),
        "end_idle_sum_ns": ("max(idle_sum_ns)", ""),
    },
)

_OF_CHANGES = Part(
    (AVERTED, CONFIG),
    {
        "averts": ("count(1)", _IS_CHECK),
        "first_averted": ("min(t)", _IS_CHECK),
        "last_averted": ("max(t)", _IS_CHECK),
        "averted_idle_ns": ("try_sum(idle_ns)", _IS_CHECK),
        "check_least_ms": ("min(timeout_ms)", _IS_CHECK),
        "check_most_ms": ("max(timeout_ms)", _IS_CHECK),
        "changes": ("count(1)", f"{IS_CHANGE} AND idle_ns IS NULL"),
        "changed": ("max(t)", f"{IS_CHANGE} AND idle_ns IS NOT NULL"),
        "last_change": ("max(t)", IS_CHANGE),
        "change_timeout_ms": ("max_by(timeout_ms, t)", IS_CHANGE),
        "change_least_ms": ("min(timeout_ms)", IS_CHANGE),
        "change_most_ms": ("max(timeout_ms)", IS_CHANGE),
        "listener_of_change": (
            "max_by(xxhash64(listener), t)",
            f"({_IS_CHECK} OR {IS_CHANGE}) AND listener IS NOT NULL",
        ),
    },
    f"{_IS_CHECK} OR {IS_CHANGE}",
)
"""Final checks that spared, and changes of a connection's timeout."""

_OF_OPEN = Part(
    (CONFIG,),
    {
        "told": ("max(t)", ""),
        "told_idle_ns": ("max_by(idle_ns, t)", ""),
        "told_timeout_ms": ("max_by(timeout_ms, t)", ""),
        "told_due_ns": ("max_by(due_ns, t)", ""),
        "told_sum_ns": ("max_by(idle_sum_ns, t)", ""),
        "told_n": ("max_by(n, t)", ""),
        "listener_told": ("max_by(xxhash64(listener), t)", f"{IS_TOLD} AND listener IS NOT NULL"),
    },
    IS_TOLD,
    unless=_CLOSES,
)
"""Rows by which connections are still open. Each file of a journal has one for each
connection that was open when the file was finished; of those that have ended since
they are not needed, and there are many.
"""


def lifetimes(events: DataFrame, files: Sequence[Facts] | None = None) -> DataFrame:
    """One row per connection: everything that a verdict needs. No order among the rows
    of a connection is assumed.

    Key: conn. Times in ns on the writer's clock. Null where no row of that kind was
    found; activity_idle_ns also where the sum does not fit. last_timeout_ms: in force
    before its end, as its latest activity or a change after that says; rows that only
    report such a change, or that it is still open, count among their writer's. changes:
    those that have no instant of their own. changed: the latest that has; last_change:
    of both. averted_idle_ns: the silences that final checks ended. last_untimed: its
    latest activity before which no timeout was in force. untimed_ns,
    timeout_unknown_ns: of activity_idle_ns, without a timeout in force, and with none
    stated. claimed_..., stated_...: the least and the greatest timeout by which
    silences are said to have been judged, and that openings and changes state.
    told_...: of the latest row by which it is still open; of a connection that has
    ended they say nothing. first_trace: of its first row but the opening.

    Args:
        files: What the check has seen in the files of *events*: no plan looks for what
            is in none of them. None: nothing is known of them.
    """
    untimed, backward, changes = (
        files is None or any(getattr(facts, name) for facts in files)
        for name in ("untimed", "backward", "changes")
    )
    told = files is None or _tells_of_open(files)
    only = None if untimed or files is None else only_timeout(files)
    parts = [_OF_OPENINGS, _OF_ENDS, _of_activities(untimed, alike=only is not None)]
    absent: dict[str, Column] = {}
    if only is not None:
        theirs = F.when(F.col("activities") > 0, F.lit(only).cast("int"))
        absent |= dict.fromkeys(_TIMEOUTS, theirs)
    for part, there in ((_OF_CHANGES, changes), (_OF_OPEN, told)):
        if there:
            parts.append(part)
        else:
            absent |= _nothing_of(part)
    if backward:
        parts = [
            part._replace(columns=part.columns | {f"backward_{i}": ("count(1)", _backward(part))})
            for i, part in enumerate(parts)
        ]
    counts = {
        name: F.coalesce(name, F.lit(0).cast("long"))
        for part in parts
        for name, (aggregate, _) in part.columns.items()
        if aggregate == "count(1)"
    }
    if not untimed:
        absent |= {
            "active_stated": F.col("last_activity"),
            "last_untimed": F.lit(None).cast("long"),
            "untimed_ns": F.lit(None).cast("long"),
            "timeout_unknown_ns": F.lit(None).cast("long"),
        }
    found = here().grouped(events, "conn", parts).withColumns(counts | absent)
    return _added_up(found, [name for name in counts if name.startswith("backward_")])


def only_timeout(files: Sequence[Facts]) -> int | None:
    """The timeout, ms, that every activity in *files* states; None: they state several,
    or none.
    """
    if any(facts.untimed for facts in files):
        return None
    stated = {each for facts in files if facts.active_ms is not None for each in facts.active_ms}
    return stated.pop() if len(stated) == 1 else None


def _tells_of_open(files: Sequence[Facts]) -> bool:
    """Whether rows in *files* tell of connections that are still open when their run's
    log ends. In a run that says that none is left, one without an end is lost.
    """
    drained = {facts.of_run for facts in files if facts.drained}
    return any(facts.told and facts.of_run not in drained for facts in files)


def _backward(part: Part) -> str:
    return f"code IN ({', '.join(map(str, part.kinds))}) AND idle_ns < 0"


def _nothing_of(part: Part) -> dict[str, Column]:
    """The columns of *part* of a connection that has no such row."""
    return {
        name: F.lit(0 if aggregate == "count(1)" else None).cast(
            "int" if name.endswith("_ms") else "long"
        )
        for name, (aggregate, _) in part.columns.items()
    }


def _added_up(found: DataFrame, backward: list[str]) -> DataFrame:
    """*found*, a row per connection, with what several kinds of rows say together."""
    # Of one instant's rows the change is the last; it follows the latest activity,
    # whatever was averted since.
    opened = F.when(F.col("open_timeout_ms").isNotNull(), F.col("opened"))
    change, active = F.col("last_change"), F.col("active_stated")
    last_timeout_ms = (
        F.when(change >= F.coalesce(F.greatest(opened, active), change), F.col("change_timeout_ms"))
        .when(active >= F.coalesce(opened, active), F.col("active_timeout_ms"))
        .otherwise(F.col("open_timeout_ms"))
    )
    no_end, before = F.col("ends") == 0, F.lit(0).cast("long")
    for name in backward:
        before = before + F.col(name)
    columns = {
        "rows": F.col("opens") + F.col("ends") + F.col("activities") + F.col("averts"),
        "backward": before,
        "first_trace": F.least("first_activity", "ended", "first_averted"),
        "last_t": F.greatest(
            "last_activity",
            "last_end",
            "last_averted",
            "last_change",
            F.when(no_end, F.col("told")),
        ),
        "last_timeout_ms": last_timeout_ms,
        "claimed_least_ms": F.least("active_least_ms", "close_least_ms", "check_least_ms"),
        "claimed_most_ms": F.greatest("active_most_ms", "close_most_ms", "check_most_ms"),
        "stated_least_ms": F.least("open_timeout_ms", "change_least_ms"),
        "stated_most_ms": F.greatest("open_timeout_ms", "change_most_ms"),
        "listener_hash": F.coalesce(
            "listener_of_open",
            "listener_of_end",
            "listener_of_change",
            F.when(no_end, F.col("listener_told")),
        ),
    }
    return found.select(
        *(name for name in _LIFETIME if name not in columns),
        *(column.alias(name) for name, column in columns.items()),
    )


_LIFETIME = (
    *("conn", "rows", "opens", "ends", "reaps", "activities", "averts", "last_averted"),
    *("backward", "first_trace", "opened", "open_timeout_ms", "listener_hash", "peer", "last_t"),
    *("last_timeout_ms", "changes", "changed", "last_change", "last_untimed", "untimed_ns"),
    "timeout_unknown_ns",
    *("claimed_least_ms", "claimed_most_ms", "stated_least_ms", "stated_most_ms"),
    *("told", "told_idle_ns", "told_timeout_ms", "told_due_ns", "told_sum_ns", "told_n"),
    "averted_idle_ns",
    *("last_activity", "activity_idle_ns", "nbytes", "ended", "end_idle_ns", "end_timeout_ms"),
    *("by_peer", "due_ns", "end_n", "end_idle_sum_ns"),
)
"""The columns of `lifetimes`."""


def listeners_of(inputs: Inputs) -> list[str]:
    """Every listener that the check has met, in order."""
    return sorted({name for facts in inputs.files for name in facts.listeners})


def listener_names(spark: SparkSession, inputs: Inputs) -> dict[int, str]:
    """hash -> text of `listeners_of`. It reads no file."""
    names = [(name,) for name in listeners_of(inputs)]
    frame = small_frame(spark, names, pa.schema([("name", pa.string())]))
    found = {row[0]: row[1] for row in frame.select(F.xxhash64("name"), "name").collect()}
    if len(found) < len(names):
        raise Fault(f"two of {len(names)} listeners have one hash here; ask the other engine")
    return found
