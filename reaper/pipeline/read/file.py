"""One journal file: what its footer says, and what its rows say together, before it is
believed.

The rule of this module: *a file is good as a whole, or refused with the reason*. A row
that no rule could judge, a value that cannot be true, a row of another writer: each
refuses its file. *Rules are asked of counts, never of rows*: a file is counted by kind
and listener, where it lies, by Spark's executors, or in this process. The few rows in
which a writer reports a stall are groups of their own, so that no question has to look
for them again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...errors import one_line
from ...journal.layout import bounds, check_footer
from ...journal.schema import (
    ACTIVITY,
    AVERTED,
    COLUMNS,
    CONFIG,
    DRAIN,
    DROPPED,
    ENDS,
    KINDS,
    OPEN,
    OWN,
    PREFIX,
    SCHEMA_VERSION,
    SEQUENCE_BITS,
    STALL,
)
from ..engine import F
from ..places import Place, Remote, pattern, uri
from .runs import TICK_NS, Facts

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FUTURE_NS = 24 * 3600 * 10**9
"""How far ahead of this machine's clock a file may lie before it is not believed."""
PAST_NS = 3650 * 24 * 3600 * 10**9
"""How far behind it a file may lie."""

_TYPES = {"int64": pa.int64(), "int32": pa.int32(), "dictionary": pa.string()}

EVENTS: pa.Schema = pa.schema(
    [pa.field(column.name, _TYPES[column.type], nullable=not column.required) for column in COLUMNS]
)
"""The journal's columns as the pipeline reads them. Grain: one row per event. What an
older file lacks is null.
"""

MOST_NS = 1 << 60
"""36 years: no instant since a boot and no silence is as long, and sums and differences
of less fit 64 bits.
"""
MOST_UNIX_NS = 1 << 62
"""The year 2116."""

COUNTED = ("t", "conn", "idle_ns", "timeout_ms", "due_ns", "n", "idle_sum_ns", "wall_offset_ns")
"""Columns for which a count, the least and the greatest value are kept."""
MARKS = ("mark_t", "mark_idle", "mark_lost")
"""Null but in the row of a stall, and (`mark_lost`) in one in which a writer says that
it lost rows.
"""
BY = ("kind", "listener", *MARKS)
"""The columns that group the rows of a file."""
_ASKED = [(name, how) for name in COUNTED for how in ("count", "min", "max")]
_NANOSECONDS = ("t", "idle_ns", "due_ns", "idle_sum_ns")
_SILENT = (KINDS[ACTIVITY], KINDS[AVERTED], *ENDS)
"""Kinds of rows that end a silence."""
_NEEDED = (("idle_ns", _SILENT), ("n", ENDS), ("idle_sum_ns", ENDS))

CODECS = frozenset({"UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD", "LZ4"})
"""The codecs that both engines have. Spark needs another library for brotli."""

FILE = "file"
"""The column of a table that says which file a row is of."""

NAMES = ("kind", "listener")
"""Columns of text by which rows are counted. They travel as bytes, because a writer may
have put in what is no UTF-8; see `_with_texts`.
"""

Count = Mapping[str, Any]
"""Some rows of one file that are alike in `BY`, which it names; count_all: how many. Of
each column of `COUNTED`: `_count` that are not null, `_min` and `_max`. changes:
whether there are changes of a connection's timeout, in these rows or in others of the
file. ended_max: Unix time in ns of the latest; overdue_max: how long the worst
outlasted its timeout, or came after it was due. Null: no row knows it.
"""


class Refused(Exception):
    """This file is put aside. The message is the reason."""


