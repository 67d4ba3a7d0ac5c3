"""PySpark's DataFrames on DuckDB in this process, as far as the pipeline uses them: no
Java, and little to start.

A frame is a query, text in text, and nothing runs before it is asked for rows; its
columns are known without asking. What does not fit in memory goes to a temporary
directory, and with the session.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import tempfile
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...errors import needs
from ...journal.schema import ACTIVITY, KINDS
from ..places import DAMAGED, Place, files_below
from . import sql
from .functions import use
from .sql import OVER, Column, Window, column_of, literal, name

if TYPE_CHECKING:
    import duckdb

    from .parts import Ladder, Part

__all__ = ["DataFrame", "Row", "Session", "Window", "functions", "open_session"]

functions = sql

MEMORY_SHARE = 0.5
"""How much of the machine's memory queries may take before they write to the disk."""

MOST_MEMORY = 6 << 30
PORTION: int | None = 12_000_000
"""Rows whose connections are added up at once, where they can be told apart before
they are read: what is known of each stays in memory up to the end.
"""

AS_FILES = "hive_partitioning = false"
"""Names of folders are names: below `kind=reap/` DuckDB would take the name for the
column.
"""

LINES = 1 << 24
"""Bytes of a text that are read at once."""


class Row(tuple[Any, ...]):
    """A row: `row.name`, `row["name"]`, `row[0]`."""

    _names: tuple[str, ...]

    def __getattr__(self, label: str) -> Any:
        try:
            return self[self._names.index(label)]
        except ValueError:
            raise AttributeError(label) from None

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(self._names.index(key) if isinstance(key, str) else key)

    def asDict(self) -> dict[str, Any]:  # noqa: N802
        return dict(zip(self._names, self, strict=True))


