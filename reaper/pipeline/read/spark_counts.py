"""The rows of many files counted by Spark, where they lie. Nothing but the counts comes to this process.

The rule of this module: *what cannot be read is counted as missing, never left out in silence*: a look is told to go on
past a bad page, and says per file how many rows it could read. `row_checks.judge` compares that with the footer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark alone counts where rows lie
from pyspark.sql.pandas.types import from_arrow_schema

from ...journal.schema import CONFIG, KINDS, STALL
from ..places import Place, pattern, uri
from .row_checks import COUNTED, EVENTS, MARKS, Count


def counts(spark: SparkSession, rows: Mapping[Place, int]) -> dict[Place, list[Count]]:
    """The counts of each file in *rows*, which says how many rows its footer promises.

    A file of which less can be read is looked at a second time: what was a failure of the network is not held against
    the file.
    """
    known = {_name(uri(where)): where for where in rows}
    found = _count(spark, known)
    short = {
        name: where
        for name, where in known.items()
        if sum(count["count_all"] for count in found.get(where, ())) != rows[where]
    }
    return {where: [] for where in rows} | found | (_count(spark, short) if short else {})


def _read(spark: SparkSession, files: Sequence[Place]) -> DataFrame:
    return (
        spark.read.schema(from_arrow_schema(EVENTS)).option("ignoreCorruptFiles", "true").parquet(*map(pattern, files))
    )


def _count(spark: SparkSession, known: Mapping[str, Place]) -> dict[Place, list[Count]]:
    def least_and_most(name: str) -> list[Column]:
        column = F.col(name)
        return [
            F.count(column).alias(f"{name}_count"),
            F.min(column).alias(f"{name}_min"),
            F.max(column).alias(f"{name}_max"),
        ]

    stall = (F.col("kind") == KINDS[CONFIG]) & (F.col("reason") == STALL)
    marks = (
        F.when(stall, F.col("t")),
        F.when(stall, F.col("idle_ns")),
    )
    timeout = F.when(F.col("timeout_ms") > 0, F.col("timeout_ms").cast("long") * F.lit(1_000_000))
    overdue = F.greatest(F.try_subtract("idle_ns", timeout), F.try_subtract("t", "due_ns"))
    # Nobody asks about these two, but what is not read is not verified.
    also = [F.count(name).alias(f"{name}_read") for name in ("nbytes", "peer")]
    counted = (
        _read(spark, list(known.values()))
        .groupBy(
            F.col("_metadata.file_path").alias("path"),
            "kind",
            "listener",
            *(mark.alias(name) for name, mark in zip(MARKS, marks, strict=True)),
        )
        .agg(
            F.count(F.lit(1)).alias("count_all"),
            *(column for name in COUNTED for column in least_and_most(name)),
            F.max(F.try_add("t", "wall_offset_ns")).alias("ended_max"),
            F.max(overdue).alias("overdue_max"),
            *also,
        )
    )
    found: dict[Place, list[Count]] = {}
    for row in counted.toArrow().to_pylist():
        found.setdefault(known[_name(unquote(row["path"]))], []).append(row)
    return found


def _name(path: str) -> str:
    """One name for one file, whether its URI has an empty host or none."""
    scheme, _, rest = path.partition(":")
    host, slash, below = rest[2:].partition("/") if rest.startswith("//") else ("", "/", rest.lstrip("/"))
    return f"{scheme}://{host}{slash}{below}"
