"""What the rows of one file say together, and whether each can be judged.

The rule of this module: *rules are asked of counts, never of rows*. A file is counted by kind and listener, where
it lies: by Spark's executors, or in this process. The few rows in which a writer reports a stall are groups of their
own, so that no question has to look for them again. The rules are here once, whoever counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...journal.schema import ACTIVITY, AVERTED, COLUMNS, CONFIG, DRAIN, ENDS, KINDS, OWN, SEQUENCE_BITS, STALL
from ..engine import F
from ..places import Place, pattern, uri
from .runs import Facts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TYPES = {"int64": pa.int64(), "int32": pa.int32(), "dictionary": pa.string()}

EVENTS: pa.Schema = pa.schema(
    [pa.field(column.name, _TYPES[column.type], nullable=not column.required) for column in COLUMNS]
)
"""The journal's columns as the pipeline reads them. Grain: one row per event. What an older file lacks is null."""

MOST_NS = 1 << 60
"""36 years: no instant since a boot and no silence is as long, and sums and differences of less fit 64 bits."""
MOST_UNIX_NS = 1 << 62
"""The year 2116."""

COUNTED = ("t", "conn", "idle_ns", "timeout_ms", "due_ns", "n", "idle_sum_ns", "wall_offset_ns")
"""Columns of which values, the least and the greatest are counted."""
MARKS = ("mark_t", "mark_idle")
"""Null but in the row of a stall."""
BY = ("kind", "listener", *MARKS)
"""What the rows of a file are counted by."""
_ASKED = [(name, how) for name in COUNTED for how in ("count", "min", "max")]
_NANOSECONDS = ("t", "idle_ns", "due_ns", "idle_sum_ns")
_SILENT = (KINDS[ACTIVITY], KINDS[AVERTED], *ENDS)
"""Kinds of rows that end a silence."""
_NEEDED = (("idle_ns", _SILENT), ("n", ENDS), ("idle_sum_ns", ENDS))

Count = Mapping[str, Any]
"""Some rows of one file that are alike in `BY`, which it names; count_all: how many. Of each column of `COUNTED`:
`_count` that are not null, `_min` and `_max`. ended_max: Unix time in ns of the latest; overdue_max: how long the worst
outlasted its timeout, or came after it was due. Null: no row knows it."""


class Refused(Exception):
    """This file is put aside. The message is the reason."""


def judge(facts: Facts, counts: Iterable[Count]) -> int | None:
    """Complete *facts*, which are those of the footer, with what all *counts* of the file say together.

    Returns:
        Unix time in ns of its last row; None: no row knows it.
    Raises:
        Refused: a row cannot be judged, or is impossible, or cannot be read.
    """
    found = list(counts)
    if (read := sum(count["count_all"] for count in found)) != facts.rows:
        raise Refused(f"corrupted: {read} of {facts.rows} rows can be read, the others fail their checksum or decoding")
    if any(c["kind"] is None or min(c["t_count"], c["conn_count"]) < c["count_all"] for c in found):
        raise Refused("wrong schema: t, conn and kind must have a value in every row")
    ranges = {name: _range(found, name) for name in COUNTED}
    least_conn, facts.last_conn = ranges["conn"] or (0, 0)
    if least_conn < 0:
        raise Refused(f"impossible row: connection id {least_conn} is negative")
    for name, bound in ranges.items():
        most = MOST_NS if name in _NANOSECONDS else MOST_UNIX_NS if name == "wall_offset_ns" else None
        if bound is not None and most is not None and not -most < bound[0] <= bound[1] < most:
            worst = bound[0] if bound[0] <= -most else bound[1]
            why = ", more than 36 years" if most == MOST_NS else ""
            raise Refused(f"impossible row: {name} is {worst}{why}")
    if (timeouts := ranges["timeout_ms"]) is not None and timeouts[0] < 0:
        raise Refused(f"impossible row: timeout_ms is {timeouts[0]}")
    kinds: Counter[str] = Counter()
    for count in found:
        kinds[count["kind"]] += count["count_all"]
    if strange := sorted(kinds.keys() - set(KINDS)):
        raise Refused(f"unknown kind {strange[0]!r}; known: {', '.join(KINDS)}")
    for column, needing in _NEEDED:
        for kind in needing:
            if any(count[f"{column}_count"] < count["count_all"] for count in found if count["kind"] == kind):
                raise Refused(f"impossible row: {kind} without {column}")
    stalls = {(count["mark_t"], count["mark_idle"]) for count in found if count["mark_t"] is not None}
    if any(idle is None or idle < 0 for _, idle in stalls):
        raise Refused("impossible row: a stall without its length (idle_ns)")
    facts.stalls = sorted(stalls)
    facts.drained = kinds[KINDS[DRAIN]] > 0
    facts.t_max = (ranges["t"] or (0, 0))[1]
    facts.averted = kinds[KINDS[AVERTED]]
    facts.overdue_ns = max(_known(found, "overdue_max", _SILENT), default=None)
    facts.listeners = sorted(set(_known(found, "listener")))
    facts.own_rows = sum(kinds[kind] for kind in OWN)
    if others := {least_conn >> SEQUENCE_BITS, facts.last_conn >> SEQUENCE_BITS} - {facts.writer}:
        known = f"its metadata says writer {facts.writer}, it holds rows of writer {min(others)}"
        raise Refused(f"rows of another writer: {known}")
    if least_conn < facts.first_conn:
        known = f"its run begins with connection {facts.first_conn}, it holds rows of {least_conn}"
        raise Refused(f"rows of another run: {known}")
    return max(_known(found, "ended_max"), default=None)