class Session:
    """A connection to DuckDB, in place of a Spark session."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection, self._lock, self._tables = connection, RLock(), 0

    @contextmanager
    def _asked(self) -> Iterator[duckdb.DuckDBPyConnection]:
        with self._lock, self._connection.cursor() as cursor:
            yield cursor

    def rows(self, query: str) -> list[Row]:
        with self._asked() as cursor:
            found = cursor.execute(query.replace(OVER, ""))
            names = tuple(column[0] for column in found.description or ())
            kind = type("Row", (Row,), {"_names": names, "__slots__": ()})
            return [kind(row) for row in found.fetchall()]

    def arrow(self, query: str) -> pa.Table:
        with self._asked() as cursor:
            return cursor.sql(query.replace(OVER, "")).to_arrow_table()

    def table(self, query: str, given: Any = None) -> str:
        """Make a table of the rows of *query*, which may read *given*. Returns the
        table's name.
        """
        with self._asked() as cursor:
            self._tables += 1
            if given is not None:
                cursor.register("given", given)
            cursor.execute(f"CREATE TABLE t{self._tables} AS {query.replace(OVER, '')}").fetchall()
            return f"t{self._tables}"

    def createDataFrame(self, data: pa.Table | pa.RecordBatchReader) -> DataFrame:  # noqa: N802
        """A frame on a table of *data*; of a table, plans know how many rows it has."""
        return DataFrame(
            self, f"SELECT * FROM {self.table('SELECT * FROM given', data)}", data.schema.names
        )


class DataFrame:
    """A query, in place of Spark's frame. *columns*: its names, in order."""

    def __init__(self, session: Session, query: str, columns: Sequence[str]) -> None:
        self.sparkSession: Session = session
        self.columns: list[str] = list(columns)
        self._query = query
        if len(set(self.columns)) < len(self.columns):
            raise ValueError(f"two columns of one name: {self.columns}")
        self._kept: str | None = None
        self._ordered = False

    @property
    def dtypes(self) -> list[tuple[str, str]]:
        """Each column's name and type, as DuckDB calls it."""
        return [(row[0], row[1]) for row in self.sparkSession.rows(f"DESCRIBE {self._query}")]

    def _on(self, select: str, columns: Sequence[str], rest: str = "") -> DataFrame:
        return DataFrame(self.sparkSession, f"SELECT {select} FROM ({self._query}) {rest}", columns)

    def select(self, *columns: Any) -> DataFrame:
        given = columns[0] if len(columns) == 1 and isinstance(columns[0], list) else columns
        parts: list[str] = []
        names: list[str] = []
        for each in given:
            if isinstance(each, str) and each == "*":
                parts.append("*")
                names += self.columns
                continue
            column = column_of(each)
            if column.members:
                parts.append(column.sql)
                names += column.members
            else:
                names.append(column.label or f"_{len(names)}")
                parts.append(f"{column.sql} AS {name(names[-1])}")
        return self._on(", ".join(parts), names)

    def withColumns(self, columns: dict[str, Column]) -> DataFrame:  # noqa: N802
        old = [
            f"{column.sql} AS {name(label)}"
            for label, column in columns.items()
            if label in self.columns
        ]
        new = [label for label in columns if label not in self.columns]
        select = f"* REPLACE ({', '.join(old)})" if old else "*"
        more = "".join(f", {columns[label].sql} AS {name(label)}" for label in new)
        return self._on(select + more, [*self.columns, *new])

    def withColumn(self, label: str, column: Column) -> DataFrame:  # noqa: N802
        return self.withColumns({label: column})

    def drop(self, *columns: str) -> DataFrame:
        gone = [each for each in columns if each in self.columns]
        kept = [each for each in self.columns if each not in gone]
        return self._on(f"* EXCLUDE ({', '.join(map(name, gone))})", kept) if gone else self

    def where(self, condition: Column | str) -> DataFrame:
        found = condition.sql if isinstance(condition, Column) else f"({condition})"
        return self._on("*", self.columns, f"WHERE {found}")

    def distinct(self) -> DataFrame:
        return self._on("DISTINCT *", self.columns)

    def orderBy(self, *columns: Any) -> DataFrame:  # noqa: N802
        frame = self._on("*", self.columns, f"ORDER BY {sql.ordered(columns)}")
        frame._ordered = True
        return frame

    def limit(self, most: int) -> DataFrame:
        query = (
            self._query if self._ordered else f"SELECT * FROM ({self._query})"
        )  # else the order would be lost
        return DataFrame(self.sparkSession, f"{query} LIMIT {most}", self.columns)

    def unionByName(self, other: DataFrame) -> DataFrame:  # noqa: N802
        theirs = other.select(*self.columns)
        return DataFrame(
            self.sparkSession, f"({self._query}) UNION ALL ({theirs._query})", self.columns
        )

    def groupBy(self, *columns: Any) -> Grouped:  # noqa: N802
        return Grouped(self, [column_of(each) for each in columns])

    def agg(self, *columns: Column) -> DataFrame:
        return self.groupBy().agg(*columns)

    def join(self, other: DataFrame, on: Column | str | list[str], how: str = "inner") -> DataFrame:
        if isinstance(on, Column):
            return self._joined(other, how.upper(), f"ON {on.sql}", [*self.columns, *other.columns])
        keys = [on] if isinstance(on, str) else on
        rest = [each for each in [*self.columns, *other.columns] if each not in keys]
        return self._joined(
            other, how.upper(), f"USING ({', '.join(map(name, keys))})", [*keys, *rest]
        )

    def crossJoin(self, other: DataFrame) -> DataFrame:  # noqa: N802
        return self._joined(other, "CROSS", "", [*self.columns, *other.columns])

    def _joined(self, other: DataFrame, how: str, on: str, columns: list[str]) -> DataFrame:
        shown = ", ".join(map(name, columns))
        query = f"SELECT {shown} FROM ({self._query}) AS _l {how} JOIN ({other._query}) AS _r {on}"
        return DataFrame(self.sparkSession, query, columns)

    def persist(self) -> DataFrame:
        """Compute the rows now, and keep them."""
        kept = self.sparkSession.table(self._query)
        frame = DataFrame(self.sparkSession, f"SELECT * FROM {kept}", self.columns)
        frame._kept = kept
        return frame

    def unpersist(self) -> None:
        if self._kept is not None:
            self.sparkSession.rows(f"DROP TABLE {self._kept}")

    def collect(self) -> list[Row]:
        return self.sparkSession.rows(self._query)

    def first(self) -> Row | None:
        return next(iter(self.limit(1).collect()), None)

    def count(self) -> int:
        return int(self.sparkSession.rows(f"SELECT count(*) FROM ({self._query})")[0][0])

    def toArrow(self) -> pa.Table:  # noqa: N802
        return self.sparkSession.arrow(self._query)


class Grouped:
    """Rows in groups, as `groupBy` leaves them."""

    def __init__(self, frame: DataFrame, keys: list[Column]) -> None:
        self._frame, self._keys = frame, keys

    def agg(self, *columns: Column) -> DataFrame:
        found = [*self._keys, *columns]
        names = [column.label or f"_{i}" for i, column in enumerate(found)]
        parts = [
            f"{column.sql} AS {name(label)}" for column, label in zip(found, names, strict=True)
        ]
        by = (
            f"GROUP BY {', '.join(str(i + 1) for i in range(len(self._keys)))}"
            if self._keys
            else ""
        )
        return self._frame._on(", ".join(parts), names, by)

    def count(self) -> DataFrame:
        return self.agg(sql.count(sql.lit(1)).alias("count"))


