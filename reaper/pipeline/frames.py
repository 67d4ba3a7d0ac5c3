"""Events as a DataFrame, and one row per connection: one GROUP BY, no window, no sort, no string in a buffer.

Strings stay out of the aggregation because Spark aggregates them by sorting; listeners and reasons travel as hashes and
get their names back from a frame of a few rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - every Spark program calls it F
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema

from ..journal.schema import COLUMNS, ENDS, OWN, SEQUENCE_BITS
from .inputs import Inputs, as_rows, spark_paths

_TYPES: dict[str, T.DataType] = {"int64": T.LongType(), "int32": T.IntegerType(), "dictionary": T.StringType()}

EVENTS = T.StructType([T.StructField(column.name, _TYPES[column.type], not column.required) for column in COLUMNS])
"""Grain: one row per event. Columns that an older file lacks are null."""

RUNS = T.StructType(
    [
        T.StructField("run", T.IntegerType(), False),
        T.StructField("writer", T.LongType(), False),
        T.StructField("first_conn", T.LongType(), False),
        T.StructField("last_conn", T.LongType(), False),
        T.StructField("tick_ns", T.LongType(), False),
        T.StructField("full", T.BooleanType(), False),
        T.StructField("log_end_ns", T.LongType(), False),
        T.StructField("offset_ns", T.LongType(), False),
    ]
)
"""Grain: one row per writer and start of it."""


def small_frame(spark: SparkSession, rows: Sequence[tuple[Any, ...]], schema: T.StructType) -> DataFrame:
    """*rows* as a frame that travels within the plan. By way of Arrow: from a list, Spark runs Python on executors."""
    types = to_arrow_schema(schema)
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(types)
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types.types, strict=True)]
    return spark.createDataFrame(pa.Table.from_arrays(arrays, schema=types), schema)


def read_events(spark: SparkSession, inputs: Inputs) -> DataFrame:
    """Every row of the files that passed the check. Grain: one row per event."""
    paths = spark_paths(inputs.files)
    return spark.read.schema(EVENTS).parquet(*paths) if paths else small_frame(spark, [], EVENTS)


def runs_frame(spark: SparkSession, inputs: Inputs, tick_ns: int) -> DataFrame:
    """The runs of *inputs* as a small frame, see `RUNS`."""
    return small_frame(spark, as_rows(inputs.runs, tick_ns), RUNS)


def ns(milliseconds: Column) -> Column:
    """Milliseconds as ns; long, because 32 bits of ns are two seconds."""
    return milliseconds.cast("long") * F.lit(1_000_000)


def writer_column(conn: Column) -> Column:
    """The writer id within a connection id."""
    return F.shiftright(conn, SEQUENCE_BITS)


def with_run(frame: DataFrame, runs: DataFrame) -> DataFrame:
    """*frame* (which has `conn`) with the columns of its run. Each row once; rows of no run are dropped."""
    condition = (writer_column(frame["conn"]) == runs["writer"]) & frame["conn"].between(
        runs["first_conn"], runs["last_conn"]
    )
    return frame.join(F.broadcast(runs), condition, "inner")


def of_connections(events: DataFrame) -> DataFrame:
    """*events* without those of the writers themselves."""
    return events.where(~F.col("kind").isin(*OWN))


def lifetimes(events: DataFrame, limit_ns: int) -> DataFrame:
    """One row per connection: everything that a verdict needs. No order among the rows of a connection is assumed.

    Key: conn. Times in ns on the writer's clock. Null where no row of that kind was found.

    Args:
        events: Grain one row per event, see `EVENTS`.
        limit_ns: Silences that outlasted their timeout by more than this, and ended by activity, are counted.
    """
    kind = F.col("kind")
    is_open, is_activity, is_reap = kind == "open", kind == "activity", kind == "reap"
    is_end = kind.isin(*ENDS)
    overdue = F.when(F.col("timeout_ms") > 0, F.col("idle_ns") - ns(F.col("timeout_ms")))

    def count(condition: Column) -> Column:
        return F.count(F.when(condition, 1))

    def of(condition: Column, value: str | Column, aggregate: Any = F.max) -> Column:
        result: Column = aggregate(F.when(condition, F.col(value) if isinstance(value, str) else value))
        return result

    return (
        of_connections(events)
        .groupBy("conn")
        .agg(
            F.count(F.lit(1)).alias("rows"),
            count(is_open).alias("opens"),
            count(is_end).alias("ends"),
            count(is_reap).alias("reaps"),
            count(is_activity).alias("activities"),
            count(kind == "averted").alias("averts"),
            count(F.col("idle_ns") < 0).alias("backward"),
            of(is_open, "t", F.min).alias("opened"),
            of(is_open, "timeout_ms").alias("open_timeout_ms"),
            F.max(F.xxhash64("listener")).alias("listener_hash"),
            F.max("peer").alias("peer"),
            F.max("t").alias("last_t"),
            of(is_activity, "t").alias("last_activity"),
            of(is_activity, "idle_ns", F.sum).alias("activity_idle_ns"),
            of(is_activity, "nbytes", F.sum).alias("nbytes"),
            of(is_activity, "idle_ns").alias("longest_idle_ns"),
            count(is_activity & (overdue > limit_ns)).alias("overdue_activities"),
            of(is_activity, overdue).alias("overdue_ns"),
            F.max_by(F.when(is_activity, F.col("t")), F.when(is_activity, overdue)).alias("overdue_t"),
            of(is_end, "t", F.min).alias("ended"),
            of(is_end, "idle_ns").alias("end_idle_ns"),
            of(is_end, "timeout_ms").alias("end_timeout_ms"),
            of(kind == "close_peer", F.lit(1)).alias("by_peer"),
            of(is_end, F.xxhash64("reason")).alias("reason_hash"),
            of(is_reap, "due_ns").alias("due_ns"),
            of(is_end, "n").alias("end_n"),
            of(is_end, "idle_sum_ns").alias("end_idle_sum_ns"),
        )
    )


def names(events: DataFrame, column: str) -> dict[int, str]:
    """hash -> text of the few distinct values of a string column, for the hashes in `lifetimes`."""
    if column == "listener":
        events = events.where(F.col("kind") == "open")
    distinct = events.select(column).where(F.col(column).isNotNull()).distinct()
    return {row[0]: row[1] for row in distinct.select(F.xxhash64(column), column).collect()}
