"""Access logs that users already have, as silences.

The rule of this module: *a silence is one connection's, or is said to be less*. Each parser gives one row per request:
key (of the connection, or of the client where the format knows no connection), start_ns, end_ns, serial (number of the
request on its connection, null where unknown), listener. A silence runs from the end of one request to the start of the
next; one beyond the timeout in force cannot have been on one connection, so there a new one begins.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..engine import F, Window, here
from ..places import Place, open_file
from .formats import FORMATS, SHOWN, SHOWN_CHARACTERS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Parser = Callable[["Column", Callable[[int], "Column"]], dict[str, "Column"]]
"""The line, and its groups by number (null where empty) -> the columns of a request."""


def _seconds_ns(text: Column) -> Column:
    # By way of decimal: a double would cost a microsecond at today's Unix time.
    return (text.try_cast("decimal(20,6)") * F.lit(1_000_000_000)).try_cast("long")


def _date_ns(text: Column, pattern: str) -> Column:
    return _micros_ns(F.try_to_timestamp(text, F.lit(pattern)))


def _micros_ns(instant: Column) -> Column:
    return F.try_multiply(F.unix_micros(instant), F.lit(1000))


def _nginx(_: Column, part: Callable[[int], Column]) -> dict[str, Column]:
    end = _seconds_ns(part(1))
    return {
        "key": F.xxhash64(part(2)),
        "start_ns": end - _seconds_ns(part(4)),
        "end_ns": end,
        "serial": part(3).try_cast("long"),
        "listener": F.lit("http"),
    }


def _haproxy(_: Column, part: Callable[[int], Column]) -> dict[str, Column]:
    start = _date_ns(part(2), "dd/MMM/yyyy:HH:mm:ss.SSS")
    return {
        "key": F.xxhash64(part(1), part(3)),
        "start_ns": start,
        "end_ns": start + part(4).try_cast("int").cast("long") * F.lit(1_000_000),
        "serial": F.lit(None).cast("long"),
        "listener": part(3),
    }


def _envoy(line: Column, _: Callable[[int], Column]) -> dict[str, Column]:
    def member(name: str) -> Column:
        return F.get_json_object(line, f"$.{name}")

    start = _micros_ns(F.try_to_timestamp(member("start_time")))
    return {
        "key": F.when(member("connection_id").try_cast("long").isNotNull(), F.xxhash64(member("connection_id"))),
        "start_ns": start,
        "end_ns": start + (member("duration").try_cast("int") * F.lit(1_000_000)),
        "serial": F.lit(None).cast("long"),
        "listener": F.coalesce(member("listener"), F.lit("http")),
    }


def _combined(_: Column, part: Callable[[int], Column]) -> dict[str, Column]:
    when = _date_ns(part(3), "dd/MMM/yyyy:HH:mm:ss Z")
    return {
        "key": F.xxhash64(F.coalesce(part(1), part(2)), F.coalesce(part(4), F.lit(""))),
        "start_ns": when,
        "end_ns": when,
        "serial": F.lit(None).cast("long"),
        "listener": F.lit("http"),
    }


PARSERS: dict[str, Parser] = {"nginx": _nginx, "haproxy": _haproxy, "envoy": _envoy, "combined": _combined}


_SEARCHED = 64 << 20
"""Bytes that are read here to find where bad lines stand."""


@dataclass(slots=True)
class Requests:
    """What access logs hold."""

    frame: DataFrame
    """Grain: one row per request; key long, start_ns and end_ns in Unix ns, serial long or null, listener."""
    lines: int = 0
    """Lines read, empty ones left out."""
    own: int = 0
    """Of them, reports of the server about itself."""
    bad: int = 0
    """Of them, those that are neither a request nor a report."""
    examples: list[str] = field(default_factory=list)
    """Some of the bad ones: where, and how they begin."""


def read_requests(spark: SparkSession, name: str, paths: list[Place]) -> Requests:
    """The requests of access logs in format *name*.

    Cost: three looks at the files; a further one, in the driver, where lines are bad.
    """
    known = FORMATS[name]
    line = F.col("value")

    def part(group: int) -> Column:
        return F.nullif(F.regexp_extract(line, known.request, group), F.lit(""))

    lines = here().read_lines(spark, paths).where(F.trim("value") != "")
    columns = [column.alias(label) for label, column in PARSERS[name](line, part).items()]
    parsed = lines.select("value", *columns)
    good = F.col("key").isNotNull() & F.coalesce(F.col("start_ns").between(0, F.col("end_ns")), F.lit(False))
    if known.request:
        good = line.rlike(known.request) & good
    own = ~good & (line.rlike(known.own) if known.own else F.lit(False))
    found = Requests(parsed.where(good).drop("value"))
    counts = parsed.agg(
        F.count(F.lit(1)).alias("lines"), F.count(F.when(own, 1)).alias("own"), F.count(F.when(good, 1)).alias("good")
    ).first()
    if counts is not None:
        found.lines, found.own, found.bad = counts.lines, counts.own, counts.lines - counts.own - counts.good
    if found.bad:
        shown = parsed.where(~good & ~own).select("value").limit(SHOWN).collect()
        found.examples = examples(paths, [row.value for row in shown])
    return found


def examples(paths: Iterable[Place], lines: list[str]) -> list[str]:
    """Where each of *lines* first stands in *paths*, and how it begins. Beyond `_SEARCHED` bytes: how it begins."""
    left, found, searched = list(dict.fromkeys(lines)), [], 0
    files = (below for path in paths for below in (_logs_in(path) if path.is_dir() else [path]))
    for path in files:
        if not left:
            break
        with open_file(path) as stored, gzip.open(stored) if path.suffix == ".gz" else stored as file:
            for number, raw in enumerate(file, 1):
                if (searched := searched + len(raw)) > _SEARCHED:
                    break
                text = raw.rstrip(b"\r\n").decode(errors="replace")
                if text in left:
                    left.remove(text)
                    found.append(f"{path.name} line {number}: {text[:SHOWN_CHARACTERS]!r}")
                    if not left:
                        break
    return found + [repr(text[:SHOWN_CHARACTERS]) for text in left]


def _logs_in(directory: Place) -> Iterator[Place]:
    """The files in *directory* that Spark reads when it is named."""
    found: list[Place] = list(directory.iterdir())
    return (path for path in sorted(found, key=str) if not path.name.startswith((".", "_")) and path.is_file())


def silences(requests: DataFrame, timeout_ns: int) -> DataFrame:
    """The silences between *requests*: key (of one connection), listener, at_ns (when it began), idle_ns, returned.

    Grain: one row per silence. The one window of the pipeline: these logs do not carry the silence in the row.

    Args:
        requests: See `Requests.frame`.
        timeout_ns: In force when they were written: a silence beyond it was cut there.
    """
    order = Window.partitionBy("key").orderBy("end_ns", "start_ns")
    log_end = requests.agg(F.max("end_ns").alias("log_end_ns"))
    following = requests.select(
        "key",
        "listener",
        "start_ns",
        "end_ns",
        F.lead("start_ns").over(order).alias("next_ns"),
        (F.lead("serial").over(order) == F.col("serial") + 1).alias("adjacent"),
    ).crossJoin(F.broadcast(log_end))
    gap = F.greatest(F.col("next_ns") - F.col("end_ns"), F.lit(0))
    returned = F.col("next_ns").isNotNull() & F.coalesce("adjacent", F.lit(True)) & (gap <= timeout_ns)
    cut = F.least(F.lit(timeout_ns), F.col("log_end_ns") - F.col("end_ns"))
    judged = following.withColumn("returned", returned).withColumn("idle_ns", F.when(returned, gap).otherwise(cut))
    cuts_before = F.sum(F.when(~F.col("returned"), 1)).over(order.rowsBetween(Window.unboundedPreceding, -1))
    return judged.select(
        F.xxhash64("key", F.coalesce(cuts_before, F.lit(0))).alias("key"),
        "listener",
        F.col("end_ns").alias("at_ns"),
        "idle_ns",
        "returned",
    )