def read_parquet(session: Session, paths: Sequence[Place], schema: pa.Schema) -> DataFrame:
    """The rows of the files *paths*; columns of *schema* that a file lacks are null."""
    listed = ", ".join(literal(_plain(path)) for path in paths)
    files = f"read_parquet([{listed}], union_by_name = true, {AS_FILES})"
    there = {row[0] for row in session.rows(f"DESCRIBE SELECT * FROM {files}")}
    kinds = {field.name: _KINDS[str(field.type)] for field in schema}
    columns = [
        f"{name(each) if each in there else 'NULL'}::{kind} AS {name(each)}"
        for each, kind in kinds.items()
    ]
    return DataFrame(session, f"SELECT {', '.join(columns)} FROM {files}", schema.names)


def read_table(session: Session, paths: Sequence[Place]) -> DataFrame:
    """The rows of the Parquet files at and below *paths*, with their own columns."""
    listed = ", ".join(
        literal(_plain(file))
        for path in paths
        for file, _, _ in files_below(path)
        if str(file).endswith(".parquet")
    )
    query = f"SELECT * FROM read_parquet([{listed}], union_by_name = true)"
    return DataFrame(session, query, [row[0] for row in session.rows(f"DESCRIBE {query}")])


def _of_kinds(events: DataFrame, kinds: Sequence[int]) -> DataFrame:
    """The rows of *events* of *kinds*: by their text, which is looked for as the files
    are read. DuckDB does not do that for a list of texts, so the commonest kind is left
    out by itself.
    """
    texts = ", ".join(literal(KINDS[code]) for code in kinds)
    rare = "" if ACTIVITY in kinds else f"kind <> {literal(KINDS[ACTIVITY])} AND "
    return events.where(f"{rare}kind IN ({texts})")


def grouped(
    events: DataFrame, key: str, parts: Sequence[Part], ladder: Ladder | None = None
) -> DataFrame:
    """*events* grouped by *key*: for each of *parts*, the sums over its rows, and the
    columns of *ladder*; null where there are none.

    Each part is a query of its own: an aggregate over some of the rows has to look at
    all of them, and nine rows in ten are of one kind.
    """
    found: DataFrame | None = None
    for part in parts:
        rows = _of_kinds(events, part.kinds)
        rows = rows.where(part.where) if part.where else rows
        if part.unless:
            others = _of_kinds(events, part.unless).select(key)
            rows = rows._joined(others, "ANTI", f"USING ({name(key)})", rows.columns)
        added = rows.groupBy(key).agg(
            *(
                sql.expr(f"{aggregate} FILTER (WHERE {of})" if of else aggregate).alias(label)
                for label, (aggregate, of) in part.columns.items()
            )
        )
        found = added if found is None else found.join(added, key, "full")
    assert found is not None
    return found if ladder is None else found.join(_climbed(events, key, ladder), key, "full")


def _climbed(events: DataFrame, key: str, ladder: Ladder) -> DataFrame:
    """The columns of *ladder*. First the least value and the count of each step alone:
    a row then costs two aggregates, and not two a step.
    """
    steps = sorted({*ladder.steps, *(most for _, most in ladder.counted)})
    place = " ".join(
        f"WHEN {ladder.measure} > {step} THEN {i}" for i, step in reversed(list(enumerate(steps)))
    )
    rows = events.where(f"{ladder.measure} > {steps[0]} AND {ladder.where}")
    step = sql.expr(f"CAST(CASE {place} END AS TINYINT)").alias("_step")
    least = sql.expr(f"min({ladder.value})").alias("_least")
    count = sql.expr(f"count(1) FILTER (WHERE {ladder.counts})").alias("_count")
    alone = rows.groupBy(key, step).agg(least, count)
    found = alone.groupBy(key).agg(
        *(
            sql.expr(f"min(_least) FILTER (WHERE _step = {i})").alias(f"_at_{i}")
            for i in range(len(steps))
        ),
        *(
            sql.expr(
                f"CAST(sum(_count) FILTER (WHERE _step >= {steps.index(most)}) AS BIGINT)"
            ).alias(label)
            for label, most in ladder.counted
        ),
    )
    # From the last step down: beyond one lies what is beyond the next.
    for i in reversed(range(len(steps) - 1)):
        found = found.withColumn(f"_at_{i}", sql.expr(f"least(_at_{i}, _at_{i + 1})"))
    return found.select(
        key,
        *(
            sql.col(f"_at_{steps.index(step)}").alias(f"{ladder.name}_{i}")
            for i, step in enumerate(ladder.steps)
        ),
        *(label for label, _ in ladder.counted),
    )


