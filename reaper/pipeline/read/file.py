"""One journal file: what its footer says, and what its rows say together, before it is believed.

The rule of this module: *a file is good as a whole, or refused with the reason*. A row that no rule could judge, a
value that cannot be true, a row of another writer: each refuses its file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import one_line
from ...journal.layout import bounds
from ...journal.schema import COLUMNS, PREFIX, SCHEMA_VERSION, writer_of
from ..hadoop import Remote
from ..places import Place
from .footer import fingerprint
from .row_checks import MOST_NS, MOST_UNIX_NS, Refused, Tally, count, judge
from .runs import Facts

FUTURE_NS = 24 * 3600 * 10**9
"""How far ahead of this machine's clock a file may lie before it is not believed."""


@dataclass(slots=True)
class Shape:
    """What the footer of one file says: enough to know whether its rows are worth looking at."""

    path: Place
    size: int
    """Bytes."""
    rows: int
    run: str
    mode: str
    metadata: dict[str, str]
    anchors: list[list[int]]
    bounds: tuple[int, int] | None
    """Between which instants its rows lie, Unix ns, both inclusive; None: it does not say."""

    def number(self, key: str, default: int) -> int:
        """The metadata's *key* as an integer; *default* where it is missing.

        Raises:
            Refused: it is none, or out of range.
        """
        try:
            value = int(self.metadata.get(key, default))
        except ValueError:
            raise Refused(
                f"wrong schema: metadata {PREFIX}{key} is {self.metadata[key]!r}, expected an integer"
            ) from None
        if value != default and not 0 <= value < 1 << 63:
            raise Refused(f"wrong metadata: {PREFIX}{key} is {value}, expected 0 or more, within 64 bits")
        if key.endswith("_ns") and value >= MOST_NS:
            raise Refused(f"wrong metadata: {PREFIX}{key} is {value}, more than 36 years")
        return value


def shape_of(path: Place, size: int) -> Shape:
    """The shape of the file at *path*, of *size* bytes. Reads its footer alone.

    Raises:
        Refused: it cannot be used.
    """
    with _opened(path, size) as file:
        schema = file.schema_arrow
        metadata = {
            key.decode(errors="replace").removeprefix(PREFIX): value.decode(errors="replace")
            for key, value in (schema.metadata or {}).items()
            if key.decode(errors="replace").startswith(PREFIX)
        }
        shape = Shape(
            path, size, file.metadata.num_rows, metadata.get("run", ""), "gaps", metadata, [], bounds(file.metadata)
        )
    version = shape.number("schema_version", 1)
    shape.mode = metadata.get("mode", "gaps")
    if shape.mode not in ("gaps", "full"):
        raise Refused(f"wrong metadata: {PREFIX}mode is {shape.mode[:80]!r}, expected gaps or full")
    if version > SCHEMA_VERSION:
        raise Refused(f"schema version {version} is newer than {SCHEMA_VERSION}, the newest this release reads")
    _check_columns(schema)
    run = shape.run
    if run and not (run.isascii() and all(digit in "0123456789abcdefABCDEF" for digit in run)):
        raise Refused(f"wrong metadata: {PREFIX}run is {run[:80]!r}, expected hexadecimal digits")
    if not shape.rows:
        raise Refused("empty: the file has no rows")
    shape.anchors = _anchors(metadata)
    for key in (
        "writer",
        "serial",
        "tick_ns",
        "gap_threshold_ns",
        "first_conn",
        "dropped_before",
        "dropped",
        "dropped_earlier",
    ):
        shape.number(key, 0)
    return shape


def count_here(shape: Shape, checksums: bool) -> list[Tally]:
    """The rows of the file of *shape*, counted in this process. *checksums*: verify every page.

    Raises:
        Refused: they cannot be read.
    """
    with _opened(shape.path, shape.size, checksums) as file:
        try:
            return count(file, checksums)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise Refused(f"corrupted: {one_line(error)}") from None


def facts_of(shape: Shape, tallies: Sequence[Tally], max_age_ns: int | None, now: int) -> Facts:
    """What the file of *shape* says of itself, footer and rows together.

    Args:
        tallies: Its rows, counted.
        max_age_ns: The file is refused if it ended longer ago; None: at any age it is good.
        now: Unix time, ns.
    Raises:
        Refused: it cannot be used.
    """
    seen = judge(tallies, shape.rows)
    run, metadata = shape.run, shape.metadata
    writer = shape.number("writer", writer_of(seen.least_conn))
    first_conn = shape.number("first_conn", -1) if "first_conn" in metadata else None
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
        path=shape.path,
        rows=seen.rows,
        run=run,
        writer=writer,
        serial=shape.number("serial", 0),
        mode=shape.mode,
        tick_ns=shape.number("tick_ns", 0) or None,
        gap_threshold_ns=shape.number("gap_threshold_ns", 0),
        first_conn=first_conn,
        t_max=seen.t_max,
        boot=metadata.get("boot", ""),
        anchors=shape.anchors,
        dropped=max(shape.number("dropped_before", 0), shape.number("dropped", 0)),
        cut=metadata.get("cut") == "1",
        listeners=sorted(seen.listeners),
        writers=sorted(seen.writers),
        digest="" if run else _digest(shape, tallies),
        own=seen.own,
        stalls=seen.stalls,
        drained=seen.drained,
        averted=seen.averted,
        overdue_ns=seen.overdue_ns,
        last_conn=seen.last_conn,
        dropped_earlier=shape.number("dropped_earlier", 0),
        server=metadata.get("server", ""),
        began=None if shape.bounds is None else shape.bounds[0],
        ended=None if shape.bounds is None else shape.bounds[1],
    )


@contextmanager
def _opened(path: Place, size: int, checksums: bool = False) -> Iterator[pq.ParquetFile]:
    if size == 0:
        raise Refused("zero-length: the file has no bytes")
    with ExitStack() as stack:
        try:
            source = stack.enter_context(path.open()) if isinstance(path, Remote) else path
            file = stack.enter_context(pq.ParquetFile(source, page_checksum_verification=checksums))
        except FileNotFoundError:
            raise  # it was there a moment ago
        except (pa.ArrowException, OSError, ValueError) as error:
            raise Refused(f"truncated or not Parquet: {one_line(error)}") from None
        yield file


def _check_columns(schema: pa.Schema) -> None:
    for column in COLUMNS:
        if column.name not in schema.names:
            raise Refused(f"wrong schema: column {column.name} is missing")
        found = schema.field(column.name).type
        plain = found.value_type if pa.types.is_dictionary(found) else found
        good = pa.types.is_string(plain) if column.type == "dictionary" else str(plain) == column.type
        if not good:
            wanted = "string" if column.type == "dictionary" else column.type
            raise Refused(f"wrong schema: column {column.name} is {plain}, expected {wanted}")


def _anchors(metadata: dict[str, str]) -> list[list[int]]:
    try:
        found = [[int(value) for value in anchor] for anchor in json.loads(metadata.get("anchors", "[]"))]
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise Refused(f"wrong schema: metadata {PREFIX}anchors is no list of instants") from None
    if any(len(anchor) not in (2, 3) or any(abs(value) >= MOST_UNIX_NS for value in anchor) for anchor in found):
        raise Refused(f"wrong metadata: {PREFIX}anchors has an anchor that is no pair or triple of instants")
    return found


def _digest(shape: Shape, tallies: Sequence[Tally]) -> str:
    counted = sorted(repr(tally) for tally in tallies)
    return hashlib.sha256(f"{fingerprint(shape.path, shape.size)} {counted}".encode()).hexdigest()