def footer_of(path: Place, size: int) -> Facts:
    """What the file at *path*, of *size* bytes, says without its rows. Reads its footer
    alone.

    Raises:
        Refused: it cannot be used.
    """
    with _opened(path, size) as file:
        schema, rows, when = file.schema_arrow, file.metadata.num_rows, bounds(file.metadata)
        codecs = {
            file.metadata.row_group(group).column(column).compression
            for group in range(file.metadata.num_row_groups)
            for column in range(file.metadata.num_columns)
        }
    metadata = {
        key.decode(errors="replace").removeprefix(PREFIX): value.decode(errors="replace")
        for key, value in (schema.metadata or {}).items()
        if key.decode(errors="replace").startswith(PREFIX)
    }
    version = _number(metadata, "schema_version", 1)
    mode, run = metadata.get("mode", "gaps"), metadata.get("run", "")
    if mode not in ("gaps", "full"):
        raise Refused(f"wrong metadata: {PREFIX}mode is {mode[:80]!r}, expected gaps or full")
    if version > SCHEMA_VERSION:
        raise Refused(
            f"schema version {version} is newer than {SCHEMA_VERSION}, the newest this release "
            "reads"
        )
    if strange := sorted(codecs - CODECS):
        raise Refused(f"compressed with {strange[0]}, expected one of {', '.join(sorted(CODECS))}")
    _check_columns(schema)
    writer = _number(metadata, "writer", -1)
    if not run or writer < 0:
        raise Refused(
            f"wrong metadata: {PREFIX}run and {PREFIX}writer must say whose rows these are"
        )
    if not (run.isascii() and all(digit in "0123456789abcdefABCDEF" for digit in run)):
        raise Refused(f"wrong metadata: {PREFIX}run is {run[:80]!r}, expected hexadecimal digits")
    if not rows:
        raise Refused("empty: the file has no rows")
    return Facts(
        path=path,
        size=size,
        rows=rows,
        run=run,
        writer=writer,
        serial=_number(metadata, "serial", 0),
        mode=mode,
        tick_ns=_number(metadata, "tick_ns", 0) or TICK_NS,
        gap_threshold_ns=_number(metadata, "gap_threshold_ns", 0),
        first_conn=_number(metadata, "first_conn", writer << SEQUENCE_BITS),
        numbered="first_conn" in metadata,
        boot=metadata.get("boot", ""),
        anchors=_anchors(metadata),
        dropped=max(_number(metadata, "dropped_before", 0), _number(metadata, "dropped", 0)),
        dropped_earlier=_number(metadata, "dropped_earlier", 0),
        server=metadata.get("server", ""),
        bounds=when,
    )


def count_here(facts: Facts) -> tuple[Facts, list[Count]]:
    """*facts*, and the rows of their file, counted in this process, once, a row group
    at a time: every column, so that every page is compared with its checksum.

    Raises:
        Refused: they cannot be read.
    """
    found: list[Count] = []
    with _opened(facts.path, facts.size) as file:
        names = [column.name for column in COLUMNS if column.name in file.schema_arrow.names]
        try:
            for group in range(file.num_row_groups):
                counted = _count(file.read_row_group(group, columns=names, use_threads=False))
                found += map(_with_texts, counted.to_pylist())
        except (pa.ArrowException, OSError, ValueError) as error:
            raise Refused(f"corrupted: {one_line(error)}") from None
    return facts, found


@contextmanager
def _opened(path: Place, size: int) -> Iterator[pq.ParquetFile]:
    if size == 0:
        raise Refused("zero-length: the file has no bytes")
    try:
        source = pa.BufferReader(path.footer(size)) if isinstance(path, Remote) else path
        file = pq.ParquetFile(source, page_checksum_verification=True)
    except FileNotFoundError:
        raise  # it was there a moment ago
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Refused(f"truncated or not Parquet: {one_line(error)}") from None
    with file:
        if not isinstance(path, Remote):  # of a remote file only the footer was read
            try:
                check_footer(file)
            except (pa.ArrowException, OSError, ValueError) as error:
                raise Refused(f"corrupted: {one_line(error)}") from None
        yield file


def _number(metadata: dict[str, str], key: str, default: int) -> int:
    """The metadata's *key* as an integer, or *default* where it is missing.

    Raises:
        Refused: it is none, or out of range.
    """
    try:
        value = int(metadata.get(key, default))
    except ValueError:
        raise Refused(
            f"wrong schema: metadata {PREFIX}{key} is {metadata[key]!r}, expected an integer"
        ) from None
    if value != default and not 0 <= value < 1 << 63:
        raise Refused(
            f"wrong metadata: {PREFIX}{key} is {value}, expected 0 or more, within 64 bits"
        )
    if key.endswith("_ns") and value >= MOST_NS:
        raise Refused(f"wrong metadata: {PREFIX}{key} is {value}, more than 36 years")
    return value


