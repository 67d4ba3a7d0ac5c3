"""Any table of what can be idle, as the uses in it: sessions, cache entries, jobs.

The rule of this module: *a column means what its type says*. A row is one use: key (any
type), time (when it began) and, where there is one, end (when it ended; null: it took
no time). An instant is a timestamp, a number of seconds since 1970, or text in ISO
8601.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..arguments import Fault
from ..engine import F, here
from ..places import Place
from .access_logs import EITHER, SHOWN, SHOWN_CHARACTERS, Requests, instant, scaled

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

KEY, TIME, END = "key", "time", "end"
"""The columns' own names."""

TABLE = "table"
"""What stands in place of a listener."""

_WHOLE = ("int", "bigint", "integer", "long", "decimal", "hugeint")
_FLOATING = ("float", "double")

_LATEST_S = 253_402_300_800
"""The end of the year 9999, seconds since 1970."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table, and how its columns are called."""

    paths: Sequence[Place] = ()
    """Parquet files, or directories of them."""
    key: str = KEY
    time: str = TIME
    end: str = END
    """Left out where the table has none of this name and it is `END`."""
    frame: DataFrame | None = None
    """The table itself; None: it is read from *paths*."""


def read_uses(spark: SparkSession, table: Table) -> Requests:
    """The uses in *table*, as requests are.

    Raises:
        Fault: a column is not there, or is of no type that means an instant.
    Cost: one look at its rows; another where some are bad.
    """
    frame = here().read_table(spark, table.paths) if table.frame is None else table.frame
    kinds = {name: kind.lower() for name, kind in frame.dtypes}
    wanted = [table.key, table.time]
    if table.end in kinds or table.end != END:
        wanted.append(table.end)
    for name in wanted:
        if name not in kinds:
            raise Fault(f"the table has no column {name!r}; it has {', '.join(map(repr, kinds))}")
    start = _instant(table.time, kinds)
    end = F.coalesce(_instant(table.end, kinds), start) if len(wanted) > 2 else start
    uses = frame.select(
        F.col(table.key).cast("string").alias("key"),
        F.col(table.time).cast("string").alias("said"),
        start.alias("start_ns"),
        end.alias("end_ns"),
        F.lit(None).cast("long").alias("serial"),
        F.lit(TABLE).alias("listener"),
        F.lit(True).alias("used"),
    )
    good = F.col("key").isNotNull() & F.coalesce(
        F.col("start_ns").between(0, F.col("end_ns")), F.lit(False)
    )
    found = Requests(uses.where(good).drop("said"), tabled=True)
    (counts,) = uses.agg(
        F.count(F.lit(1)).alias("lines"), F.count(F.when(good, 1)).alias("good")
    ).collect()
    found.lines, found.bad = counts.lines, counts.lines - counts.good
    if found.bad:
        shown = uses.where(~good).select("key", "said").limit(SHOWN).collect()
        found.examples = [f"{row[0]!r} at {row[1]!r}"[:SHOWN_CHARACTERS] for row in shown]
    return found


def _instant(name: str, kinds: dict[str, str]) -> Column:
    """The instant in the column *name*, Unix ns; null where it holds none."""
    column, kind = F.col(name), kinds[name]
    if kind.startswith("timestamp"):
        return F.unix_micros(column.cast("timestamp")) * F.lit(1000)
    if kind.startswith(_WHOLE):
        return scaled(column, 10**9)
    if kind.startswith(_FLOATING):
        # To a microsecond, which is what a double of today's Unix time knows.
        micros = F.floor(column * F.lit(1e6) + F.lit(0.5)) * F.lit(1000)
        return F.when(column.between(0, _LATEST_S), micros)
    if kind in ("string", "varchar"):
        return instant(F.trim(column), EITHER)
    raise Fault(
        f"column {name!r} is of type {kind}; expected a timestamp, a number of seconds since 1970, "
        "or text in ISO 8601"
    )
