"""Every second of every connection: judged, or not, and then why.

The rule of this module: *what no rule names is unjudged*. A connection's lifetime is
added up from its pieces, each found by itself. What is left over belongs to no piece,
so that an unforeseen fault is time without a judgement, and no PASS.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...journal.schema import UNNAMED
from ..engine import F
from ..read.frames import ns
from .verdicts import VIOLATIONS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ALLOWED = {
    "no_timeout": "no timeout was in force",
    "open_at_end": "still open, and not due, when the log ends",
    "before_log": "opened before the log begins",
}
"""Reasons for time that cannot be judged and need not be: an audit may pass with it."""

REASONS = {
    "rows_lost": "rows of it are missing",
    "no_opening": "its opening is missing, though the log was there when it was opened",
    "beyond_64_bits": "its silences do not sum up in 64 bits",
    "says_nothing": "its close for silence states neither timeout nor due",
    "busy_loop": "a silence is excused by a stall alone, during which the loop was seen to run",
    "unheard": "its client was silent for longer than its timeout, and its rows say otherwise",
    "timeout_unknown": "no row says which timeout was in force",
    "timeout_unsaid": "a silence was judged by a timeout that no row put in force",
    "uncounted": "time without a row is more than its activities, as counted, can have left",
    "below_threshold": "silences too short to be written may have been longer than its timeout",
    "not_told": "open when the log ends, and no row says for how long it was silent",
    "unaccounted": "its rows do not add up to its lifetime",
}
"""Reasons for time that ought to have been judged. The first that applies to a
connection counts.
"""

PIECES = ("judged_ns", *(f"{name}_ns" for name in ALLOWED), "unjudged_ns")
SECOND_NS = 1_000_000_000
_TIMES = ("lifetime_ns", *PIECES)


def account(judged: DataFrame, grace_ns: int) -> DataFrame:
    """*judged* (with verdicts) with `lifetime_ns`, the pieces of it (see `PIECES`), and
    `unjudged`.

    `lifetime_ns` runs from the opening, or the first row of its run, to the end, or the
    last row of its run. `unjudged`: one of `REASONS`; null: nothing is unjudged.

    Step by step, each with the names of the one before: written out as one expression,
    the names stand for so much that Java compiles it no more.
    """
    before = set(judged.columns)
    known = _last_silence(_activity(judged))
    named = _reason(_rules(known, F.col("tick_ns") + F.lit(grace_ns)))
    found = _pieces(named)
    return found.drop(*(name for name in found.columns if name[0] == "_" and name not in before))


def _nothing() -> Column:
    return F.lit(0).cast("long")


def _is(condition: Column) -> Column:
    """*condition*, and False where it is null."""
    return F.coalesce(condition, F.lit(False))


def _activity(frame: DataFrame) -> DataFrame:
    """*frame* with `lifetime_ns`, and what its rows sum up.

    Adds: _active, the sum of the silences that are rows, and of it _untimed, with no
    timeout in force, and _unknown, with none stated; _last, the latest activity that is
    a row; _heard, the latest that is known to the row by which it is open; _by_told,
    that this is no earlier; _least_ms, the least of its timeouts.
    """
    opened = F.when(F.col("opens") > 0, F.col("opened")).otherwise(F.col("log_begin_ns"))
    lifetime = F.coalesce("ended", "log_end_ns") - opened
    summed = F.when(F.col("activities") == 0, _nothing()).otherwise(F.col("activity_idle_ns"))
    told_ms = F.when(F.col("ends") == 0, F.col("told_timeout_ms"))
    timeouts = F.array(
        *("open_timeout_ms", "last_timeout_ms", "end_timeout_ms", "claimed_least_ms"), told_ms
    )
    return frame.withColumns(
        {
            "lifetime_ns": F.greatest(lifetime, _nothing()),
            "_active": summed,
            "_untimed": F.coalesce("untimed_ns", _nothing()),
            "_unknown": F.coalesce("timeout_unknown_ns", _nothing()),
            "_last": F.greatest("opened", "last_activity"),
            "_heard": F.col("told") - F.col("told_idle_ns"),
            # A function over an array, with which Spark begins another method: verdict
            # and account in one are more than Java compiles.
            "_least_ms": F.array_min(F.filter(timeouts, lambda each: each > 0)),
        }
    ).withColumn(
        "_by_told",
        _is((F.col("ends") == 0) & (F.col("_heard") >= F.coalesce("_last", "_heard"))),
    )


def _last_silence(frame: DataFrame) -> DataFrame:
    """*frame* with its last silence: _timeout_ms, and _final, its length. And what was
    before that: _summed, silences that rows sum up, and _short, those without a row.
    """
    no_end, by_told = F.col("ends") == 0, F.col("_by_told")
    active = F.when(by_told, F.col("_heard")).otherwise(F.col("_last"))
    since = F.when(no_end, active).otherwise(F.col("ended") - F.col("end_idle_ns"))
    timeout_ms = F.when(by_told, F.col("told_timeout_ms"))
    timeout_ms = timeout_ms.when(no_end, F.col("last_timeout_ms"))
    summed = F.when(by_told, F.col("told_sum_ns")).when(no_end, F.col("_active"))
    # Where nothing says how many activities there were, those with a row were all.
    count = F.when(by_told, F.col("told_n")).when(no_end, F.col("activities"))
    final = F.when(no_end, F.col("log_end_ns") - F.col("_since"))
    return (
        frame.withColumns(
            {
                "_since": since,
                "_timeout_ms": timeout_ms.otherwise(F.col("end_timeout_ms")),
                "_summed": summed.otherwise(F.col("end_idle_sum_ns")),
                "_count": count.otherwise(F.col("end_n")),
            }
        )
        .withColumns(
            {
                "_final": final.otherwise(F.col("end_idle_ns")),
                "_short": F.col("_since") - F.col("opened") - F.col("_summed"),
                "_timed": F.col("_active") - F.col("_untimed") - F.col("_unknown"),
            }
        )
        .drop("_since", "_heard", "_last")
    )


def _rules(frame: DataFrame, limit: Column) -> DataFrame:
    """*frame* with what can be said of its time.

    Adds: _stated, by which timeout or instant its last silence is judged is known;
    _silent, there was none; _stays_open, rightly; _hidden, a silence without a row may
    have outlasted its timeout; _unsaid, one was judged by a timeout that no row put in
    force; _uncounted_ns, how much time without a row is more than the silences
    of so many activities, each up to the threshold, and a tick for a lease that knows
    its epoch alone, and stalls; _broken, a law was broken; _sum.
    """
    no_end, full, log_end = F.col("ends") == 0, F.col("full"), F.col("log_end_ns")
    no_opening = F.col("opens") == 0
    # Whatever it did since, it cannot have been silent for too long yet.
    fresh = (F.col("_final") <= ns(F.col("_timeout_ms")) + limit) | full
    fresh |= F.col("_by_told") & (log_end - F.greatest("told_due_ns", "told") <= limit)
    by_due = (F.col("reaps") > 0) & F.col("due_ns").isNotNull()
    # Where the opening is in a file that is gone, so may be what put them in force.
    unsaid = (full & ~no_opening) & (
        (F.col("claimed_least_ms") < F.col("stated_least_ms"))
        | (F.col("claimed_most_ms") > F.col("stated_most_ms"))
    )
    # A deadline that nothing but its own row says was all that was in force.
    by_deadline = (F.col("reaps") > 0) & F.col("end_timeout_ms").isNull()
    by_deadline &= ~_is(F.col("last_change") > F.col("ended") - F.col("end_idle_ns"))
    unsaid |= (
        ~full
        & by_deadline
        & (F.col("end_idle_ns") > ns(F.col("last_timeout_ms")) + limit)
        & (F.col("end_idle_ns") > F.col("gap_threshold_ns") + limit)
    )
    rowless = F.greatest(F.col("_count") - F.col("activities"), _nothing())
    longest = F.col("gap_threshold_ns") + F.col("tick_ns")
    # A silence that a final check ended has a row of that check, and one more of the
    # bytes, or is counted among those without.
    checked = F.floor(F.coalesce("averted_idle_ns", _nothing()) / F.greatest("averts", F.lit(1)))
    written = checked * F.least(rowless, F.col("averts")) + F.col("stood_ns")
    most = (rowless + 1) * longest + written
    return (
        frame.withColumns(
            {
                "_stated": _is(F.col("_timeout_ms") > 0) | _is(by_due),
                "_fresh": _is(fresh),
                "_unsaid": _is(unsaid | (F.col("unsaid") > 0)),
                "_uncounted_ns": F.when(
                    ~full, F.greatest(F.col("_short") - most, _nothing())
                ).otherwise(_nothing()),
                "_broken": F.col("verdict").isin(*VIOLATIONS),
            }
        )
        .withColumns(
            {
                # In `gaps` mode a timeout that no row reports may be in force since.
                "_silent": _is(F.col("_timeout_ms") == 0)
                & ~F.col("_stated")
                & (full | ~no_end | F.col("_by_told")),
                "_stays_open": no_end & F.col("_stated") & F.col("_fresh"),
                "_hidden": _is(
                    ~full
                    & ((F.col("_short") > 0) | no_opening)
                    & (ns(F.col("_least_ms")) + limit < F.col("gap_threshold_ns"))
                ),
                "_sum": F.col("_active")
                + F.greatest(F.col("_short"), _nothing())
                + F.col("_final"),
            }
        )
        .drop("_fresh", "_least_ms", "_by_told")
    )


def _reason(frame: DataFrame) -> DataFrame:
    """*frame* with `unjudged`, see `account`."""
    no_end, full, holed = F.col("ends") == 0, F.col("full"), F.col("run_holed")
    foreign = F.coalesce(F.col("conn") < F.col("first_opened"), F.lit(True))
    no_opening, judgeable = F.col("opens") == 0, F.col("verdict") != "unknown"
    says_nothing = F.col("end_timeout_ms").isNull() & F.col("due_ns").isNull()
    says_nothing = F.when(no_opening, (F.col("reaps") > 0) & says_nothing).otherwise(~judgeable)
    stated, short = F.col("_stated"), F.col("_short")
    untold = ~stated & ~F.col("_silent") & (F.col("_final") > 0)
    added_up = (short < 0) | (full & (short != 0)) | (F.col("_sum") != F.col("lifetime_ns"))
    reason = _first(
        (F.col("_broken"), None),
        (no_opening & ~foreign & ~holed, "no_opening"),
        ((no_opening | ~judgeable) & holed, "rows_lost"),
        (~judgeable & F.col("_active").isNull(), "beyond_64_bits"),
        (says_nothing, "says_nothing"),
        (F.col("doubted") > 0, "busy_loop"),
        *([(F.col("unheard"), "unheard")] if "unheard" in frame.columns else []),
        (F.col("_unsaid"), "timeout_unsaid"),
        ((F.col("_unknown") > 0) | untold, "timeout_unknown"),
        (F.col("_hidden"), "below_threshold"),
        (no_end & stated & ~F.col("_stays_open"), "not_told"),
        # Of its time before the log nothing is asked. Of its silence since then is.
        (no_opening & no_end & F.col("_final").isNull(), "not_told"),
        (no_opening, None),
        (no_end & (F.col("_summed") != F.col("_active")), "rows_lost"),
        (added_up, "unaccounted"),
        (F.col("_uncounted_ns") > 0, "uncounted"),
    )
    return frame.withColumn("unjudged", reason).drop("_unsaid", "_sum", "_summed")


def _pieces(frame: DataFrame) -> DataFrame:
    """*frame* with `PIECES`."""
    nothing, broken, lifetime = _nothing(), F.col("_broken"), F.col("lifetime_ns")
    final, silent, stays_open = F.col("_final"), F.col("_silent"), F.col("_stays_open")
    ended = F.col("_stated") & (F.col("ends") > 0)
    # Of some reasons a piece is unjudged alone; of the others nothing is known for
    # certain.
    partly = F.col("unjudged").isin("timeout_unknown", "below_threshold", "not_told", "uncounted")
    partly = _is(partly & (F.col("opens") > 0))
    before = (F.col("opens") == 0) & F.col("unjudged").isNull() & ~broken
    split, fallen = F.col("_split"), F.col("_before")
    unjudged = (
        F.when(F.col("unjudged").isNull(), nothing)
        .when(F.col("_partly"), F.col("_unknown") + F.col("_hidden_ns") + F.col("_left_ns"))
        .otherwise(lifetime)
    )
    columns = {
        "no_timeout_ns": F.when(
            split, F.col("_untimed") + F.when(silent, final).otherwise(nothing)
        ),
        "open_at_end_ns": F.when(split & stays_open, final),
        "before_log_ns": F.when(fallen, lifetime),
        "unjudged_ns": unjudged,
        # Added up by itself: that all is there is asked of the sums.
        "judged_ns": F.when(broken, lifetime).when(
            split,
            F.col("_timed") + F.col("_short") - F.col("_hidden_ns") + F.col("_ended_ns"),
        ),
    }
    return frame.withColumns(
        {
            "_partly": partly,
            "_before": before,
            "_split": ~broken & ~before & (F.col("unjudged").isNull() | partly),
            "_hidden_ns": F.when(F.col("_hidden"), F.col("_short")).otherwise(
                F.col("_uncounted_ns")
            ),
            "_left_ns": F.when(ended | silent | stays_open, nothing).otherwise(final),
            "_ended_ns": F.when(ended, final).otherwise(nothing),
        }
    ).withColumns({name: F.coalesce(each, nothing) for name, each in columns.items()})


def _first(*cases: tuple[Column, str | None]) -> Column:
    expression = F.when(cases[0][0], F.lit(cases[0][1]).cast("string"))
    for condition, reason in cases[1:]:
        expression = expression.when(condition, F.lit(reason).cast("string"))
    return expression


def sums_of_time() -> list[Column]:
    """Aggregates over connections: lifetimes and their pieces.

    Sums of nanoseconds do not fit 64 bits: 10 million connections of an hour are
    3.6e19. So whole seconds and the rest are summed apart.
    """

    def parts(name: str) -> list[Column]:
        whole = F.floor(F.col(name) / SECOND_NS)
        rest = F.col(name) - whole * SECOND_NS
        return [F.sum(whole).alias(f"{name}_s"), F.sum(rest).alias(f"{name}_rest")]

    return [part for name in _TIMES for part in parts(name)]


def accounted(cells: Sequence[Any]) -> dict[str, Any]:
    """Lifetimes and their pieces, summed per listener. Seconds are exact to the
    nanosecond.

    Args:
        cells: Rows with listener, unjudged, `count` connections and `sums_of_time`.
    """
    found: dict[str, dict[str, Any]] = {}
    for row in cells:
        of = found.setdefault(
            row.listener or UNNAMED,
            {
                **dict.fromkeys(("connections", "lifetime_ns", "judged_ns"), 0),
                "allowed_ns": dict.fromkeys(ALLOWED, 0),
                "unjudged": {},
            },
        )
        sums = {name: row[f"{name}_s"] * SECOND_NS + row[f"{name}_rest"] for name in _TIMES}
        of["connections"] += row["count"]
        for name in ("lifetime_ns", "judged_ns"):
            of[name] += sums[name]
        for name in ALLOWED:
            of["allowed_ns"][name] += sums[f"{name}_ns"]
        left = sums["lifetime_ns"] - sum(sums[name] for name in PIECES)
        for reason, ns_ in ((row.unjudged, sums["unjudged_ns"]), ("unaccounted", left)):
            if reason is not None and (ns_ or (reason == row.unjudged)):
                entry = of["unjudged"].setdefault(reason, {"connections": 0, "ns": 0})
                entry["connections"] += row["count"]
                entry["ns"] += abs(ns_)
    return {name: found[name] for name in sorted(found)}


def total(listeners: dict[str, Any]) -> dict[str, Any]:
    """The sums of all *listeners*, as `accounted` returns them; `unjudged` the largest
    first.
    """
    unjudged: dict[str, dict[str, int]] = {}
    for each in listeners.values():
        for reason, entry in each["unjudged"].items():
            of = unjudged.setdefault(reason, {"connections": 0, "ns": 0})
            for name in of:
                of[name] += entry[name]
    order = sorted(unjudged, key=lambda name: (-unjudged[name]["ns"], name))
    return {
        **{
            name: sum(each[name] for each in listeners.values())
            for name in ("connections", "lifetime_ns", "judged_ns")
        },
        "allowed_ns": {
            name: sum(each["allowed_ns"][name] for each in listeners.values()) for name in ALLOWED
        },
        "unjudged": {name: unjudged[name] for name in order},
    }
