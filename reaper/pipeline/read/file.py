"""One journal file, looked through before it is believed.

The rule of this module: *a file is good as a whole, or refused with the reason*. A row that no rule could judge, a
value that cannot be true, a row of another writer: each refuses its file.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...journal.schema import COLUMNS, ENDS, KINDS, OWN, PREFIX, SCHEMA_VERSION, SEQUENCE_BITS, STALL, writer_of
from .manifest import sha256
from .runs import Facts

FUTURE_NS = 24 * 3600 * 10**9
"""How far ahead of this machine's clock a file may lie before it is not believed."""

MOST_NS = 1 << 60
"""36 years: no instant since a boot and no silence is as long, and sums and differences of less fit 64 bits."""

_NANOSECONDS = ("t", "idle_ns", "due_ns", "idle_sum_ns")
MOST_UNIX_NS = 1 << 62
"""The year 2116."""
_READ = (
    "t",
    "conn",
    "kind",
    "idle_ns",
    "timeout_ms",
    "due_ns",
    "listener",
    "reason",
    "n",
    "idle_sum_ns",
    "wall_offset_ns",
)


class Refused(Exception):
    """This file is put aside. The message is the reason."""


@dataclass(slots=True)
class _Seen:
    """What the rows of one file say together."""

    rows: int = 0
    own_rows: int = 0
    t_max: int = 0
    least_conn: int = 0
    last_conn: int = 0
    ended: int | None = None
    """Unix time in ns of its last row; None: no row knows it."""
    listeners: set[str] = field(default_factory=set)
    writers: set[int] = field(default_factory=set)


def check_file(path: Path, checksums: bool, max_age_ns: int | None, now: int) -> Facts:
    """What the file at *path* says of itself. *now*: Unix time, ns.

    Args:
        checksums: Verify every page.
        max_age_ns: The file is refused if it ended longer ago; None: at any age it is good.
    Raises:
        Refused: it cannot be used.
    """
    if path.stat().st_size == 0:
        raise Refused("zero-length: the file has no bytes")
    try:
        file = pq.ParquetFile(path, page_checksum_verification=checksums)
    except (pa.ArrowException, OSError) as error:
        raise Refused(f"truncated or not Parquet: {_line(error)}") from None
    with file:
        schema = file.schema_arrow
        metadata = {
            key.decode(errors="replace").removeprefix(PREFIX): value.decode(errors="replace")
            for key, value in (schema.metadata or {}).items()
            if key.decode(errors="replace").startswith(PREFIX)
        }
        version = _number(metadata, "schema_version", 1)
        if (mode := metadata.get("mode", "gaps")) not in ("gaps", "full"):
            raise Refused(f"wrong metadata: {PREFIX}mode is {mode[:80]!r}, expected gaps or full")
        if version > SCHEMA_VERSION:
            raise Refused(f"schema version {version} is newer than {SCHEMA_VERSION}, the newest this release reads")
        _check_columns(schema, version)
        run = metadata.get("run", "")
        if run and not (run.isascii() and all(digit in "0123456789abcdefABCDEF" for digit in run)):
            raise Refused(f"wrong metadata: {PREFIX}run is {run[:80]!r}, expected hexadecimal digits")
        try:
            seen = _look_through(file, checksums)
        except (pa.ArrowException, OSError) as error:
            raise Refused(f"corrupted: {_line(error)}") from None
    writer = _number(metadata, "writer", writer_of(seen.least_conn))
    first_conn = _number(metadata, "first_conn", -1) if "first_conn" in metadata else None
    if run and seen.writers != {writer}:
        others = ", ".join(map(str, sorted(seen.writers - {writer})[:5]))
        raise Refused(f"rows of another writer: its metadata says writer {writer}, it holds rows of writer {others}")
    if first_conn is not None and seen.least_conn < first_conn:
        raise Refused(
            f"rows of another run: its run begins with connection {first_conn}, it holds rows of {seen.least_conn}"
        )
    if seen.ended is not None:
        if seen.ended > now + FUTURE_NS:
            hours = (seen.ended - now) / 3600e9
            raise Refused(f"future: its last row is {hours:,.0f} h ahead of this machine's clock")
        if max_age_ns is not None and seen.ended < now - max_age_ns:
            hours = (now - seen.ended) / 3600e9
            raise Refused(f"late: it ended {hours:,.0f} h ago, beyond the greatest age accepted")
    return Facts(
        path=path,
        rows=seen.rows,
        run=run,
        writer=writer,
        serial=_number(metadata, "serial", 0),
        mode=mode,
        tick_ns=_number(metadata, "tick_ns", 0) or None,
        gap_threshold_ns=_number(metadata, "gap_threshold_ns", 0),
        first_conn=first_conn,
        t_max=seen.t_max,
        boot=metadata.get("boot", ""),
        anchors=_anchors(metadata),
        dropped_before=_number(metadata, "dropped_before", 0),
        cut=metadata.get("cut") == "1",
        listeners=sorted(seen.listeners),
        writers=sorted(seen.writers),
        digest="" if run else sha256(path),
        own_rows=seen.own_rows,
        last_conn=seen.last_conn,
    )


