"""The audit: was every reap right? Six steps, one after the other; `audit` calls them
by name.

1. `read` (joined.py): the journals of each side become a row per connection. Nothing
   runs yet.
2. `silences` (here, silences.py): each silence that outlasted its timeout is judged by
   itself, and the stalls that excuse it are counted. Only files that have such a
   silence are read for it.
3. `judge` (verdicts.py): the law of time as one expression; each connection gets one
   verdict, from the server's journal alone.
4. `join` (joined.py): with `--client`, each connection is paired with its other side,
   and gets another verdict where that side's evidence contradicts the first. The
   outcome is written to `connections/`, a row per connection, with its time accounted
   for (account.py).
5. `sum_up` (sums.py): verdicts, lateness per listener, the offenders, the clocks: small
   tables.
6. `conclude` (here, words.py): the audit fails where something is proven to be wrong,
   and is inconclusive where something could not be judged; else it passes.

The engine makes two passes: one over all rows, up to step 4, and one over
`connections/`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..engine import F, here
from ..places import Place
from ..read.expected import line
from ..read.frames import listeners_of, small_frame
from ..read.inputs import Inputs, hole_line, nothing_line
from ..read.runs import Stalls, Timeline, overdue_files, unordered_files
from . import words
from .account import REASONS, account, total
from .joined import Joined, Side, join, read
from .silences import overdue_rows, unproven_stalls, with_backed, with_silences
from .sums import sum_up
from .verdicts import FLIGHT_NS, GRACE_NS, UNMATCHED, VIOLATIONS, judge, prepare

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOT_KEPT = (
    *("writer", "first_conn", "last_conn", "run_drained", "from", "to", "over", "leaking"),
    *("gap_threshold_ns", "log_begin_ns", "changed", "unix_ns"),
    *("last_untimed", "untimed_ns", "timeout_unknown_ns", "claimed_least_ms", "claimed_most_ms"),
    "unheard",
    *("stated_least_ms", "stated_most_ms"),
    *("told", "told_idle_ns", "told_timeout_ms", "told_due_ns", "told_sum_ns", "told_n"),
    *("averted_idle_ns", "stood_ns", "awake_to_ns", "changes", "unsaid"),
    "last_change",
    *("c_awake_to", "c_steps"),
)
"""Columns that only the verdict needs."""


DAY_NS = 24 * 3600 * 10**9
MOST_CASES = 64
"""Listeners up to which each is a case of one expression."""

NAMES = pa.schema([("_number", pa.int64()), ("_name", pa.string())])
"""Grain: one row per listener or run. _number: of a run, its number in this audit; of a
listener null.
"""

Names = dict[str, int | None]
"""The name of a listener or a run -> its number in this audit; None: its hash, each
engine's own.
"""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the auditor may choose. Nanoseconds."""

    grace_ns: int = GRACE_NS
    """Lateness that is still excused, beyond one tick and the stalls that were logged.
    """
    flight_ns: int = FLIGHT_NS
    """Bytes sent so shortly before a reap may have crossed with it."""
    unmatched: float = UNMATCHED
    """Share of either side's connections that may lack a counterpart in a joined audit,
    before it proves nothing.
    """


@dataclass(slots=True)
class Audit:
    """The outcome: `summary` goes to JSON, `connections` is one row per connection of
    the server with its verdict.

    `result` is `fail` where the law was broken; `inconclusive` where it was not, as far
    as can be seen, and something that was asked for could not be judged; else `pass`.
    """

    summary: dict[str, Any]
    connections: DataFrame

    @property
    def passed(self) -> bool:
        """Whether the law was kept and everything could be judged."""
        return bool(self.summary["result"] == "pass")