def _check_columns(schema: pa.Schema) -> None:
    alike: dict[str, str] = {}
    for name in schema.names:
        if "\0" in name:
            raise Refused(f"wrong schema: the name of column {name!r} has a NUL in it")
        if (other := alike.setdefault(name.lower(), name)) != name:
            raise Refused(f"wrong schema: columns {other} and {name} differ in case alone")
        if schema.names.count(name) > 1:
            raise Refused(f"wrong schema: column {name} is there twice")
    for column in COLUMNS:
        if column.name not in schema.names:
            raise Refused(f"wrong schema: column {column.name} is missing")
        found = schema.field(column.name).type
        plain = found.value_type if pa.types.is_dictionary(found) else found
        good = (
            pa.types.is_string(plain) if column.type == "dictionary" else str(plain) == column.type
        )
        if not good:
            wanted = "string" if column.type == "dictionary" else column.type
            raise Refused(f"wrong schema: column {column.name} is {plain}, expected {wanted}")


def _anchors(metadata: dict[str, str]) -> list[list[int]]:
    try:
        found = [
            [int(value) for value in anchor] for anchor in json.loads(metadata.get("anchors", "[]"))
        ]
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise Refused(f"wrong schema: metadata {PREFIX}anchors is no list of instants") from None
    if any(
        len(anchor) not in (2, 3) or any(abs(value) >= MOST_UNIX_NS for value in anchor)
        for anchor in found
    ):
        raise Refused(
            f"wrong metadata: {PREFIX}anchors has an anchor that is no pair or triple of instants"
        )
    return found


# ---- rules


def believe(facts: Facts, counts: Iterable[Count], now: int) -> None:
    """Check all *counts* of the file, and enter what they tell into *facts*, which hold
    what the footer says. *now*: Unix time, ns.

    Raises:
        Refused: rows cannot be read or judged, or are impossible; or the last one is
            too far before or after *now*.
    """
    found = list(counts)
    if (read := sum(count["count_all"] for count in found)) != facts.rows:
        raise Refused(
            f"corrupted: {read} of {facts.rows} rows can be read, the others fail their checksum "
            "or decoding"
        )
    if any(c["kind"] is None or min(c["t_count"], c["conn_count"]) < c["count_all"] for c in found):
        raise Refused("wrong schema: t, conn and kind must have a value in every row")
    ranges = {name: _range(found, name) for name in COUNTED}
    least_conn, facts.last_conn = ranges["conn"] or (0, 0)
    if least_conn < 0:
        raise Refused(f"impossible row: connection id {least_conn} is negative")
    for name, bound in ranges.items():
        most = (
            MOST_NS if name in _NANOSECONDS else MOST_UNIX_NS if name == "wall_offset_ns" else None
        )
        if bound is not None and most is not None and not -most < bound[0] <= bound[1] < most:
            worst = bound[0] if bound[0] <= -most else bound[1]
            why = ", more than 36 years" if most == MOST_NS else ""
            raise Refused(f"impossible row: {name} is {worst}{why}")
    if (timeouts := ranges["timeout_ms"]) is not None and timeouts[0] < 0:
        raise Refused(f"impossible row: timeout_ms is {timeouts[0]}")
    _check_texts(found)
    kinds: Counter[str] = Counter()
    for count in found:
        kinds[count["kind"]] += count["count_all"]
    if strange := sorted(kinds.keys() - set(KINDS)):
        raise Refused(f"unknown kind {strange[0]!r}; known: {', '.join(KINDS)}")
    for column, needing in _NEEDED:
        for kind in needing:
            if any(
                count[f"{column}_count"] < count["count_all"]
                for count in found
                if count["kind"] == kind
            ):
                raise Refused(f"impossible row: {kind} without {column}")
    stalls = {
        (count["mark_t"], count["mark_idle"]) for count in found if count["mark_t"] is not None
    }
    if any(idle is None or idle < 0 for _, idle in stalls):
        raise Refused("impossible row: a stall without its length (idle_ns)")
    facts.stalls = sorted(stalls)
    # The row says how many, and its footer should, too.
    lost = [count["n_max"] or 1 for count in found if count["mark_lost"]]
    facts.dropped = max(facts.dropped, *lost, 0)
    facts.drained = kinds[KINDS[DRAIN]] > 0
    facts.t_min, facts.t_max = ranges["t"] or (0, 0)
    facts.first_opened = min(_known(found, "conn_min", (KINDS[OPEN],)), default=None)
    facts.opened_ns = min(_known(found, "t_min", (KINDS[OPEN],)), default=None)
    facts.averted = kinds[KINDS[AVERTED]]
    reports = [count for count in found if count["kind"] == KINDS[CONFIG]]
    facts.changes = bool(facts.averted) or any(count["changes"] for count in found)
    facts.told = any(count["idle_sum_ns_count"] for count in reports)
    # 0 is no timeout in force, as a missing one is: `not` catches both.
    facts.untimed = any(
        count["timeout_ms_count"] < count["count_all"] or not count["timeout_ms_min"]
        for count in found
        if count["kind"] == KINDS[ACTIVITY]
    )
    facts.backward = ranges["idle_ns"] is not None and ranges["idle_ns"][0] < 0
    facts.overdue_ns = max(_known(found, "overdue_max", (*_SILENT, KINDS[CONFIG])), default=None)
    of_connections = [count for count in found if count["mark_t"] is None]
    facts.longest_ns = max(
        _known(of_connections, "idle_ns_max", (*_SILENT, KINDS[CONFIG])), default=None
    )
    facts.least_ms = min(
        _known(found, "timeout_ms_min", (KINDS[OPEN], KINDS[CONFIG])), default=None
    )
    active = [
        each
        for bound in ("timeout_ms_min", "timeout_ms_max")
        for each in _known(found, bound, (KINDS[ACTIVITY],))
    ]
    facts.active_ms = (min(active), max(active)) if active else None
    facts.listeners = sorted(set(_known(found, "listener")))
    facts.own_rows = sum(kinds[kind] for kind in OWN)
    if others := {least_conn >> SEQUENCE_BITS, facts.last_conn >> SEQUENCE_BITS} - {facts.writer}:
        known = f"its metadata says writer {facts.writer}, it holds rows of writer {min(others)}"
        raise Refused(f"rows of another writer: {known}")
    if least_conn < facts.first_conn:
        known = f"its run begins with connection {facts.first_conn}, it holds rows of {least_conn}"
        raise Refused(f"rows of another run: {known}")
    # Unix time of its last row. One that does not know the wall clock is as far ahead
    # as those say that do; now: none knows it.
    offsets = [ranges["wall_offset_ns"][1]] if ranges["wall_offset_ns"] else []
    offsets += [anchor[1] - anchor[0] for anchor in facts.anchors]
    ended = max(
        [*_known(found, "ended_max"), *(facts.t_max + offset for offset in offsets[:1])],
        default=now,
    )
    if ended > now + FUTURE_NS:
        raise Refused(
            f"future: its last row is {(ended - now) / 3600e9:,.0f} h ahead of this machine's clock"
        )
    if ended < now - PAST_NS:
        raise Refused(f"late: it ended {(now - ended) / 3600e9:,.0f} h ago: its clock was not set")