def _known(found: list[Count], name: str, kinds: Iterable[str] = KINDS) -> list[Any]:
    return [count[name] for count in found if count["kind"] in kinds and count[name] is not None]


def _range(found: list[Count], name: str) -> tuple[int, int] | None:
    least = [count[f"{name}_min"] for count in found if count[f"{name}_count"]]
    most = [count[f"{name}_max"] for count in found if count[f"{name}_count"]]
    return (min(least), max(most)) if least else None


# ---- counted in this process -----------------------------------------------------------------------------------------


def count(file: pq.ParquetFile) -> list[Count]:
    """Read *file* here, once, a row group at a time: every column, so that every checksum is verified.

    Raises:
        pyarrow.ArrowException, OSError: it cannot be read.
    """
    names = [column.name for column in COLUMNS if column.name in file.schema_arrow.names]
    found: list[Count] = []
    for group in range(file.num_row_groups):
        table = file.read_row_group(group, columns=names, use_threads=False)
        found += _count(table).to_pylist()
    return found


def overdue(table: pa.Table) -> pa.ChunkedArray:
    """How long the silence that each row ends outlasted its timeout, or the row came after it was due, ns."""
    # What does not fit 64 bits wraps: a value in it is beyond what `judge` lets pass.
    timeout = pc.multiply(table["timeout_ms"].cast(pa.int64()), 1_000_000)
    over = pc.if_else(pc.greater(timeout, 0), pc.subtract(table["idle_ns"], timeout), None)
    return pc.max_element_wise(over, pc.subtract(table["t"], table["due_ns"]))


def _count(table: pa.Table) -> pa.Table:
    def column(name: str) -> pa.ChunkedArray:
        return table[name] if name in table.schema.names else pa.chunked_array([pa.nulls(table.num_rows, pa.int64())])

    kind, reason = table["kind"].cast(pa.string()), table["reason"].cast(pa.string())
    stall = pc.and_(pc.equal(kind, KINDS[CONFIG]), pc.equal(pc.fill_null(reason, ""), STALL))
    counted = pa.table(
        {
            "kind": kind,
            "listener": table["listener"].cast(pa.string()),
            **{name: column(name) for name in COUNTED},
            "ended": pc.add(table["t"], column("wall_offset_ns")),
            "overdue": overdue(table),
            "mark_t": pc.if_else(stall, table["t"], None),
            "mark_idle": pc.if_else(stall, table["idle_ns"], None),
        }
    )
    return counted.group_by([*BY], use_threads=False).aggregate(
        [*_ASKED, ("ended", "max"), ("overdue", "max"), ([], "count_all")]
    )


# ---- counted by Spark, where they lie: nothing but the counts comes to this process ----------------------------------


def counts(spark: SparkSession, rows: Mapping[Place, int]) -> dict[Place, list[Count]]:
    """The counts of each file in *rows*, which says how many rows its footer promises.

    What cannot be read is counted as missing: `judge` compares with the footer. A file of which less can be read is
    looked at a second time: what was a failure of the network is not held against the file.
    """
    known = {_name(uri(where)): where for where in rows}
    found = _counted(spark, known)
    short = {
        name: where
        for name, where in known.items()
        if sum(count["count_all"] for count in found.get(where, ())) != rows[where]
    }
    return {where: [] for where in rows} | found | (_counted(spark, short) if short else {})


def _counted(spark: SparkSession, known: Mapping[str, Place]) -> dict[Place, list[Count]]:
    from pyspark.sql.pandas.types import from_arrow_schema

    events = spark.read.schema(from_arrow_schema(EVENTS)).option("ignoreCorruptFiles", "true")
    stall = (F.col("kind") == KINDS[CONFIG]) & (F.col("reason") == STALL)
    marks = (F.when(stall, F.col(column)).alias(mark) for column, mark in zip(("t", "idle_ns"), MARKS, strict=True))
    timeout = F.when(F.col("timeout_ms") > 0, F.col("timeout_ms").cast("long") * F.lit(1_000_000))
    late = F.greatest(F.try_subtract("idle_ns", timeout), F.try_subtract("t", "due_ns"))
    counted = (
        events.parquet(*map(pattern, known.values()))
        .groupBy(F.col("_metadata.file_path").alias("path"), "kind", "listener", *marks)
        .agg(
            F.count(F.lit(1)).alias("count_all"),
            *(getattr(F, how)(name).alias(f"{name}_{how}") for name, how in _ASKED),
            F.max(F.try_add("t", "wall_offset_ns")).alias("ended_max"),
            F.max(late).alias("overdue_max"),
            # Nobody asks about these two, but what is not read is not verified.
            *(F.count(name).alias(f"{name}_read") for name in ("nbytes", "peer")),
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