def _look_through(file: pq.ParquetFile, checksums: bool) -> _Seen:
    """Read *file* once, a row group at a time: every column where pages are to be verified, else those that count.

    Raises:
        Refused: its rows cannot be used.
    """
    seen = _Seen()
    wanted = [name for name in _READ if name in file.schema_arrow.names]
    for group in range(file.num_row_groups):
        table = file.read_row_group(group, columns=None if checksums else wanted, use_threads=False)
        if not table.num_rows:
            continue
        times, conns = table["t"], table["conn"]
        if times.null_count or conns.null_count or table["kind"].null_count:
            raise Refused("wrong schema: t, conn and kind must have a value in every row")
        least, most = pc.min_max(conns).as_py().values()
        if least < 0:
            raise Refused(f"impossible row: connection id {least} is negative")
        seen.own_rows += _check_rows(table)
        seen.least_conn = min(seen.least_conn, least) if seen.rows else least
        seen.last_conn = max(seen.last_conn, most)
        latest = pc.max(times).as_py()
        seen.t_max = max(seen.t_max, latest) if seen.rows else latest
        seen.rows += table.num_rows
        if "wall_offset_ns" in wanted and (wall := pc.max(pc.add(times, table["wall_offset_ns"])).as_py()) is not None:
            seen.ended = wall if seen.ended is None else max(seen.ended, wall)
        seen.listeners.update(name for name in pc.unique(table["listener"]).to_pylist() if name is not None)
        if least >> SEQUENCE_BITS == most >> SEQUENCE_BITS:
            seen.writers.add(least >> SEQUENCE_BITS)
        else:
            seen.writers.update(pc.unique(pc.shift_right(conns, SEQUENCE_BITS)).to_pylist())
    if not seen.rows:
        raise Refused("empty: the file has no rows")
    return seen


def _check_rows(table: pa.Table) -> int:
    """Make sure that every row can be judged; returns how many are the writer's own.

    Raises:
        Refused: one cannot, or is impossible.
    """
    for name in _NANOSECONDS:
        least, most = pc.min_max(table[name]).as_py().values()
        if least is not None and (least <= -MOST_NS or most >= MOST_NS):
            worst = least if least <= -MOST_NS else most
            raise Refused(f"impossible row: {name} is {worst}, more than 36 years")
    if "wall_offset_ns" in table.schema.names:
        least, most = pc.min_max(table["wall_offset_ns"]).as_py().values()
        if least is not None and not -MOST_UNIX_NS < least <= most < MOST_UNIX_NS:
            raise Refused(f"impossible row: wall_offset_ns is {least if least <= -MOST_UNIX_NS else most}")
    if (least := pc.min(table["timeout_ms"]).as_py()) is not None and least < 0:
        raise Refused(f"impossible row: timeout_ms is {least}")
    kinds = table["kind"].combine_chunks().dictionary_encode()
    kinds = kinds if isinstance(kinds, pa.DictionaryArray) else kinds.chunk(0)
    names = kinds.dictionary.to_pylist()
    if strange := sorted(set(names) - set(KINDS)):
        raise Refused(f"unknown kind {strange[0]!r}; known: {', '.join(KINDS)}")

    def of(*wanted: str) -> Any:
        return pc.is_in(
            kinds.indices, pa.array([i for i, name in enumerate(names) if name in wanted], kinds.indices.type)
        )

    for column, needing in (("idle_ns", ("activity", "averted", *ENDS)), ("n", ENDS), ("idle_sum_ns", ENDS)):
        for kind in needing if table[column].null_count else ():
            if pc.any(pc.and_(of(kind), pc.is_null(table[column]))).as_py():
                raise Refused(f"impossible row: {kind} without {column}")
    own = of(*OWN)
    count = pc.sum(own).as_py() or 0
    if count:
        mine = table.filter(own)
        stalls = pc.equal(mine["reason"].cast(pa.string()), STALL)
        if pc.any(pc.and_(stalls, pc.less(pc.fill_null(mine["idle_ns"], -1), 0))).as_py():
            raise Refused("impossible row: a stall without its length (idle_ns)")
    return int(count)


def _check_columns(schema: pa.Schema, version: int) -> None:
    for column in COLUMNS:
        if column.name not in schema.names:
            if column.since <= version and (column.required or column.since == 1):
                raise Refused(f"wrong schema: column {column.name} is missing")
            continue
        found = schema.field(column.name).type
        plain = found.value_type if pa.types.is_dictionary(found) else found
        good = pa.types.is_string(plain) if column.type == "dictionary" else str(plain) == column.type
        if not good:
            wanted = "string" if column.type == "dictionary" else column.type
            raise Refused(f"wrong schema: column {column.name} is {plain}, expected {wanted}")


def _number(metadata: dict[str, str], key: str, default: int) -> int:
    try:
        value = int(metadata.get(key, default))
    except ValueError:
        raise Refused(f"wrong schema: metadata {PREFIX}{key} is {metadata[key]!r}, expected an integer") from None
    if value != default and not 0 <= value < 1 << 63:
        raise Refused(f"wrong metadata: {PREFIX}{key} is {value}, expected 0 or more, within 64 bits")
    if key.endswith("_ns") and value >= MOST_NS:
        raise Refused(f"wrong metadata: {PREFIX}{key} is {value}, more than 36 years")
    return value


def _anchors(metadata: dict[str, str]) -> list[list[int]]:
    try:
        found = [[int(value) for value in anchor] for anchor in json.loads(metadata.get("anchors", "[]"))]
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise Refused(f"wrong schema: metadata {PREFIX}anchors is no list of instants") from None
    if any(len(anchor) not in (2, 3) or any(abs(value) >= MOST_UNIX_NS for value in anchor) for anchor in found):
        raise Refused(f"wrong metadata: {PREFIX}anchors has an anchor that is no pair or triple of instants")
    return found


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