def audit(
    spark: SparkSession,
    server: Inputs,
    client: Inputs | None,
    out: Place,
    settings: Settings,
    progress: Callable[[str], None] = lambda _: None,
) -> Audit:
    """Judge every connection in *server*'s files, with *client*'s evidence where there
    is some.

    Writes `connections/` below *out* (Parquet; grain: one row per connection; key:
    conn).
    """
    timeline = Timeline.of(server.runs + (client.runs if client else []))
    write = partial(
        written,
        listeners=dict.fromkeys(listeners_of(server)),
        runs={
            column: {run.name: run.index for run in side.runs}
            for column, side in (("run", server), ("c_run", client))
            if side is not None
        },
        target=out / "connections",
        grace_ns=settings.grace_ns,
    )
    ours = read(spark, server, timeline)
    known = silences(spark, ours, settings.grace_ns, progress)
    judged = judge(prepare(known, settings.grace_ns))
    joined: Joined | None = None
    if client is None:
        progress("judging every connection")
        connections = write(judged)
    else:
        theirs = read(spark, client, timeline)
        joined = join(
            spark,
            judged,
            ours,
            theirs,
            one_clock=timeline is Timeline.ONE_CLOCK,
            flight_ns=settings.flight_ns,
            write=write,
            progress=progress,
        )
        connections = joined.connections
    progress("summing up")
    excused_ns = (settings.grace_ns, settings.flight_ns)
    summary = sum_up(connections, server, client, joined, excused_ns)
    conclude(summary, server, client, joined, settings.unmatched)
    return Audit(summary, connections)


def silences(
    spark: SparkSession, side: Side, grace_ns: int, progress: Callable[[str], None]
) -> DataFrame:
    """The second step: the connections of *side*, with their silences beyond the
    timeout.

    The check of the files has seen how overdue the worst silence of each is, so that a
    journal that kept the law costs nothing here.
    """
    files = side.inputs.files
    least_ns = min((run.tick_ns for run in side.inputs.runs), default=0) + grace_ns
    overdue, unproven, shortest_ns = None, Stalls(), None
    suspects = overdue_files(files, least_ns)
    if unordered := unordered_files(files, least_ns):
        known = {facts.identity for facts in suspects}
        suspects += [facts for facts in unordered if facts.identity not in known]
        stated = (facts.least_ms for facts in unordered if facts.least_ms is not None)
        shortest_ns = min(stated) * 1_000_000 + least_ns
    if suspects:
        progress(
            f"looking for silences beyond their timeout in {len(suspects)} of {len(files)} file(s)"
        )
        rows = replace(side.inputs, files=suspects)
        overdue = overdue_rows(spark, rows, least_ns, shortest_ns)
        unproven = unproven_stalls(spark, side.inputs, side.stalls, side.runs)
    lives = with_silences(spark, side.lives, overdue, side.stalls, unproven, side.runs, grace_ns)
    return with_backed(spark, lives, side.stalls, grace_ns)


def written(
    judged: DataFrame, listeners: Names, runs: dict[str, Names], target: Place, grace_ns: int
) -> DataFrame:
    """*judged*, its time accounted for, as it reads back from *target*: the plan before
    it runs once, however often it is asked. *runs*: column -> names.

    Runs get the names that their files have; their numbers are this audit's own. `day`:
    of its end, or of its log's, UTC; null where its writer knew no wall clock.
    """
    over = F.coalesce("ended", "log_end_ns") + F.col("unix_ns")
    day = F.date_from_unix_date(F.floor(over / DAY_NS).cast("int"))
    named = account(judged, grace_ns).withColumn("day", day).drop(*NOT_KEPT)
    named = _named(named, "listener_hash", "listener", listeners).drop("listener_hash")
    for column, known in runs.items():
        if column in named.columns:
            numbered = named.withColumn(f"{column}_number", F.col(column)).drop(column)
            named = _named(numbered, f"{column}_number", column, known)
    frame: DataFrame = here().write_back(named, target)
    return frame


def _named(frame: DataFrame, number: str, column: str, names: Names) -> DataFrame:
    """*frame* with *column*: the text that *names* has for each value of *number*."""
    if len(names) > MOST_CASES:  # so many cases are more than Java compiles
        table = small_frame(frame.sparkSession, [(n, text) for text, n in names.items()], NAMES)
        known = table.select(
            F.coalesce("_number", F.xxhash64("_name")).alias("_number"),
            F.col("_name").alias(column),
        )
        joined = frame.join(F.broadcast(known), F.col(number) == F.col("_number"), "left")
        return joined.drop("_number")
    name = F.when(F.col(number).isNull(), None)  # a join would carry every column through it
    for text, each in names.items():
        # Either engine has worked out the hash of a text before it reads a row.
        value = F.xxhash64(F.lit(text)) if each is None else F.lit(each)
        name = name.when(F.col(number) == value, text)
    return frame.withColumn(column, name.cast("string"))


