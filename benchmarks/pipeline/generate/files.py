"""Columns of generated rows to Parquet files like a journal's own: names, metadata, anchors, rotation.

Nothing here asks the machine for a time, an identity or a random number: same arguments, same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from reaper.journal.schema import ACTIVITY, CONFIG, KINDS, OPEN, REAP, SCHEMA_VERSION, arrow_schema

from .habits import DEADLINE, LISTENER_OF, LISTENERS, OWN, TIMEOUT_MS, Codes, Ints

ANCHOR_NS = 60 * 10**9
MOST_ANCHORS = 200
"""Anchors kept a file. A journal that rotates every five minutes has five; a file of days would have thousands."""

ROWS_PER_FILE = 800_000
"""About 64 MiB of stream, where a journal rotates."""

ROW_GROUP_ROWS = 1 << 20

REASONS = ("", "idle", "headers", "eof", "reset", "restart", "drain", "done", "stall", "settings tick=1s")
NONE, IDLE, HEADERS, EOF, RESET, RESTART, DRAINED, DONE, STALLED, SETTINGS = range(len(REASONS))


class Columns:
    """Columns of one length: the base of small tables of arrays."""

    __slots__: tuple[str, ...] = ()

    def take(self, which: Any) -> Self:
        """Those rows, by index or mask; a copy."""
        return type(self)(*(getattr(self, name)[which] for name in self.__slots__))

    @classmethod
    def concat(cls, parts: list[Self]) -> Self:
        """All rows of *parts*, in their order."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__slots__))


@dataclass(slots=True)
class Rows(Columns):
    """Rows to be written. `n` and `idle_sum` are running figures; they are written on end rows alone."""

    t: Ints
    conn: Ints
    habit: Codes
    kind: NDArray[np.int8]
    idle: Ints
    n: Ints
    idle_sum: Ints
    due: Ints
    reason: Codes

    def __len__(self) -> int:
        return len(self.t)

    @classmethod
    def of(cls, count: int, **columns: Any) -> Rows:
        """*count* rows; a column may be one value, and is 0 if not given."""
        made: list[Any] = []
        for name, type_ in zip(cls.__slots__, "qqBbqqqqB", strict=True):
            value = columns.get(name, 0)
            several = isinstance(value, (list, np.ndarray))
            made.append(np.asarray(value, type_) if several else np.full(count, value, type_))
        return cls(*made)


def in_time_order(found: Rows) -> Rows:
    """Sorted by t; rows of one instant keep their order."""
    count = len(found)
    if not count:
        return found
    first = int(found.t.min())
    index_bits = count.bit_length()
    if (int(found.t.max()) - first).bit_length() + index_bits > 63:
        return found.take(np.argsort(found.t, kind="stable"))
    # The index in the low bits makes one fast, unstable sort of integers a stable one.
    keys = (found.t - first) << index_bits | np.arange(count)
    keys.sort()
    return found.take(keys & ((1 << index_bits) - 1))


@dataclass(slots=True)
class Wall:
    """The wall clock of one machine next to its monotonic one: it drifts, and is measured once per minute."""

    start_ns: int
    """First anchor, on the monotonic clock."""
    offsets: Ints
    """Unix time less monotonic at each anchor."""

    def index(self, t: Any) -> Any:
        """The anchor in force at *t*."""
        return np.clip((t - self.start_ns) // ANCHOR_NS, 0, len(self.offsets) - 1)

    def anchors(self, since: int, to: int) -> list[list[int]]:
        """Anchors in force from *since* to *to*, thinned to `MOST_ANCHORS`."""
        first, last = int(self.index(since)), int(self.index(to))
        chosen = np.unique(np.linspace(first, last, min(last - first + 1, MOST_ANCHORS)).astype(np.int64))
        at = self.start_ns + chosen * ANCHOR_NS
        return [[int(t), int(t + offset), int(t)] for t, offset in zip(at, self.offsets[chosen], strict=True)]


def _dictionary(codes: NDArray[Any], values: tuple[str, ...], mask: NDArray[np.bool_] | None = None) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int16), mask=mask), pa.array(values))


