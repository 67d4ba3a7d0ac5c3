"""What the rows of one file say together, and whether each can be judged.

The rule of this module: *rules are asked of counts, never of rows*. A file is counted by kind, listener and writer,
where it lies: by Spark's executors (`look`), or in this process where it is small, or read here anyway. The few rows in
which a writer reports a stall or its end are groups of their own, so that no question has to look for them again. The
rules are here once, whoever counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...journal.schema import (
    ACTIVITY,
    AVERTED,
    COLUMNS,
    CONFIG,
    DRAIN,
    ENDS,
    KINDS,
    OWN,
    SEQUENCE_BITS,
    STALL,
)

MOST_NS = 1 << 60
"""36 years: no instant since a boot and no silence is as long, and sums and differences of less fit 64 bits."""
MOST_UNIX_NS = 1 << 62
"""The year 2116."""

COUNTED = ("t", "conn", "idle_ns", "timeout_ms", "due_ns", "n", "idle_sum_ns", "wall_offset_ns")
"""Columns of which values, the least and the greatest are counted."""
BY = ("kind", "listener", "writer")
"""What the rows of a file are counted by."""
MARKS = ("mark_conn", "mark_t", "mark_idle")
"""And by these, which are null but in a drain row (mark_conn) and in a stall's (conn, t and idle_ns)."""
_NANOSECONDS = ("t", "idle_ns", "due_ns", "idle_sum_ns")
_SILENT = (KINDS[ACTIVITY], KINDS[AVERTED], *ENDS)
"""Kinds of rows that end a silence."""
_NEEDED = (("idle_ns", _SILENT), ("n", ENDS), ("idle_sum_ns", ENDS))


class Refused(Exception):
    """This file is put aside. The message is the reason."""


