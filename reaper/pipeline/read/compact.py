"""Journals as one table, bucketed by connection and sorted by (conn, t): what queries it neither moves nor sorts a row.

It appears under its name whole or not at all: written beside it under a hidden name, described, then renamed.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..arguments import aside_lines
from ..places import Place, is_pattern, pattern, remove_tree, replace, uri
from .expected import as_list, line
from .frames import read_events
from .inputs import Inputs, hole_line
from .manifest import BUCKETS, ORDER, write_manifest
from .runs import Facts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_PER_BUCKET = 2_000_000
"""A task sorts one bucket, about 100 bytes per row, and reads one later."""

LEAST_BUCKETS, MOST_BUCKETS = 4, 4096


class Occupied(Exception):
    """The table cannot go there. The message is one line."""


def buckets_for(rows: int) -> int:
    """How many buckets a table of *rows* rows gets by default."""
    return min(max(LEAST_BUCKETS, -(-rows // ROWS_PER_BUCKET)), MOST_BUCKETS)


def vacant(out: Place) -> None:
    """Make sure that a table may be put at *out*.

    Raises:
        Occupied: it is a file, or a directory with something in it, or its name has characters of a pattern.
    """
    if is_pattern(out):
        raise Occupied(f"Spark takes {out} for a pattern: name a directory without any of {{}}[]*?\\")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Occupied(
            f"{out} is not empty, and a table is never added to: name a new directory; to merge, give the old table "
            "and the new journals together as --events"
        )


def compact(
    spark: SparkSession, inputs: Inputs, out: Place, buckets: int, progress: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Write the rows of *inputs* (journals and compacted tables) as one compacted table at *out*.

    Args:
        buckets: How many; at least 1.
    Returns:
        A summary for people and machines.
    Raises:
        Occupied: see `vacant`.
        RuntimeError: fewer rows arrived than were read; nothing is left at *out*.
    Cost: one shuffle of every row, and a sort within each bucket.
    """
    vacant(out)
    out = out.resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    name = f"reaper_{uuid.uuid4().hex}"
    hidden = out.parent / f".{out.name}.{name}"
    known = {
        "buckets": buckets,
        "rows": sum(facts.rows for facts in inputs.files),
        "facts": [_as_json(facts) for facts in inputs.files],
        "quarantined": inputs.quarantined,
        "growing": inputs.growing,
    }
    try:
        progress(f"sorting {known['rows']:,} rows into {buckets} buckets")
        # By hash of conn into as many partitions as buckets: Spark's buckets are that very hash, so each is one file.
        writer = read_events(spark, inputs).repartition(buckets, "conn").write.format("parquet")
        writer = writer.option("compression", "zstd").option("path", uri(hidden / BUCKETS))
        writer.bucketBy(buckets, "conn").sortBy(*ORDER).saveAsTable(name)
        spark.sql(f"DROP TABLE {name}")  # the catalogue's entry: the files are where we put them
        made: list[Place] = list((hidden / BUCKETS).iterdir())
        for mark in made:
            if mark.name.startswith("_"):
                mark.unlink()
        progress("describing it")
        manifest = write_manifest(hidden, known)
        found = spark.read.parquet(pattern(hidden / BUCKETS)).count()
        if found != known["rows"]:
            raise RuntimeError(f"{found} rows arrived in {hidden}, {known['rows']} were read")
        replace(hidden, out)
    except BaseException:
        with suppress(Exception):
            spark.sql(f"DROP TABLE IF EXISTS {name}")
        remove_tree(hidden)
        raise
    return {
        "schema": manifest["schema"],
        "table": str(out),
        "rows": found,
        "buckets": buckets,
        "files_read": len(inputs.files),
        "bytes": sum(entry["bytes"] for entry in manifest["files"]),
        "quarantined": inputs.quarantined,
        "silent_servers": as_list(inputs.silent),
        "holes": inputs.holes,
        "growing": inputs.growing,
    }


def _as_json(facts: Facts) -> dict[str, Any]:
    plain = asdict(facts)
    del plain["within"]
    return {**plain, "path": str(facts.path)}


def as_text(summary: dict[str, Any]) -> str:
    """The summary to read."""
    size = f"{summary['buckets']:,} buckets, {summary['bytes'] / 1e6:,.1f} MB"
    lines = [f"{summary['table']}: {summary['rows']:,} rows of {summary['files_read']:,} files in {size}"]
    lines += [f"  {text}" for text in aside_lines(summary["quarantined"], "the summary with --json")]
    lines += [f"  {hole_line(hole)}" for hole in summary["holes"]]
    lines += [f"  {line(entry)}" for entry in summary["silent_servers"]]
    return "\n".join(lines)