def _check_texts(found: Iterable[Count]) -> None:
    """Refuse names that one engine reads and the other does not."""
    for count in found:
        for column in NAMES:
            text = count[column] or ""
            if not text.isprintable() and "\0" in text:
                raise Refused(f"impossible row: {column} {text!r} has a NUL in it")
            try:
                text.encode()
            except UnicodeEncodeError:
                raise Refused(f"corrupted: {column} {text!r} is no UTF-8") from None


def _with_texts(count: dict[str, Any]) -> dict[str, Any]:
    """*count* with its `NAMES` decoded; bytes that are no UTF-8 become lone
    surrogates.
    """
    for column in NAMES:
        if count[column] is not None:
            count[column] = count[column].decode("utf-8", "surrogateescape")
    return count


def _known(found: list[Count], name: str, kinds: Iterable[str] = KINDS) -> list[Any]:
    return [count[name] for count in found if count["kind"] in kinds and count[name] is not None]


def _range(found: list[Count], name: str) -> tuple[int, int] | None:
    least = [count[f"{name}_min"] for count in found if count[f"{name}_count"]]
    most = [count[f"{name}_max"] for count in found if count[f"{name}_count"]]
    return (min(least), max(most)) if least else None


def overdue(table: pa.Table, own: pa.ChunkedArray) -> pa.ChunkedArray:
    """By how much the silence that each row ends outlasted its timeout, or the row came
    after it was due; ns. A row of a connection that is not over has its due instant
    alone: *own*, whether each row is one, or one of the writer itself.
    """
    # What does not fit 64 bits wraps: a value in it is beyond what `believe` lets pass.
    timeout = pc.multiply(table["timeout_ms"].cast(pa.int64()), 1_000_000)
    ends = pc.and_not(pc.greater(timeout, 0), own)
    over = pc.if_else(ends, pc.subtract(table["idle_ns"], timeout), None)
    return pc.max_element_wise(over, pc.subtract(table["t"], table["due_ns"]))


