"""The audit's fifth step: connections and their verdicts, summed up into what goes to
JSON.

Everything here is small: a row per run, listener, verdict and reason, a row per
listener, some offenders of each kind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ...journal.schema import UNNAMED
from ..engine import F, together
from ..read.inputs import Inputs
from ..read.runs import Stalls, Timeline
from .account import accounted, sums_of_time
from .joined import Joined
from .verdicts import VERDICTS, VIOLATIONS
from .words import QUANTILE_NAMES, story, where

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA = "reaper-audit/1"
QUANTILES = (0.0, 0.5, 0.9, 0.99, 0.999, 1.0)
OFFENDERS_PER_VERDICT = 20


def sum_up(
    connections: DataFrame,
    server: Inputs,
    client: Inputs | None,
    joined: Joined | None,
    excused_ns: tuple[int, int],
) -> dict[str, Any]:
    """Sum up *connections*: everything but the result and its reasons.

    Args:
        connections: As `run.written` returns them: one row per connection of the
            server.
        joined: What the join found; None: no client was asked for.
        excused_ns: The grace and the flight time that were excused.
    """
    is_joined = joined is not None
    cells, quantiles = together(
        lambda: _cells(connections, is_joined), lambda: _quantiles(connections, is_joined)
    )
    verdicts = dict.fromkeys(VERDICTS, 0)
    for cell in cells:
        verdicts[cell.verdict] += cell["count"]
    holes = _holes(cells, server)
    verdicts["lost"] += holes
    sides = [side for side in (server, client) if side is not None]
    grace_ns, flight_ns = excused_ns
    summary: dict[str, Any] = {
        "schema": SCHEMA,
        "connections": sum(cell["count"] for cell in cells),
        "rows": sum(cell.rows for cell in cells),
        "rows_of_writers": server.own_rows,
        "rows_read": server.rows,
        "verdicts": verdicts,
        "lost_without_a_row": holes,
        "averted": sum(cell.averts for cell in cells),
        "accounted": accounted(cells),
        "listeners": _lateness(cells, quantiles, is_joined),
        "files": {
            "read": sum(len(side.files) for side in sides),
            "growing": sum(side.growing for side in sides),
            "quarantined": [entry for side in sides for entry in side.quarantined],
        },
        "holes": [hole for side in sides for hole in side.holes],
        "dropped_rows": server.dropped_rows,
        "silent_servers": server.silent,
        "settings_s": {
            "tick": sorted({run.tick_ns / 1e9 for run in server.runs}),
            "grace": grace_ns / 1e9,
            "flight": flight_ns / 1e9,
        },
        "offenders": _offenders(connections, is_joined, verdicts, server),
    }
    timeline = Timeline.of([run for side in sides for run in side.runs])
    summary["clock"] = {
        "timeline": timeline.value,
        "one_clock": timeline is Timeline.ONE_CLOCK,
        "backward_rows": sum(cell.backward for cell in cells),
        "skew_s": None,
    }
    if joined is not None:
        skew = joined.skew
        summary["clock"]["skew_s"] = {
            **asdict(skew),
            "estimate": skew.estimate,
            "consistent": skew.consistent,
        }
        summary["joined"] = {
            "pairs": skew.pairs,
            "server_only": summary["connections"] - skew.pairs,
            "client_only": joined.client_only,
            "crossed": sum(cell.crossed for cell in cells),
        }
    summary["unproven"] = {
        "hidden_silences": _hidden(cells, server, grace_ns),
        "excused_by_busy_loops": sum(cell.doubted for cell in cells),
        "reaps_that_say_nothing": sum(cell.reaps_that_say_nothing for cell in cells),
        **{
            name: sum(cell[of] for cell in cells) if is_joined else 0
            for name, of in (
                ("closed_by_neither", "closed_by_neither"),
                ("ended_on_one_side", "one_end"),
                ("clocks_not_compared", "steps"),
            )
        },
    }
    if joined is not None and not joined.compared:
        summary["unproven"]["clocks_not_compared"] = summary["joined"]["pairs"]
    summary["stalls"] = _stalled([timeline.stalls(side.runs) for side in sides])
    return summary


def _hidden(cells: Sequence[Any], server: Inputs, grace_ns: int) -> list[dict[str, float]]:
    """Timeouts too short for the threshold of their run: a silence may have outlasted
    timeout, tick and grace, and yet have been too short to be written. One row per
    threshold, its least timeout.
    """
    runs = {run.index: run for run in server.runs}
    least: dict[float, float] = {}
    for cell in cells:
        run, timeout_ms = runs[cell.run_number], cell.hidden_timeout_ms
        if timeout_ms is None:
            continue
        if timeout_ms * 1_000_000 + run.tick_ns + grace_ns < run.gap_threshold_ns:
            threshold_s = run.gap_threshold_ns / 1e9
            least[threshold_s] = min(least.get(threshold_s, math.inf), timeout_ms / 1e3)
    return [{"threshold": each, "timeout": least[each]} for each in sorted(least)]


def _stalled(sides: Sequence[Stalls]) -> dict[str, Any]:
    """How often, and for how long, the loops of all *sides* stood still."""
    lengths = [to - since for side in sides for found in side.values() for since, to in found]
    return {"count": len(lengths), "total_s": sum(lengths) / 1e9}


def _cells(connections: DataFrame, joined: bool) -> list[Any]:
    """One row per run, verdict, listener and reason why time is unjudged: how many
    connections, rows and final checks, their time, and the least and most lateness.
    """
    aggregates = [
        F.count(F.lit(1)).alias("count"),
        *sums_of_time(),
        *(
            least_or_most(column).alias(f"{column}_{name}")
            for column in _latenesses(joined)
            for name, least_or_most in (("min", F.min), ("max", F.max))
        ),
        F.sum(F.least("reaps", F.lit(1))).alias("reaped"),
        F.sum("rows").alias("rows"),
        F.sum("backward").alias("backward"),
        F.sum("averts").alias("averts"),
        F.max("conn").alias("last_conn"),
        F.min("conn").alias("least_conn"),
        F.count(F.when(F.col("conn") >= F.col("first_opened"), 1)).alias("opened_here"),
    ]
    # Silences that were not written, in a journal that does not write short ones.
    unread = F.col("ended") - F.col("end_idle_ns") - F.col("opened") - F.col("end_idle_sum_ns")
    hidden = ~F.col("full") & (
        (F.col("ends") == 0) | (unread > 0) | (F.col("end_n") > F.col("activities"))
    )
    timeouts = [
        F.when(F.col(name) > 0, F.col(name))
        for name in ("open_timeout_ms", "last_timeout_ms", "end_timeout_ms")
    ]
    says_nothing = (
        (F.col("reaps") > 0) & F.col("end_timeout_ms").isNull() & F.col("due_ns").isNull()
    )
    aggregates += [
        F.min(F.when(hidden, F.least(*timeouts))).alias("hidden_timeout_ms"),
        F.count(F.when(says_nothing, 1)).alias("reaps_that_say_nothing"),
        F.sum("doubted").alias("doubted"),
    ]
    if joined:
        both_left = (F.col("by_peer") == 1) & F.col("c_by_server")
        aggregates += [
            F.count(F.when(F.col("crossed"), 1)).alias("crossed"),
            F.count(F.when(both_left, 1)).alias("closed_by_neither"),
            F.count(F.when(F.col("one_end"), 1)).alias("one_end"),
            F.count(F.when(F.col("c_conn").isNotNull() & F.col("steps"), 1)).alias("steps"),
        ]
    keys = ("run_number", "verdict", "listener", "unjudged")
    return connections.groupBy(*keys).agg(*aggregates).collect()


def _latenesses(joined: bool) -> list[str]:
    """The columns of lateness: as the server logged it, and as the client saw it."""
    return ["lateness_ns", *(["seen_lateness_ns"] if joined else [])]


def _quantiles(connections: DataFrame, joined: bool) -> dict[str | None, Any]:
    """Listener -> the quantiles of each lateness. A listener without one is missing."""
    columns = _latenesses(joined)
    late = F.coalesce(*columns).isNotNull()
    found = [F.percentile_approx(each, list(QUANTILES), 10_000).alias(each) for each in columns]
    rows = connections.where(late).groupBy("listener").agg(*found).collect()
    return {row.listener: row for row in rows}


def _lateness(
    cells: Sequence[Any], quantiles: dict[str | None, Any], joined: bool
) -> dict[str, Any]:
    """Per listener: connections, reaps, and lateness in seconds as the server logged it
    and as the client saw it.
    """
    listeners: dict[str | None, list[Any]] = {}
    for cell in cells:
        listeners.setdefault(cell.listener, []).append(cell)

    def shown(listener: str | None, column: str) -> dict[str, float] | None:
        found = quantiles[listener][column] if listener in quantiles else None
        if found is None:
            return None
        # The outermost of the approximate ones are exact here.
        late = [cell for cell in listeners[listener] if cell[f"{column}_min"] is not None]
        least = min(cell[f"{column}_min"] for cell in late)
        most = max(cell[f"{column}_max"] for cell in late)
        values = [least, *found[1:-1], most]
        return {name: value / 1e9 for name, value in zip(QUANTILE_NAMES, values, strict=True)}

    counts = {each: sum(cell["count"] for cell in mine) for each, mine in listeners.items()}
    result = {}
    for listener in sorted(counts, key=lambda each: (-counts[each], each or "")):
        entry = {
            "connections": counts[listener],
            "reaped": sum(cell.reaped for cell in listeners[listener]),
            "lateness_s": shown(listener, "lateness_ns"),
        }
        if joined:
            entry["seen_lateness_s"] = shown(listener, "seen_lateness_ns")
        result[listener or UNNAMED] = entry
    return result


def _holes(cells: Sequence[Any], server: Inputs) -> int:
    """How many connections left no row although their number was assigned.

    A run with a hole does not tell. If a run does not say with which number it began,
    or its oldest files are gone, it counts from the first connection opened in it.
    """
    holes = 0
    for run in server.runs:
        mine = [cell for cell in cells if cell.run_number == run.index]
        if run.holed or not mine:
            continue
        last = max(cell.last_conn for cell in mine)
        if run.whole and run.numbered:
            holes += max(0, last - run.first_conn - sum(cell["count"] for cell in mine))
        elif run.first_opened is not None:
            here = sum(cell.opened_here for cell in mine)
            holes += max(0, last - run.first_opened + 1 - here)
    return holes


def _offenders(
    connections: DataFrame, joined: bool, verdicts: dict[str, int], server: Inputs
) -> list[dict[str, Any]]:
    """The first of each kind of violation, with their stories."""
    machines = {facts.writer: facts.server for facts in server.files}
    runs = {run.index: run for run in server.runs}
    found = []
    for verdict in VIOLATIONS:
        if verdicts[verdict]:
            rows = (
                connections.where(F.col("verdict") == verdict)
                .orderBy("conn")
                .limit(OFFENDERS_PER_VERDICT)
                .collect()
            )
            found += [
                {
                    "verdict": verdict,
                    "conn": row.conn,
                    "where": where(row, runs[row.run_number], machines),
                    "story": story(row, joined),
                }
                for row in rows
            ]
    return found
