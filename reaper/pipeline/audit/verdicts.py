"""The law of time as one expression over one row per connection. docs/pipeline.md has
the table in words.

A verdict is the first that applies, worst first, so that every connection has exactly
one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..engine import F
from ..read.frames import ns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

GRACE_NS, FLIGHT_NS, UNMATCHED = 250_000_000, 50_000_000, 0.01
"""The defaults of `run.Settings`."""

VERDICTS = {
    "activity_after_end": "something happened on it after it had ended",
    "duplicate": "it was opened or ended more than once, or a row of it is there twice",
    "early": "closed before it had been silent for its timeout",
    "missed": "silent for more than its timeout, one tick and the grace, and not closed",
    "late": "closed more than one tick, the grace and the stalls of its loop after it was due",
    "lost": "it has no end although it was due long before the log ends, or left no row at all",
    "missing_touch": "the silences written do not add up to what its end row says",
    "unknown": "its beginning is not in the log, rows that would explain it may be missing, its "
    "clock ran backwards, "
    "or its close for silence states neither timeout nor due",
    "open_at_end": "still open, and rightly, when the log ends",
    "ok_reaped": "closed for its silence, in time",
    "ok_closed": "ended by a peer or the program, in time",
}
VIOLATIONS = ("early", "missed", "late", "lost", "duplicate", "activity_after_end", "missing_touch")
"""An audit with any of these fails."""


def prepare(frame: DataFrame, grace_ns: int) -> DataFrame:
    """*frame* (lifetimes with their run, joined with their silences) with what the
    expression names.

    Adds: limit_ns, idle_timeout_ns (null: none in force), lateness_ns (of a reap,
    stalls included).
    """
    timeout = F.when(F.col("end_timeout_ms") > 0, ns(F.col("end_timeout_ms")))
    since = F.col("ended") - F.col("end_idle_ns")
    # Another timeout came into force during the silence: it was due no earlier than
    # that.
    changed = F.when(timeout.isNotNull() & (F.col("changed") > since), F.col("changed"))
    by_row = F.greatest(
        F.col("ended") - F.greatest(since + timeout, changed), F.col("ended") - F.col("due_ns")
    )
    lateness = F.when(F.col("reaps") > 0, F.coalesce("spared_lateness_ns", by_row))
    before_it_began = F.when(F.col("first_trace") < F.col("opened"), 1).otherwise(0)
    return (
        frame.withColumn("limit_ns", F.col("tick_ns") + F.lit(grace_ns))
        .withColumn("idle_timeout_ns", timeout)
        .withColumn("lateness_ns", lateness)
        .withColumn("backward", F.col("backward") + before_it_began)
        .drop("first_trace")
    )


def judge(frame: DataFrame) -> DataFrame:
    """*frame* (prepared) with `verdict`, from the server's log alone."""
    ended, opened = F.col("ended"), F.col("opened")
    reaped = F.col("reaps") > 0
    no_end = F.col("ends") == 0
    # A sum over no row is null; null here is left for a sum that does not fit 64 bits.
    rows_idle = F.when(F.col("activities") == 0, F.lit(0)).otherwise(F.col("activity_idle_ns"))
    timeout = F.col("idle_timeout_ns")
    early = reaped & (
        (F.col("end_idle_ns") < timeout)
        | (ended < F.col("due_ns"))
        | (ended - F.col("last_activity") < timeout)
        | F.col("hasty")
        # 0: no timeout was in force, so nothing was due.
        | (F.col("end_timeout_ms") == 0)
    )
    outlasted = F.col("outlasted")
    unread = (
        ended - F.col("end_idle_ns") - opened - F.col("end_idle_sum_ns")
    )  # silences that were not written
    # The end row sums up all silences: more of them in rows means that rows are there
    # twice.
    doubled = (rows_idle > F.col("end_idle_sum_ns")) | (F.col("activities") > F.col("end_n"))
    # In `full` mode each silence has a row. In `gaps` mode short ones have none, so
    # fewer rows than the end row says are right.
    missing = (
        (rows_idle < F.col("end_idle_sum_ns"))
        | (unread < 0)
        | (F.col("full") & ((unread != 0) | (F.col("activities") < F.col("end_n"))))
    )
    undecidable = reaped & F.col("end_timeout_ms").isNull() & F.col("due_ns").isNull()
    # A writer that has drained has said that none of its connections is left.
    lost = no_end & (outlasted | F.col("run_drained"))
    missed = (
        (F.col("missed") > 0)
        | (reaped & outlasted & timeout.isNull())
        | (~reaped & ~no_end & outlasted)
    )
    late = (F.col("reaped_late") > 0) | (reaped & outlasted)
    # The row that would excuse it, of a stall or of another timeout, may be lost, too.
    holed = F.col("run_holed")
    return frame.withColumn(
        "verdict",
        _first(
            ("unknown", (F.col("backward") > 0) | rows_idle.isNull()),
            ("activity_after_end", F.col("last_activity") > ended),
            (
                "duplicate",
                (F.col("opens") > 1)
                | (F.col("ends") > 1)
                | ((F.col("opens") == 1) & ~no_end & doubled),
            ),
            ("unknown", undecidable),
            ("early", early),
            ("missed", missed & ~holed),
            ("late", late & ~holed),
            # A leak is one, too, whose opening is in a file that is gone.
            ("lost", lost & ~holed),
            ("unknown", (F.col("opens") == 0) | (holed & (lost | missing | missed | late))),
            ("missing_touch", missing),
            ("open_at_end", no_end),
            ("ok_reaped", reaped),
        ),
    )


def _first(*cases: tuple[str, Column]) -> Column:
    expression = F.when(cases[0][1], cases[0][0])
    for verdict, condition in cases[1:]:
        expression = expression.when(condition, verdict)
    return expression.otherwise("ok_closed")