def _count(table: pa.Table) -> pa.Table:
    def column(name: str) -> pa.ChunkedArray:
        return (
            table[name]
            if name in table.schema.names
            else pa.chunked_array([pa.nulls(table.num_rows, pa.int64())])
        )

    kind, reason = table["kind"].cast(pa.string()), table["reason"].cast(pa.string())
    own, why = pc.equal(kind, KINDS[CONFIG]), pc.fill_null(reason, "")
    stall = pc.and_(own, pc.equal(why, STALL))
    lost = pc.and_(own, pc.equal(why, DROPPED))
    changes = pc.and_(own, pc.is_valid(table["timeout_ms"]))
    changes = pc.and_(changes, pc.is_null(column("idle_sum_ns")))
    counted = pa.table(
        {
            "kind": kind,
            "listener": table["listener"].cast(pa.string()),
            **{name: column(name) for name in COUNTED},
            "ended": pc.add(table["t"], column("wall_offset_ns")),
            "overdue": overdue(table, own),
            "mark_t": pc.if_else(stall, table["t"], None),
            "mark_idle": pc.if_else(stall, table["idle_ns"], None),
            "mark_lost": pc.if_else(lost, True, None),
        }
    )
    # One thread: the process counts several files at once already.
    found = counted.group_by([*BY], use_threads=False).aggregate(
        [*_ASKED, ("ended", "max"), ("overdue", "max"), ([], "count_all")]
    )
    changed = pa.array([pc.any(changes).as_py()] * found.num_rows, pa.bool_())
    found = found.append_column("changes", changed)
    for name in NAMES:
        place = found.schema.get_field_index(name)
        found = found.set_column(place, name, found[name].cast(pa.binary()))
    return found


# ---- counted by Spark, where they lie: nothing but the counts comes to this process


def counts(spark: SparkSession, rows: Mapping[Place, int]) -> dict[Place, list[Count]]:
    """The counts of each file in *rows*, which says how many rows its footer promises.

    What cannot be read is counted as missing: `believe` compares with the footer. If
    less of a file can be read, it is read a second time: a failure of the network is
    not the file's.
    """
    known = {name_of(uri(where)): where for where in rows}
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
    rows = events.parquet(*map(pattern, known.values()))
    found: dict[Place, list[Count]] = {}
    for path, count in counted(rows, F.col("_metadata.file_path")):
        found.setdefault(known[name_of(unquote(path))], []).append(count)
    return found


def counted(events: DataFrame, file: Column) -> Iterator[tuple[Any, Count]]:
    """The counts of *events*, of any number of files. *file*: which one a row is of.
    Yields (its value, some rows of it).
    """
    own = F.col("kind") == KINDS[CONFIG]
    stall, lost = own & (F.col("reason") == STALL), own & (F.col("reason") == DROPPED)
    marks = (
        F.when(stall, F.col("t")),
        F.when(stall, F.col("idle_ns")),
        F.when(lost, F.lit(True)),
    )
    by = [F.col(name).cast("binary").alias(name) for name in NAMES]
    by += [mark.alias(name) for mark, name in zip(marks, MARKS, strict=True)]
    ends = (F.col("timeout_ms") > 0) & ~own
    timeout = F.when(ends, F.col("timeout_ms").cast("long") * F.lit(1_000_000))
    changes = own & F.col("timeout_ms").isNotNull() & F.col("idle_sum_ns").isNull()
    late = F.greatest(F.try_subtract("idle_ns", timeout), F.try_subtract("t", "due_ns"))
    found = events.groupBy(file.alias("of_file"), *by).agg(
        F.count(F.lit(1)).alias("count_all"),
        *(getattr(F, how)(name).alias(f"{name}_{how}") for name, how in _ASKED),
        F.max(F.try_add("t", "wall_offset_ns")).alias("ended_max"),
        F.max(late).alias("overdue_max"),
        F.max(changes).alias("changes"),
        # Nobody asks about these two, but what is not read is not verified.
        *(F.count(name).alias(f"{name}_read") for name in ("nbytes", "peer")),
    )
    for row in found.toArrow().to_pylist():
        yield row.pop("of_file"), _with_texts(row)


def name_of(path: str) -> str:
    """The same name for a file, whether its URI has an empty host or none at all."""
    scheme, _, rest = path.partition(":")
    host, slash, below = (
        rest[2:].partition("/") if rest.startswith("//") else ("", "/", rest.lstrip("/"))
    )
    return f"{scheme}://{host}{slash}{below}"
