"""One file of a journal as the feed has it: on the wall clock, of connections only, with what its metadata knows."""

from __future__ import annotations

from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ...journal.schema import CONFIG, KINDS, OWN, REAP
from ..read.row_checks import Refused
from ..read.runs import Facts

MARKER = "marker"
"""Kind of the row that lets the last windows and sessions out: far ahead, so that nothing waits behind it."""

CHANGE = KINDS[CONFIG]
"""Kind of a row that reports a change of a connection's timeout, and nothing else: it is at the latest activity."""

COUNTS = ("opened", "reaped", "closed", "averted", "overdue")
"""What is counted of them per window and listener."""

FEED = pa.schema(
    [
        pa.field("at", pa.timestamp("us", "UTC"), nullable=False),  # the instant, on the wall clock, rounded down
        pa.field("run", pa.int64(), nullable=False),  # with conn: one connection of one process on one server
        pa.field("conn", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("idle_ns", pa.int64()),
        pa.field("timeout_ms", pa.int32()),  # in force before it; of a change: after it
        pa.field("lateness_ns", pa.int64()),  # reaps: since its last byte + timeout, at most; of a deadline: since due
        pa.field("listener", pa.string()),
        pa.field("full", pa.bool_(), nullable=False),  # the writer's mode: every activity has a row
        pa.field("tick_ns", pa.int64(), nullable=False),
    ]
)
"""Grain: one row per event of a connection."""

_READ = ("t", "conn", "kind", "idle_ns", "timeout_ms", "due_ns", "listener", "wall_offset_ns")


def rows_of(facts: Facts, run: int) -> pa.Table:
    """The rows of connections in one good file, as `FEED` has them.

    Raises:
        Refused: they have no wall-clock time.
    """
    with pq.ParquetFile(facts.here) as file:
        table = file.read(columns=[name for name in _READ if name in file.schema_arrow.names])
    offset: Any = round(median(anchor[1] - anchor[0] for anchor in facts.anchors)) if facts.anchors else None
    if "wall_offset_ns" in table.schema.names and (offset is None or table["wall_offset_ns"].null_count == 0):
        offset = table["wall_offset_ns"]
    if offset is None or (isinstance(offset, pa.ChunkedArray) and offset.null_count):
        raise Refused("no wall clock: neither wall_offset_ns nor anchors, so it has no place on the common timeline")
    at = pc.divide(pc.add(table["t"], offset), 1000).cast(pa.timestamp("us", "UTC"))
    kind = table["kind"].cast(pa.string())
    count = table.num_rows
    timeout = pc.multiply(table["timeout_ms"].cast(pa.int64()), 1_000_000)
    over = pc.if_else(pc.greater(timeout, 0), pc.subtract(table["idle_ns"], timeout), None)
    late = pc.max_element_wise(over, pc.subtract(table["t"], table["due_ns"]))
    columns = {
        "at": at,
        "run": pa.repeat(pa.scalar(run, pa.int64()), count),
        "conn": table["conn"],
        "kind": kind,
        "idle_ns": table["idle_ns"],
        "timeout_ms": table["timeout_ms"],
        "lateness_ns": pc.if_else(pc.equal(kind, KINDS[REAP]), late, None),
        "listener": table["listener"].cast(pa.string()),
        "full": pa.repeat(pa.scalar(facts.mode == "full"), count),
        "tick_ns": pa.repeat(pa.scalar(facts.tick_ns, pa.int64()), count),
    }
    # Of a writer's own rows none has a timeout but a change, which is a connection's.
    mine = pc.or_(pc.invert(pc.is_in(kind, pa.array(OWN))), pc.is_valid(table["timeout_ms"]))
    return pa.table(columns, schema=FEED).filter(mine)