def conclude(
    summary: dict[str, Any],
    server: Inputs,
    client: Inputs | None,
    joined: Joined | None,
    unmatched: float,
) -> None:
    """The last step: give *summary* its `result`, and the `reasons` for it."""
    broken = _broken(summary)
    doubts = _doubts(summary, server, client)
    if client is not None and joined is not None:
        doubts += _unjoined(summary, server, client, joined, unmatched)
    summary["reasons"] = broken + doubts
    summary["result"] = "fail" if broken else "inconclusive" if doubts else "pass"


def _broken(summary: dict[str, Any]) -> list[str]:
    """The proven violations, in words."""
    verdicts = summary["verdicts"]
    reasons = [words.violated(name, verdicts[name]) for name in VIOLATIONS if verdicts[name]]
    if rows := summary["clock"]["backward_rows"]:
        reasons.append(words.ran_backwards(rows))
    return reasons


def _doubts(summary: dict[str, Any], server: Inputs, client: Inputs | None) -> list[str]:
    """What was asked for and could not be judged, in words."""
    reasons = []
    if quarantined := summary["files"]["quarantined"]:
        reasons.append(words.put_aside(quarantined))
    reasons += map(hole_line, summary["holes"])
    if unjudged := summary["rows_read"] - summary["rows"] - summary["rows_of_writers"]:
        reasons.append(words.judged_by_no_rule(unjudged))
    if dropped := summary["dropped_rows"]:
        reasons.append(words.dropped(dropped))
    if client is not None and client.dropped_rows:
        reasons.append(words.dropped_by_the_client(client.dropped_rows))
    reasons += map(line, summary["silent_servers"])
    skew = summary["clock"]["skew_s"]
    if skew is not None and not skew["consistent"] and not summary["clock"]["one_clock"]:
        reasons.append(words.STEPPED)
    if skew is not None and (skew["spread"] or 0.0) > summary["settings_s"]["flight"]:
        reasons.append(words.drifting(skew["spread"], summary["settings_s"]["flight"]))
    reasons += _unjudged(summary)
    reasons += map(nothing_line, server.nothing + (client.nothing if client else []))
    if not summary["connections"]:
        reasons.append(words.NO_CONNECTION)
    elif summary["verdicts"]["unknown"] == summary["connections"]:
        reasons.append(words.NONE_JUDGED)
    return reasons


def _unjudged(summary: dict[str, Any]) -> list[str]:
    """Why some time was not judged, the longest first."""
    unproven = summary["unproven"]
    doubted, silent = unproven["excused_by_busy_loops"], unproven["reaps_that_say_nothing"]
    # Of these more is known than their time.
    known = {
        "below_threshold": [words.hidden(**entry) for entry in unproven["hidden_silences"]],
        "busy_loop": [words.excused_by_a_busy_loop(doubted)] if doubted else [],
        "says_nothing": [words.reaps_that_say_nothing(silent)] if silent else [],
    }
    reasons: list[str] = []
    for name, entry in total(summary["accounted"])["unjudged"].items():
        time = words.unjudged(REASONS[name], entry["connections"], entry["ns"] / 1e9)
        reasons += known.pop(name, []) or [time]
    return reasons + [text for texts in known.values() for text in texts]


def _unjoined(
    summary: dict[str, Any], server: Inputs, client: Inputs, joined: Joined, allowed: float
) -> list[str]:
    """Why the client's log does not confirm the server's; empty if it does."""
    if not client.files:
        return [words.CLIENT_UNREAD]
    counts, connections = summary["joined"], summary["connections"]
    seen = joined.client_seen
    clockless = sum(not run.anchors for run in server.runs + client.runs)
    if not counts["pairs"]:
        return [words.nobody_paired(connections, seen, clockless, joined.far)]
    unproven, pairs, reasons = summary["unproven"], counts["pairs"], []
    if (neither := unproven["closed_by_neither"]) > allowed * pairs:
        reasons.append(words.closed_by_neither(neither, pairs))
    if (ended := unproven["ended_on_one_side"]) > allowed * pairs:
        reasons.append(words.ended_on_one_side(ended, pairs, allowed))
    if (apart := unproven["clocks_not_compared"]) > allowed * pairs:
        reasons.append(words.not_compared(apart, pairs))
    if counts["server_only"] > allowed * connections or counts["client_only"] > allowed * seen:
        reasons.append(words.too_few_paired(counts, connections, seen, allowed, clockless))
    return reasons
