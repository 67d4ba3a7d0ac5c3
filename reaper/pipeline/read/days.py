"""A compacted table per day, `OUT/day=YYYY-MM-DD/`: a question about a day opens that day's, and no other.

One rule: *a file's rows are in one table, that of the day of its first row*, as in the layout of shipped journals; what
spans too much to be in one hour, or does not know the wall clock, is in `day=any`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...journal.layout import partition
from ..places import Place, remove_tree, replace
from .compact import Occupied, buckets_for, compact, vacant
from .expected import as_list
from .inputs import Inputs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def by_day(inputs: Inputs) -> dict[str, Inputs]:
    """The files of *inputs* by the name of their day's directory, in order. What was put aside is in each."""
    days: dict[str, Inputs] = {}
    for facts in inputs.files:
        day = partition(*(facts.bounds or (None, None))).partition("/")[0]
        days.setdefault(day, Inputs(quarantined=inputs.quarantined)).files.append(facts)
    return dict(sorted(days.items()))


def compact_by_day(
    spark: SparkSession,
    inputs: Inputs,
    out: Place,
    buckets: int | None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Write the rows of *inputs*, files alone, as one compacted table per day below *out*: all of them, or none.

    Args:
        buckets: Of each table; None: one for every two million of its rows.
    Returns:
        A summary: that of `compact`, and `tables`, a list of theirs.
    Raises:
        Occupied: *out* is not empty, or *inputs* has tables.
    """
    vacant(out)
    if inputs.tables:
        raise Occupied(f"--by day takes journals, and {inputs.tables[0].path} is a table, whose rows have no day")
    out = out.resolve()
    hidden = out.parent / f".{out.name}.reaper_{uuid.uuid4().hex}"
    tables = []
    try:
        for day, files in by_day(inputs).items():
            progress(f"{day}: {len(files.files)} file(s)")
            rows = sum(facts.rows for facts in files.files)
            tables.append(compact(spark, files, hidden / day, buckets or buckets_for(rows), progress))
            tables[-1]["table"] = str(out / day)
        replace(hidden, out)
    except BaseException:
        remove_tree(hidden)
        raise
    return {
        **tables[0],
        "table": str(out),
        **{key: sum(table[key] for table in tables) for key in ("rows", "buckets", "files_read", "bytes")},
        "silent_servers": as_list(inputs.silent),
        "holes": inputs.holes,
        "growing": inputs.growing,
        "tables": [{key: table[key] for key in ("table", "rows", "buckets", "bytes")} for table in tables],
    }