def counted(
    frame: DataFrame, by: str, head: Column, sums: dict[str, str], keys: Sequence[Sequence[Column]]
) -> list[Row]:
    """Count the rows of *frame* for each *by* and `key`: *head*, and one after the
    other of *keys*. Of *head* there are *sums*, too. A null is no key.

    Each key is counted by itself over rows that are computed once: to unnest them
    copies every row as often.
    """
    flat = [key for each in keys for key in each]
    names = [f"_key_{i}" for i in range(len(flat))]
    asked = set(re.findall(r"\w+", " ".join(sums.values())))
    kept = (
        frame.withColumn("key", head)
        .withColumns(dict(zip(names, flat, strict=True)))
        .select(by, "key", *names, *(each for each in frame.columns if each in asked))
        .persist()
    )
    try:
        added = (sql.expr(each).alias(label) for label, each in sums.items())
        found = kept.groupBy(by, "key").agg(sql.count(sql.lit(1)).alias("count"), *added).collect()
        for label in names:
            rows = kept.where(f"{label} IS NOT NULL").groupBy(by, sql.col(label).alias("key"))
            found += rows.count().collect()
    finally:
        kept.unpersist()
    return found


_KINDS = {"int64": "BIGINT", "int32": "INTEGER", "int8": "TINYINT", "string": "VARCHAR"}


def _plain(path: Place) -> str:
    """*path* with every character escaped that DuckDB would take for a pattern."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in os.path.abspath(str(path)))


def read_lines(session: Session, paths: Sequence[Place]) -> DataFrame:
    """The lines of the files *paths*, `.gz` or plain, as `value`. They are read once,
    and kept.

    As in Spark, a line ends with a line feed, a carriage return or both, and a byte
    order mark at the beginning of a file is no part of it.
    """
    schema = pa.schema([pa.field("value", pa.string())])

    def batches() -> Iterator[pa.RecordBatch]:
        for path in paths:
            file, mark = Path(str(path)), BOM_UTF8
            with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as lines:
                try:
                    while found := lines.readlines(LINES):
                        found[0] = found[0].removeprefix(mark)
                        mark = b""
                        texts = [
                            text.decode(errors="replace")
                            for line in found
                            for text in line.splitlines()
                        ]
                        yield pa.record_batch([pa.array(texts, pa.string())], schema=schema)
                except (OSError, EOFError, zlib.error):
                    raise OSError(f"{file} cannot be read: {DAMAGED}") from None

    return session.createDataFrame(pa.RecordBatchReader.from_batches(schema, batches()))


def write_back(frame: DataFrame, target: Place) -> DataFrame:
    """Write *frame* to Parquet at *target*, over what is there. Returns it as it reads
    back.
    """
    directory = Path(str(target))
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    file = directory / "part-00000.parquet"
    frame.sparkSession.rows(f"COPY ({frame._query}) TO {literal(str(file))} (FORMAT parquet)")
    return DataFrame(
        frame.sparkSession,
        f"SELECT * FROM read_parquet({literal(_plain(file))}, {AS_FILES})",
        frame.columns,
    )


def append_days(frame: DataFrame, target: Place, key: str) -> None:
    """Add the rows of *frame* whose *key* is not there yet to the Parquet files at
    *target*, a folder for each value of its column `day`. What is there stays.
    """
    directory = Path(str(target))
    directory.mkdir(parents=True, exist_ok=True)
    rows = f"SELECT * FROM ({frame._query})"
    if files := sorted(directory.rglob("*.parquet")):
        listed = ", ".join(literal(_plain(path)) for path in files)
        known = f"SELECT {name(key)} FROM read_parquet([{listed}], {AS_FILES})"
        rows += f" ANTI JOIN ({known}) USING ({name(key)})"
    place = literal(str(directory))
    frame.sparkSession.rows(
        f"COPY ({rows}) TO {place} (FORMAT parquet, PARTITION_BY (day), APPEND)"
    )


def memory_bytes() -> int:
    """How much memory queries may take before they write to the disk."""
    from .spark import memory_mb

    return min(MOST_MEMORY, int((memory_mb() << 20) * MEMORY_SHARE))


@contextmanager
def open_session() -> Iterator[Session]:
    """A session of one command; its temporary files go with it."""
    with needs("--engine embedded", "idle-reaper[pipeline]"):
        import duckdb
    with tempfile.TemporaryDirectory(prefix="reaper-duckdb-") as scratch:
        settings: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": f"{memory_bytes() >> 20}MiB",
            "temp_directory": scratch,
            "preserve_insertion_order": False,
            "autoinstall_known_extensions": False,
            "TimeZone": "UTC",
        }
        connection = duckdb.connect(config=settings)
        connection.execute(f"CREATE MACRO xxhash64(text) AS {sql.xxhash64('text').sql}")
        before = use("embedded")
        try:
            yield Session(connection)
        finally:
            use(before)
            connection.close()
