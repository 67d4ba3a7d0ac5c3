"""One journal file: what its footer says, and what its rows say together, before it is believed.

The rule of this module: *a file is good as a whole, or refused with the reason*. A row that no rule could judge, a
value that cannot be true, a row of another writer: each refuses its file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import one_line
from ...journal.layout import bounds
from ...journal.schema import COLUMNS, PREFIX, SCHEMA_VERSION, SEQUENCE_BITS
from ..places import Place, Remote
from .row_checks import MOST_NS, MOST_UNIX_NS, Count, Refused, count, judge
from .runs import TICK_NS, Facts

FUTURE_NS = 24 * 3600 * 10**9
"""How far ahead of this machine's clock a file may lie before it is not believed."""
PAST_NS = 3650 * 24 * 3600 * 10**9
"""And how far behind."""


def footer_of(path: Place, size: int) -> Facts:
    """What the file at *path*, of *size* bytes, says without its rows. Reads its footer alone.

    Raises:
        Refused: it cannot be used.
    """
    with _opened(path, size) as file:
        schema, rows, when = file.schema_arrow, file.metadata.num_rows, bounds(file.metadata)
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
        raise Refused(f"schema version {version} is newer than {SCHEMA_VERSION}, the newest this release reads")
    _check_columns(schema)
    writer = _number(metadata, "writer", -1)
    if not run or writer < 0:
        raise Refused(f"wrong metadata: {PREFIX}run and {PREFIX}writer must say whose rows these are")
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
        boot=metadata.get("boot", ""),
        anchors=_anchors(metadata),
        dropped=max(_number(metadata, "dropped_before", 0), _number(metadata, "dropped", 0)),
        dropped_earlier=_number(metadata, "dropped_earlier", 0),
        server=metadata.get("server", ""),
        bounds=when,
    )


def count_here(facts: Facts) -> tuple[Facts, list[Count]]:
    """*facts*, and the rows of their file, counted in this process. Every page is compared with its checksum.

    Raises:
        Refused: they cannot be read.
    """
    with _opened(facts.path, facts.size) as file:
        try:
            return facts, count(file)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise Refused(f"corrupted: {one_line(error)}") from None


def believe(facts: Facts, counts: Iterable[Count], now: int) -> None:
    """Complete *facts* with what *counts* of its rows say, see `judge`. *now*: Unix time, ns.

    Raises:
        Refused: it cannot be used.
    """
    ended = judge(facts, counts)
    if ended is not None and ended > now + FUTURE_NS:
        raise Refused(f"future: its last row is {(ended - now) / 3600e9:,.0f} h ahead of this machine's clock")
    if ended is not None and ended < now - PAST_NS:
        raise Refused(f"late: it ended {(now - ended) / 3600e9:,.0f} h ago: its clock was not set")


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
        yield file


def _number(metadata: dict[str, str], key: str, default: int) -> int:
    """The metadata's *key* as an integer; *default* where it is missing.

    Raises:
        Refused: it is none, or out of range.
    """
    try:
        value = int(metadata.get(key, default))
    except ValueError:
        raise Refused(f"wrong schema: metadata {PREFIX}{key} is {metadata[key]!r}, expected an integer") from None
    if value != default and not 0 <= value < 1 << 63:
        raise Refused(f"wrong metadata: {PREFIX}{key} is {value}, expected 0 or more, within 64 bits")
    if key.endswith("_ns") and value >= MOST_NS:
        raise Refused(f"wrong metadata: {PREFIX}{key} is {value}, more than 36 years")
    return value


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
