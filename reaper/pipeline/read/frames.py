"""Events as a DataFrame, and one row per connection: one GROUP BY, no window, no sort,
no string in a buffer.

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
from ..engine import F, here
from .file import EVENTS
from .inputs import Inputs
from .runs import Run, Timeline

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

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
        ("run_drained", pa.bool_()),
        ("run_holed", pa.bool_()),
    ]
)
"""Grain: one row per writer and start of it. run_drained, run_holed: see `Run`."""


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
    paths = [facts.path for facts in inputs.files]
    return with_code(
        here().read_parquet(spark, paths, EVENTS) if paths else small_frame(spark, [], EVENTS)
    )


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
            *(timeline.offset_ns(run), run.drained, run.holed),
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


CLAIMS = (ACTIVITY, AVERTED, *(KINDS.index(kind) for kind in ENDS if KINDS.index(kind) != REAP))
"""Kinds of rows that end a silence without a reap, and state the timeout it was
under.
"""

IS_END = f"code IN ({', '.join(str(KINDS.index(kind)) for kind in ENDS)})"
OVERDUE = (
    f"CASE WHEN timeout_ms > 0 AND code <> {CONFIG} "
    "THEN idle_ns - CAST(timeout_ms AS BIGINT) * 1000000 END"
)
IS_CHANGE = f"code = {CONFIG} AND idle_sum_ns IS NULL"
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


def lifetimes(events: DataFrame) -> DataFrame:
    """One row per connection: everything that a verdict needs. No order among the rows
    of a connection is assumed.

    Key: conn. Times in ns on the writer's clock. Null where no row of that kind was
    found; activity_idle_ns also where the sum does not fit. last_timeout_ms: in force
    before its end, as its latest activity or a change after that says; rows that only
    report such a change, or that it is still open, count among their writer's. changes:
    those that have no instant of their own. changed: the latest that has. untimed_ns,
    timeout_unknown_ns: of activity_idle_ns, without a timeout in force, and with none
    stated. claimed_..., stated_...: the least and the greatest timeout by which
    silences are said to have been judged, and that openings and changes state.
    told_...: of the latest row by which it is still open. first_trace: of its first row
    but the opening.
    """
    is_open, is_activity, is_reap = f"code = {OPEN}", f"code = {ACTIVITY}", f"code = {REAP}"
    is_claim = f"code IN ({', '.join(map(str, CLAIMS))})"
    columns = {
        "rows": filtered("count(1)", f"code <> {CONFIG}"),
        "opens": filtered("count(1)", is_open),
        "ends": filtered("count(1)", IS_END),
        "reaps": filtered("count(1)", is_reap),
        "activities": filtered("count(1)", is_activity),
        "averts": filtered("count(1)", f"code = {AVERTED}"),
        "last_averted": filtered("max(t)", f"code = {AVERTED}"),
        "backward": filtered("count(1)", "idle_ns < 0"),
        "first_trace": filtered("min(t)", f"code NOT IN ({OPEN}, {CONFIG})"),
        "opened": filtered("min(t)", is_open),
        "open_timeout_ms": filtered("max(timeout_ms)", is_open),
        # Which of two is the greater hash is each engine's own: of an opening the
        # earliest counts.
        "listener_hash": filtered(
            "max_by(xxhash64(listener), -t)", f"{is_open} AND listener IS NOT NULL"
        ),
        "other_listener_hash": filtered(
            "max_by(xxhash64(listener), t)",
            f"code NOT IN ({OPEN}, {ACTIVITY}) AND listener IS NOT NULL",
        ),
        "peer": filtered("max(peer)", is_open),
        "last_t": F.max("t"),
        # Of one instant's rows the change is the last; it follows the latest activity,
        # whatever was averted since.
        "last_timeout_ms": filtered(
            "max_by(timeout_ms, t * 8 + code)",
            f"timeout_ms IS NOT NULL AND code IN ({OPEN}, {ACTIVITY}, {CONFIG}) "
            f"AND (code <> {CONFIG} OR idle_sum_ns IS NULL)",
        ),
        "changes": filtered("count(1)", f"{IS_CHANGE} AND idle_ns IS NULL"),
        "changed": filtered("max(t)", f"{IS_CHANGE} AND idle_ns IS NOT NULL"),
        "untimed_ns": filtered("try_sum(idle_ns)", f"{is_activity} AND timeout_ms = 0"),
        "timeout_unknown_ns": filtered("try_sum(idle_ns)", f"{is_activity} AND timeout_ms IS NULL"),
        "claimed_least_ms": filtered("min(timeout_ms)", is_claim),
        "claimed_most_ms": filtered("max(timeout_ms)", is_claim),
        "stated_least_ms": filtered("min(timeout_ms)", f"{is_open} OR {IS_CHANGE}"),
        "stated_most_ms": filtered("max(timeout_ms)", f"{is_open} OR {IS_CHANGE}"),
        "told": filtered("max(t)", IS_TOLD),
        "told_idle_ns": filtered("max_by(idle_ns, t)", IS_TOLD),
        "told_timeout_ms": filtered("max_by(timeout_ms, t)", IS_TOLD),
        "told_due_ns": filtered("max_by(due_ns, t)", IS_TOLD),
        "told_sum_ns": filtered("max_by(idle_sum_ns, t)", IS_TOLD),
        "last_activity": filtered("max(t)", is_activity),
        "activity_idle_ns": filtered("try_sum(idle_ns)", is_activity),
        "nbytes": filtered("sum(nbytes)", is_activity),
        "ended": filtered("min(t)", IS_END),
        "end_idle_ns": filtered("max(idle_ns)", IS_END),
        "end_timeout_ms": filtered("max(timeout_ms)", IS_END),
        "by_peer": filtered("max(1)", f"code = {CLOSE_PEER}"),
        "due_ns": filtered("max(due_ns)", is_reap),
        "end_n": filtered("max(n)", IS_END),
        "end_idle_sum_ns": filtered("max(idle_sum_ns)", IS_END),
    }
    own = F.col("code").isin(*(KINDS.index(kind) for kind in OWN))
    about = F.col("timeout_ms").isNotNull() | F.col("idle_sum_ns").isNotNull()
    return (
        events.where(~own | ((F.col("code") == CONFIG) & about))
        .groupBy("conn")
        .agg(*(column.alias(name) for name, column in columns.items()))
        .withColumn("listener_hash", F.coalesce("listener_hash", "other_listener_hash"))
        .drop("other_listener_hash")
    )


def listener_names(spark: SparkSession, inputs: Inputs) -> dict[int, str]:
    """hash -> text of every listener that the check has met. It reads no file."""
    found = sorted({name for facts in inputs.files for name in facts.listeners})
    frame = small_frame(spark, [(name,) for name in found], pa.schema([("name", pa.string())]))
    return {row[0]: row[1] for row in frame.select(F.xxhash64("name"), "name").collect()}
