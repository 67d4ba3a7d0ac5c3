"""Every file is checked before Spark sees it: it is taken whole, or put aside with a reason and counted.

Spark's own choices are to fail on a bad file without naming what to do, or (`ignoreCorruptFiles`) to drop it silently.
An audit can afford neither.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...journal.schema import COLUMNS, PREFIX, SCHEMA_VERSION, SEQUENCE_BITS, writer_of
from .manifest import BUCKETS, Table, Unsound, is_table, open_table, sha256
from .runs import Facts, Run, runs_of

FUTURE_NS = 24 * 3600 * 10**9
"""How far ahead of this machine's clock a file may lie before it is not believed."""


class Refused(Exception):
    """This file is put aside. The message is the reason."""


@dataclass(slots=True)
class Inputs:
    """The outcome of the check of some directories."""

    files: list[Facts] = field(default_factory=list)
    quarantined: list[dict[str, str]] = field(default_factory=list)
    """path, reason; in order of path."""
    growing: int = 0
    """Streams that are no Parquet yet: their writer lives, or crashed and nothing has started there since."""
    runs: list[Run] = field(default_factory=list)
    dropped_rows: int = 0
    """Rows that writers say they dropped."""
    tables: list[Table] = field(default_factory=list)


def check(
    directories: Iterable[Path],
    *,
    checksums: bool = True,
    max_age_ns: int | None = None,
    now_ns: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Inputs:
    """Check every `*.parquet` below *directories* whose name is not hidden.

    A directory that holds the manifest of a compacted table is that table: its files count as when they were compacted.

    Args:
        directories: Searched recursively; a file may be named too.
        checksums: Verify every page. Reads the files once: some 100 MB/s a core.
        max_age_ns: Files that ended longer ago are put aside as late. None: none is. A compacted file is not asked
            again.
        now_ns: Unix time; None: this machine's.
        progress: Told what is being done.
    Raises:
        FileNotFoundError: a directory is missing.
        Unsound: a compacted table is not what its manifest says.
    Cost: memory: a row group (a million rows) per core.
    """
    found = Inputs()
    paths: list[Path] = []
    for directory in directories:
        if not directory.exists():
            raise FileNotFoundError(f"no such directory: {directory}")
        if is_table(directory):
            progress(f"checking the compacted table {directory}")
            table, told = open_table(directory, checksums=checksums)
            found.tables.append(table)
            found.quarantined += told["quarantined"]
            found.growing += told["growing"]
            for facts in told["facts"]:
                found.files.append(Facts(**{**facts, "path": Path(facts["path"]), "within": directory}))
        else:
            paths += [directory] if directory.is_file() else sorted(_visible(directory, found))
    now = time.time_ns() if now_ns is None else now_ns

    def one(path: Path) -> Facts | dict[str, str]:
        try:
            return _check_file(path, checksums, max_age_ns, now)
        except Refused as refused:
            return {"path": str(path), "reason": str(refused)}

    progress(f"checking {len(paths)} files")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        outcomes = list(pool.map(one, paths))
    compacted, found.files = found.files, []
    seen: dict[object, Facts] = {}
    for outcome in [*compacted, *outcomes]:
        if isinstance(outcome, dict):
            found.quarantined.append(outcome)
            continue
        first = seen.setdefault((outcome.run, outcome.serial) if outcome.run else outcome.digest, outcome)
        if first is outcome:
            found.files.append(outcome)
        elif outcome.within is not None:
            raise Unsound(f"{first.within} and {outcome.within} both hold the rows of {outcome.path}: give one of them")
        else:
            reason = f"duplicated: the same file as {first.path}"
            found.quarantined.append({"path": str(outcome.path), "reason": reason})
    found.runs = runs_of(found.files)
    latest: dict[str, int] = {}
    for facts in found.files:
        latest[facts.run] = max(latest.get(facts.run, 0), facts.dropped_before)
    found.dropped_rows = sum(latest.values())
    return found


def _visible(directory: Path, found: Inputs) -> Iterator[Path]:
    for path in directory.rglob("*"):
        parts = path.relative_to(directory).parts
        if any(part.startswith((".", "_")) for part in parts):
            found.growing += path.suffix == ".arrows"
        elif BUCKETS in parts:
            raise Unsound(f"{path.parent} is part of a compacted table: name that itself, not a directory above it")
        elif path.suffix == ".parquet" and path.is_file():
            yield path


def _check_file(path: Path, checksums: bool, max_age_ns: int | None, now: int) -> Facts:
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
        if version > SCHEMA_VERSION:
            raise Refused(f"schema version {version} is newer than {SCHEMA_VERSION}, the newest this release reads")
        _check_columns(schema, version)
        try:
            seen = _look_through(file, checksums, named=bool(metadata.get("run")))
        except (pa.ArrowException, OSError) as error:
            raise Refused(f"corrupted: {_line(error)}") from None
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
        run=metadata.get("run", ""),
        writer=_number(metadata, "writer", writer_of(seen.least_conn)),
        serial=_number(metadata, "serial", 0),
        mode=metadata.get("mode", "gaps"),
        tick_ns=_number(metadata, "tick_ns", 0) or None,
        gap_threshold_ns=_number(metadata, "gap_threshold_ns", 0),
        first_conn=_number(metadata, "first_conn", -1) if "first_conn" in metadata else None,
        t_max=seen.t_max,
        boot=metadata.get("boot", ""),
        anchors=_anchors(metadata),
        dropped_before=_number(metadata, "dropped_before", 0),
        cut=metadata.get("cut") == "1",
        listeners=sorted(seen.listeners),
        writers=sorted(seen.writers),
        digest="" if metadata.get("run") else sha256(path),
    )