_SIZES = np.random.Generator(np.random.PCG64(0)).lognormal(5.0, 1.2, 1 << 12).clip(1, 60_000).astype(np.int32)
"""Bytes of an activity, to draw from."""


def as_table(found: Rows, wall: Wall, rng: np.random.Generator, schema: pa.Schema) -> pa.Table:
    """The columns of the journal."""
    kind, own = found.kind, found.habit == OWN
    is_open, is_reap = kind == OPEN, kind == REAP
    other = kind != ACTIVITY
    no_end = ~is_reap & (kind < 4) | own  # close_peer and close_app are 4 and 5
    fixed = is_reap & (found.habit == DEADLINE)
    stall = own & (kind == CONFIG) & (found.idle > 0)
    conn = found.conn.view(np.uint64)
    peer = conn * np.uint64(0x9E3779B97F4A7C15)
    peer ^= peer >> np.uint64(29)
    peer *= np.uint64(0xBF58476D1CE4E5B9)
    sizes = _SIZES[rng.integers(0, len(_SIZES), len(found), np.uint16)]
    arrays = [
        pa.array(found.t),
        pa.array(found.conn),
        _dictionary(kind, KINDS),
        pa.array(found.idle, mask=is_open | own & ~stall),
        pa.array(sizes, mask=other),
        pa.array(TIMEOUT_MS[found.habit], mask=own | fixed),
        pa.array(found.due, mask=~is_reap),
        _dictionary(LISTENER_OF[found.habit], tuple(name for name, _ in LISTENERS), mask=own),
        _dictionary(found.reason, REASONS, mask=found.reason == NONE),
        pa.array(found.n, mask=no_end),
        pa.array(found.idle_sum, mask=no_end),
        pa.array((peer >> np.uint64(1)).view(np.int64), mask=~is_open),
        pa.array(wall.offsets[wall.index(found.t)]),
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


@dataclass(slots=True)
class Sink:
    """The files of one run of one writer."""

    directory: Path
    wall: Wall
    metadata: dict[str, str]
    rows_per_file: int = ROWS_PER_FILE
    report: Callable[[int], None] = lambda _: None
    """Called with the rows of each file written."""
    files: int = 0
    rows: int = 0
    bytes: int = 0
    _waiting: list[pa.Table] = field(default_factory=list)
    _held: int = 0

    def add(self, table: pa.Table) -> None:
        """Append rows, which come in time order."""
        self._waiting.append(table)
        self._held += len(table)
        while self._held >= self.rows_per_file:
            self._write(self.rows_per_file)

    def close(self) -> None:
        """Write what is left."""
        if self._held:
            self._write(self._held)

    def _write(self, count: int) -> None:
        whole = pa.concat_tables(self._waiting)
        part, rest = whole.slice(0, count), whole.slice(count)
        self._waiting, self._held = ([rest] if len(rest) else []), len(rest)
        self.files += 1
        since, to = part["t"][0].as_py(), part["t"][-1].as_py()
        anchors = self.wall.anchors(since, to)
        metadata = {
            "schema_version": str(SCHEMA_VERSION),
            **self.metadata,
            "serial": str(self.files),
            "dropped_before": "0",
            "anchors": json.dumps(anchors),
            "cut": "0",
        }
        unix_s = (since + int(self.wall.offsets[self.wall.index(since)])) // 10**9
        stem = f"reaper-{unix_s:010d}-w{int(self.metadata['writer']):07d}-{self.metadata['run']}-{self.files:06d}"
        temporary, final = self.directory / f".{stem}.parquet.tmp", self.directory / f"{stem}.parquet"
        part = part.combine_chunks().replace_schema_metadata(arrow_schema(metadata).metadata)
        pq.write_table(part, temporary, compression="zstd", row_group_size=ROW_GROUP_ROWS, write_page_checksum=True)
        self.bytes += temporary.stat().st_size
        self.rows += count
        temporary.replace(final)
        self.report(count)