@dataclass(frozen=True, slots=True)
class Tally:
    """The rows of one file that are of one kind, listener and writer."""

    kind: str | None
    listener: str | None
    writer: int | None
    rows: int
    values: dict[str, tuple[int, int | None, int | None]]
    """Of each column of `COUNTED`: how many are not null, the least and the greatest."""
    ended: int | None
    """Unix time in ns of the latest row; None: no row knows it."""
    overdue_ns: int | None
    """How long the worst of them outlasted its timeout, or came after it was due; None: none has either."""
    marks: tuple[tuple[int, int | None, int | None], ...]
    """(conn, t, idle_ns) of each stall, (conn, None, None) of each drain; each once."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Tally:
        """From a row of `added_up`."""
        marks = {mark for mark in zip(*(row[name] for name in MARKS), strict=True) if mark[0] is not None}
        return cls(
            kind=row["kind"],
            listener=row["listener"],
            writer=row["writer"],
            rows=row["count_all"],
            values={name: (row[f"{name}_count"], row[f"{name}_min"], row[f"{name}_max"]) for name in COUNTED},
            ended=row["ended_max"],
            overdue_ns=row["overdue_max"],
            marks=tuple(sorted(marks, key=lambda mark: [number or 0 for number in mark])),
        )


@dataclass(slots=True)
class Seen:
    """What the rows of one file say together."""

    rows: int = 0
    own: list[list[int]] = field(default_factory=list)
    """See `Facts.own`; and so on."""
    stalls: list[list[int]] = field(default_factory=list)
    drained: list[int] = field(default_factory=list)
    averted: int = 0
    overdue_ns: int | None = None
    t_max: int = 0
    least_conn: int = 0
    last_conn: int = 0
    ended: int | None = None
    """Unix time in ns of its last row; None: no row knows it."""
    listeners: set[str] = field(default_factory=set)
    writers: set[int] = field(default_factory=set)


def judge(tallies: Iterable[Tally], rows: int) -> Seen:
    """All *tallies* of one file together. *rows*: how many its footer says that it has.

    Raises:
        Refused: a row cannot be judged, or is impossible, or cannot be read.
    """
    found = list(tallies)
    if (read := sum(tally.rows for tally in found)) != rows:
        raise Refused(f"corrupted: {read} of {rows} rows can be read, the others fail their checksum or decoding")
    if not rows:
        raise Refused("empty: the file has no rows")
    if any(t.kind is None or t.values["t"][0] < t.rows or t.values["conn"][0] < t.rows for t in found):
        raise Refused("wrong schema: t, conn and kind must have a value in every row")
    ranges = {name: _range(found, name) for name in COUNTED}
    least_conn, last_conn = ranges["conn"] or (0, 0)
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
    kinds = {tally.kind for tally in found if tally.kind is not None}
    if strange := sorted(kinds.difference(KINDS)):
        raise Refused(f"unknown kind {strange[0]!r}; known: {', '.join(KINDS)}")
    for column, needing in _NEEDED:
        for kind in needing:
            if any(tally.values[column][0] < tally.rows for tally in found if tally.kind == kind):
                raise Refused(f"impossible row: {kind} without {column}")
    stalls = {(conn, t, idle) for tally in found for conn, t, idle in tally.marks if t is not None}
    measured = sorted((conn, t, idle) for conn, t, idle in stalls if idle is not None and idle >= 0)
    if len(measured) < len(stalls):
        raise Refused("impossible row: a stall without its length (idle_ns)")
    return Seen(
        rows=rows,
        own=_own(found),
        stalls=[list(stall) for stall in measured],
        drained=sorted({conn for tally in found for conn, t, _ in tally.marks if t is None}),
        averted=sum(tally.rows for tally in found if tally.kind == KINDS[AVERTED]),
        overdue_ns=max((t.overdue_ns for t in found if t.kind in _SILENT and t.overdue_ns is not None), default=None),
        t_max=(ranges["t"] or (0, 0))[1],
        least_conn=least_conn,
        last_conn=last_conn,
        ended=max((tally.ended for tally in found if tally.ended is not None), default=None),
        listeners={tally.listener for tally in found if tally.listener is not None},
        writers={tally.writer for tally in found if tally.writer is not None},
    )


def _own(found: list[Tally]) -> list[list[int]]:
    own: dict[int, list[int]] = {}
    for tally in found:
        if tally.kind in OWN and tally.writer is not None and (least := tally.values["conn"][1]) is not None:
            before, rows = own.get(tally.writer, (least, 0))
            own[tally.writer] = [min(before, least), rows + tally.rows]
    return [own[writer] for writer in sorted(own)]


def added_up(counts: pa.Table, *by: str) -> list[dict[str, Any]]:
    """*counts* of groups of rows, per file and kind, listener and writer: rows for `Tally.of`. *by*: names the file."""
    keys = [*by, *BY]
    how = {"all": "sum", "count": "sum", "min": "min", "max": "max"}
    asked = [(name, how[end]) for name in counts.column_names if (end := name.rpartition("_")[2]) in how]
    added = counts.group_by(keys, use_threads=False).aggregate([*asked, *((name, "list") for name in MARKS)])
    named = [name if name in keys else name.rpartition("_")[0] for name in added.column_names]
    rows: list[dict[str, Any]] = added.rename_columns(named).to_pylist()
    return rows


def _range(found: list[Tally], name: str) -> tuple[int, int] | None:
    least = [low for tally in found if (low := tally.values[name][1]) is not None]
    most = [high for tally in found if (high := tally.values[name][2]) is not None]
    return (min(least), max(most)) if least else None


# ---- counted in this process -----------------------------------------------------------------------------------------


def count(file: pq.ParquetFile, checksums: bool) -> list[Tally]:
    """Read *file* here, once, a row group at a time: every column where *checksums* are verified.

    Raises:
        pyarrow.ArrowException, OSError: it cannot be read.
    """
    names = [column.name for column in COLUMNS if column.name in file.schema_arrow.names]
    if not checksums:
        names = [name for name in names if name not in ("nbytes", "peer")]
    found = []
    for group in range(file.num_row_groups):
        table = file.read_row_group(group, columns=names, use_threads=False)
        if table.num_rows:
            found.append(_count(table))
    return [Tally.of(row) for row in added_up(pa.concat_tables(found))] if found else []


def _count(table: pa.Table) -> pa.Table:
    def column(name: str) -> pa.ChunkedArray:
        return table[name] if name in table.schema.names else pa.chunked_array([pa.nulls(table.num_rows, pa.int64())])

    kind, reason = table["kind"].cast(pa.string()), table["reason"].cast(pa.string())
    stall = pc.and_(pc.equal(kind, KINDS[CONFIG]), pc.equal(pc.fill_null(reason, ""), STALL))
    marked = pc.or_(stall, pc.equal(kind, KINDS[DRAIN]))
    # What does not fit 64 bits wraps: a value in it is beyond what `judge` lets pass.
    timeout = pc.multiply(table["timeout_ms"].cast(pa.int64()), 1_000_000)
    over = pc.if_else(pc.greater(timeout, 0), pc.subtract(table["idle_ns"], timeout), None)
    counted = pa.table(
        {
            "kind": kind,
            "listener": table["listener"].cast(pa.string()),
            "writer": pc.shift_right(table["conn"], SEQUENCE_BITS),
            **{name: column(name) for name in COUNTED},
            "ended": pc.add(table["t"], column("wall_offset_ns")),
            "overdue": pc.max_element_wise(over, pc.subtract(table["t"], table["due_ns"])),
            "mark_conn": pc.if_else(marked, table["conn"], None),
            "mark_t": pc.if_else(stall, table["t"], None),
            "mark_idle": pc.if_else(stall, table["idle_ns"], None),
        }
    )
    asked = [(name, how) for name in COUNTED for how in ("count", "min", "max")]
    return counted.group_by([*BY, *MARKS], use_threads=False).aggregate(
        [*asked, ("ended", "max"), ("overdue", "max"), ([], "count_all")]
    )