@dataclass(slots=True)
class _Seen:
    """What the rows of one file say together."""

    rows: int = 0
    t_max: int = 0
    least_conn: int = 0
    ended: int | None = None
    """Unix time in ns of its last row; None: no row knows it."""
    listeners: set[str] = field(default_factory=set)
    writers: set[int] = field(default_factory=set)


def _look_through(file: pq.ParquetFile, checksums: bool, named: bool) -> _Seen:
    """Read *file* once, a row group at a time: every column where pages are to be verified, else those that tell.

    Raises:
        Refused: its rows cannot be used.
    """
    seen = _Seen()
    wanted = [name for name in ("t", "conn", "wall_offset_ns", "listener") if name in file.schema_arrow.names]
    for group in range(file.num_row_groups):
        table = file.read_row_group(group, columns=None if checksums else wanted, use_threads=False)
        if not table.num_rows:
            continue
        times, conns = table["t"], table["conn"]
        if times.null_count or conns.null_count:
            raise Refused("wrong schema: t and conn must have a value in every row")
        least, latest = pc.min(conns).as_py(), pc.max(times).as_py()
        seen.least_conn = min(seen.least_conn, least) if seen.rows else least
        seen.t_max = max(seen.t_max, latest) if seen.rows else latest
        seen.rows += table.num_rows
        if "wall_offset_ns" in wanted and (wall := pc.max(pc.add(times, table["wall_offset_ns"])).as_py()) is not None:
            seen.ended = wall if seen.ended is None else max(seen.ended, wall)
        seen.listeners.update(name for name in pc.unique(table["listener"]).to_pylist() if name is not None)
        if not named:
            seen.writers.update(pc.unique(pc.shift_right(conns, SEQUENCE_BITS)).to_pylist())
    if not seen.rows:
        raise Refused("empty: the file has no rows")
    return seen


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
        return int(metadata.get(key, default))
    except ValueError:
        raise Refused(f"wrong schema: metadata {PREFIX}{key} is {metadata[key]!r}, expected an integer") from None


def _anchors(metadata: dict[str, str]) -> list[list[int]]:
    try:
        return [[int(value) for value in anchor] for anchor in json.loads(metadata.get("anchors", "[]"))]
    except (ValueError, TypeError):
        raise Refused(f"wrong schema: metadata {PREFIX}anchors is no list of instants") from None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def spark_paths(files: Iterable[Facts]) -> list[str]:
    """The paths as Spark wants them: absolute, what it would take for a pattern escaped."""
    special = str.maketrans({char: f"\\{char}" for char in "\\{}[]*?"})
    return [f"{facts.path.resolve()}".translate(special) for facts in files]
