"""A journal that is a table of Spark: a catalog's, Delta's, or any frame of its
columns.

The rule of this module: *a table is judged as its files would be*. No row says its
writer's tick, mode or clocks; the file did, in its footer. So each row of a table has a
text that says it, the same for all rows of one file, which a table stores once a file.
A file of which rows are missing, or there twice, is put aside as a whole.
"""

from __future__ import annotations

import json
import time
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa

from ...errors import InvalidArgument
from ..engine import F
from ..places import Place, pattern, uri
from .file import EVENTS, FILE, Count, Refused, counted, name_of
from .frames import small_frame
from .inputs import Inputs, Table, believed
from .runs import Facts
from .span import ALWAYS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY = "day"
"""The column of a table that has the day (UTC) of a file's first row, null where it
does not know.
"""

_FILES: pa.Schema = pa.schema([("_path", pa.string()), (FILE, pa.string()), (DAY, pa.date32())])

_TYPES = {"int64": "bigint", "int32": "int", "string": "string"}
"""Types of columns: Arrow's names, and Spark's."""

_NUMBERS = (
    *("rows", "size", "writer", "serial", "tick_ns", "gap_threshold_ns", "first_conn"),
    *("dropped", "dropped_earlier"),
)
_TEXTS = ("run", "mode", "boot", "server")
SAID = (*_NUMBERS, *_TEXTS, "numbered", "anchors", "bounds")
"""The fields of `Facts` that a file's text has: those of its footer."""


def said_of(facts: Facts) -> str:
    """What the file of *facts* says of itself, as text. `told` reads it."""
    return json.dumps({name: getattr(facts, name) for name in SAID})


def told(text: str) -> Facts:
    """The file that *text*, made by `said_of`, tells of.

    Raises:
        Refused: it is no such text.
    """
    try:
        found = json.loads(text)
        good = all(type(found[name]) is int for name in _NUMBERS) and all(
            type(found[name]) is str for name in _TEXTS
        )
        if not good or found.keys() != set(SAID):
            raise ValueError(text)
        path = Path(f"file {found['serial']} of run {found['run']} of writer {found['writer']}")
        bounds = found.pop("bounds")
        anchors = [[int(value) for value in anchor] for anchor in found.pop("anchors")]
        within = (int(bounds[0]), int(bounds[1])) if bounds else None
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        raise Refused("its column file has another text than reaper.pipeline.table gave") from None
    return Facts(path=path, said=text, anchors=anchors, bounds=within, **found)


def rows_of_files(spark: SparkSession, inputs: Inputs) -> DataFrame:
    """The rows of the good files in *inputs*, as a table has them: the columns of
    `EVENTS`, `FILE` and `DAY`. Grain: one row per event.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    files = {name_of(uri(facts.path)): facts for facts in inputs.files}
    if not files:
        return small_frame(spark, [], pa.schema([*EVENTS, *_FILES.remove(0)]))
    read = spark.read.schema(from_arrow_schema(EVENTS))
    rows = read.parquet(*(pattern(facts.path) for facts in inputs.files))
    rows = rows.select("*", F.col("_metadata.file_path").alias("_path"))
    # How Spark writes a path only Spark knows. No column of the files is read for it.
    paths = [row[0] for row in rows.select("_path").distinct().collect()]
    known = [(path, files[name_of(unquote(path))]) for path in paths]
    texts = [(path, said_of(facts), _day(facts)) for path, facts in known]
    frame = F.broadcast(small_frame(spark, texts, _FILES))
    return rows.join(frame, "_path").drop("_path")


def _day(facts: Facts) -> date | None:
    """The value of `DAY` for a file."""
    return datetime.fromtimestamp(facts.bounds[0] // 10**9, UTC).date() if facts.bounds else None


def check_table(table: DataFrame, *, now_ns: int | None = None) -> Inputs:
    """Check what *table* holds, file by file. *now_ns*: Unix time; None: this
    machine's.

    Raises:
        InvalidArgument: it lacks a column, or one has another type.
    """
    _check_columns(table)
    rows = table.select(*EVENTS.names, FILE)
    counts: dict[str, list[Count]] = {}
    for said, count in counted(rows, F.coalesce(F.col(FILE), F.lit(""))):
        counts.setdefault(said, []).append(count)
    footers: list[Facts] = []
    refused: dict[Place, str] = {}
    for said, found in counts.items():
        there = sum(count["count_all"] for count in found)
        try:
            facts = told(said)
        except Refused as wrong:
            refused[Path(f"{there} rows of the table")] = str(wrong)
            continue
        footers.append(facts)
        if there != facts.rows:
            refused[facts.path] = f"{there} rows are in the table, {facts.rows} were in the file"
    looked = [(facts, counts[facts.said]) for facts in footers if facts.path not in refused]
    now = time.time_ns() if now_ns is None else now_ns
    inputs = Inputs(table=Table(rows, len(counts)))
    if not counts:
        inputs.nothing.append("the table")
    return believed(inputs, footers, looked, refused, ALWAYS, now)


def _check_columns(table: DataFrame) -> None:
    """Refuse a *table* that is none."""
    types = dict(table.dtypes)
    for name, kind in ((field.name, _TYPES[str(field.type)]) for field in (*EVENTS, _FILES[1])):
        if types.get(name) != kind:
            found = f"is {types[name]}" if name in types else "is missing"
            raise InvalidArgument(
                f"events: column {name} {found}, expected {kind}: a table of journals is what "
                "reaper.pipeline.table(spark, paths) gives, written anywhere"
            )
