"""The audit: was every reap right? Verdicts per connection, lateness per listener, the offenders,
the clocks.

Two passes of Spark: one makes a row per connection and writes it, one sums those rows up. Files
with a silence beyond its timeout, which the check has seen, are looked through before. Everything
that leaves this module for a page or a table is small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ..engine import F, here, together
from ..places import Place
from ..read.expected import instant, line
from ..read.frames import lifetimes, listener_names, read_events, runs_frame, with_run
from ..read.inputs import Inputs, hole_line, nothing_line
from ..read.runs import Stalls, Timeline, overdue_files
from .joined import Skew, client_view, judge_pairs, measure_skew, pair, seen, without_peer
from .silences import excuse, overdue_rows, with_backed, with_silences
from .verdicts import FLIGHT_NS, GRACE_NS, UNMATCHED, VERDICTS, VIOLATIONS, judge, prepare

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "reaper-audit/1"
QUANTILES = (0.0, 0.5, 0.9, 0.99, 0.999, 1.0)
QUANTILE_NAMES = ("min", "p50", "p90", "p99", "p999", "max")
OFFENDERS_PER_VERDICT = 20
NEGLIGIBLE_SKEW_S = 0.005


@dataclass(frozen=True, slots=True)
class Settings:
    """What the auditor may choose. Nanoseconds."""

    grace_ns: int = GRACE_NS
    """Lateness beyond one tick, and beyond the stalls that were logged, that is not yet held
    against the reaper.
    """
    flight_ns: int = FLIGHT_NS
    """Bytes sent within so short a time before a reap may have crossed with it."""
    unmatched: float = UNMATCHED
    """Share of either side's connections that may lack a counterpart in a joined audit, before it
    proves nothing.
    """


@dataclass(slots=True)
class Audit:
    """The outcome: `summary` goes to JSON, `connections` is one row per connection of the server
    with its verdict.

    `result` is `fail` where the law was broken; `inconclusive` where it was not, as far as can be
    seen, and something that was asked for could not be judged; else `pass`.
    """

    summary: dict[str, Any]
    connections: DataFrame

    @property
    def passed(self) -> bool:
        """Whether nothing was violated and everything could be judged."""
        return bool(self.summary["result"] == "pass")


def audit(
    spark: SparkSession,
    server: Inputs,
    client: Inputs | None,
    out: Place,
    settings: Settings,
    progress: Callable[[str], None] = lambda _: None,
) -> Audit:
    """Judge every connection in *server*'s files, with *client*'s evidence where there is some.

    Writes `connections/` below *out* (Parquet; grain: one row per connection; key: conn).
    """
    timeline = Timeline.of(server.runs + (client.runs if client else []))
    one_clock = timeline is Timeline.ONE_CLOCK
    events = read_events(spark, server)
    stalls = timeline.stalls(server.runs)
    least = min((run.tick_ns for run in server.runs), default=0) + settings.grace_ns
    overdue = None
    if suspects := overdue_files(server.files, least):
        progress(
            f"looking for silences beyond their timeout in {len(suspects)} of {len(server.files)} file(s)"
        )
        overdue = overdue_rows(spark, suspects, least)
    runs = runs_frame(spark, server.runs, timeline)
    lives = with_run(lifetimes(events), runs)
    lives = with_silences(spark, lives, overdue, stalls, runs, settings.grace_ns)
    lives = with_backed(spark, lives, stalls, settings.grace_ns)
    prepared = prepare(lives, settings.grace_ns)
    c_stalls: Stalls = {}
    target, listeners = out / "connections", listener_names(spark, server)
    skew: Skew | None = None
    seen_by_client = unmatched = 0
    if client is None:
        progress("judging every connection")
        connections = _written(judge(prepared), listeners, target)
    else:
        c_stalls = timeline.stalls(client.runs)
        c_runs = runs_frame(spark, client.runs, timeline)
        c_lives = with_run(lifetimes(read_events(spark, client)), c_runs)
        view = client_view(without_peer(c_lives, timeline.apart(client.runs)))
        # Judged before the join: both in one method would be too long for Java to compile.
        paired = pair(without_peer(judge(prepared), timeline.apart(server.runs)), view)
        tolerance_ns = 1_000_000 if one_clock else settings.flight_ns

        def judge_by_both(skew_ns: int) -> DataFrame:
            theirs = {
                run: [(a + skew_ns, b + skew_ns) for a, b in found]
                for run, found in c_stalls.items()
            }
            excused = excuse(spark, seen(paired, skew_ns), stalls, theirs)
            both = judge_pairs(
                excused, skew_ns=skew_ns, flight_ns=settings.flight_ns, tolerance_ns=tolerance_ns
            )
            return _written(both, listeners, target)

        progress("joining both sides, judging every connection")
        connections, seen_by_client = together(
            partial(judge_by_both, 0), c_lives.where("opens > 0").count
        )
        skew = measure_skew(connections)
        if not one_clock and skew.estimate is not None and abs(skew.estimate) > NEGLIGIBLE_SKEW_S:
            progress(
                f"judging again with the clocks' skew of {skew.estimate * 1e3:+.1f} ms taken off"
            )
            connections = judge_by_both(round(skew.estimate * 1e9))
        matched = connections.where(F.col("c_conn").isNotNull()).select("c_conn")
        unmatched = seen_by_client - matched.distinct().count()
    progress("summing up")
    summary = _summarise(connections, server, client, settings)
    summary["clock"] = {
        "timeline": timeline.value,
        "one_clock": one_clock,
        "backward_rows": summary.pop("backward_rows"),
        "skew_s": None
        if skew is None
        else {**asdict(skew), "estimate": skew.estimate, "consistent": skew.consistent},
    }
    if client is not None and skew is not None:
        summary["joined"] = {
            "pairs": skew.pairs,
            "server_only": summary["connections"] - skew.pairs,
            "client_only": unmatched,
            "crossed": summary.pop("crossed"),
        }
    stalled = [stall for side in (stalls, c_stalls) for found in side.values() for stall in found]
    summary["stalls"] = {
        "count": len(stalled),
        "total_s": sum(to - since for since, to in stalled) / 1e9,
    }
    broken, doubts = (
        _broken(summary),
        _doubts(summary, server, client, seen_by_client, settings.unmatched),
    )
    summary["reasons"] = broken + doubts
    summary["result"] = "fail" if broken else "inconclusive" if doubts else "pass"
    return Audit(summary, connections)


def _written(judged: DataFrame, listeners: dict[int, str], target: Place) -> DataFrame:
    """*judged* as it reads back from *target*: the plan before it runs once, however often it is
    asked.
    """
    kept = judged.drop(
        "writer",
        "first_conn",
        "last_conn",
        "run_drained",
        "run_holed",
        "from",
        "to",
        "over",
        "leaking",
    )
    name = F.when(
        F.col("listener_hash").isNull(), None
    )  # not a join, which would carry every column through it
    for number, text in listeners.items():
        name = name.when(F.col("listener_hash") == number, text)
    named = kept.withColumn("listener", name.cast("string")).drop("listener_hash")
    frame: DataFrame = here().write_back(named, target)
    return frame


def _summarise(
    connections: DataFrame, server: Inputs, client: Inputs | None, settings: Settings
) -> dict[str, Any]:
    joined = client is not None
    aggregates = [
        F.count(F.lit(1)).alias("count"),
        F.sum("rows").alias("rows"),
        F.sum("backward").alias("backward"),
        F.sum("averts").alias("averts"),
        F.max("conn").alias("last_conn"),
    ]
    if joined:
        aggregates.append(F.count(F.when(F.col("crossed"), 1)).alias("crossed"))
    cells, lateness = together(
        connections.groupBy("run", "verdict").agg(*aggregates).collect,
        lambda: _lateness(connections, joined),
    )
    verdicts = dict.fromkeys(VERDICTS, 0)
    for cell in cells:
        verdicts[cell.verdict] += cell["count"]
    holes = _holes(cells, server)
    verdicts["lost"] += holes
    sides = [side for side in (server, client) if side is not None]
    summary: dict[str, Any] = {
        "schema": SCHEMA,
        "connections": sum(cell["count"] for cell in cells),
        "rows": sum(cell.rows for cell in cells),
        "rows_of_writers": server.own_rows,
        "rows_read": server.rows,
        "verdicts": verdicts,
        "lost_without_a_row": holes,
        "averted": sum(cell.averts for cell in cells),
        "listeners": lateness,
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
            "grace": settings.grace_ns / 1e9,
            "flight": settings.flight_ns / 1e9,
        },
        "offenders": _offenders(connections, joined, verdicts, server),
        "backward_rows": sum(cell.backward for cell in cells),
    }
    if joined:
        summary["crossed"] = sum(cell.crossed for cell in cells)
    return summary


def _lateness(connections: DataFrame, joined: bool) -> dict[str, Any]:
    """Per listener: connections, reaps, and lateness in seconds as the server logged it and as the
    client saw it.
    """
    columns = ["lateness_ns", *(["seen_lateness_ns"] if joined else [])]
    quantiles = [
        F.percentile_approx(column, list(QUANTILES), 10_000).alias(column) for column in columns
    ]
    exact = [
        least_or_most(column).alias(f"{column}_{name}")
        for column in columns
        for name, least_or_most in (("min", F.min), ("max", F.max))
    ]
    rows = (
        connections.groupBy("listener")
        .agg(
            F.count(F.lit(1)).alias("n"),
            F.sum(F.least("reaps", F.lit(1))).alias("reaped"),
            *quantiles,
            *exact,
        )
        .collect()
    )

    def shown(row: Any, column: str) -> dict[str, float] | None:
        if row[column] is None:
            return None
        values = [row[f"{column}_min"], *row[column][1:-1], row[f"{column}_max"]]
        return {name: value / 1e9 for name, value in zip(QUANTILE_NAMES, values, strict=True)}

    result = {}
    for row in sorted(rows, key=lambda row: (-row.n, row.listener or "")):
        entry = {
            "connections": row.n,
            "reaped": row.reaped,
            "lateness_s": shown(row, "lateness_ns"),
        }
        if joined:
            entry["seen_lateness_s"] = shown(row, "seen_lateness_ns")
        result[row.listener or "(none)"] = entry
    return result


def _holes(cells: Sequence[Any], server: Inputs) -> int:
    """Connections without a row of theirs, although their number was assigned: only in whole runs."""
    holes = 0
    for run in server.runs:
        if run.whole and (mine := [cell for cell in cells if cell.run == run.index]):
            assigned = max(cell.last_conn for cell in mine) - run.first_conn
            holes += max(0, assigned - sum(cell["count"] for cell in mine))
    return holes


def _offenders(
    connections: DataFrame, joined: bool, verdicts: dict[str, int], server: Inputs
) -> list[dict[str, Any]]:
    machines = {facts.writer: facts.server for facts in server.files}
    runs = {run.index: run for run in server.runs}

    def where(row: Any) -> str:
        """Which server, and when: the journal has a hash of the addresses, and no address."""
        run = runs[row.run]
        began = row.opened if row.opened is not None else row.last_t
        at = f", {instant(began + Timeline.UNIX.offset_ns(run))}" if run.anchors else ""
        return f"server {machines.get(run.writer) or 'without a name'}{at}"

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
                    "where": where(row),
                    "story": _story(row, joined),
                }
                for row in rows
            ]
    return found


def _story(row: Any, joined: bool) -> str:
    """What happened to one connection, in words; times count from its opening."""
    start = row.opened if row.opened is not None else row.last_t

    def at(t: int | None) -> str:
        return "never" if t is None else f"at {(t - start) / 1e9:+.3f} s"

    timeout = row.end_timeout_ms if row.end_timeout_ms is not None else row.open_timeout_ms
    parts = [
        f"on {row.listener or 'no listener'}",
        f"timeout {timeout / 1e3:g} s" if timeout else "no idle timeout",
        f"{row.opens} opening(s), {row.activities} logged silence(s), last {at(row.last_activity)}",
    ]
    if row.ends:
        how = (
            "reaped"
            if row.reaps
            else "closed by its peer"
            if row.by_peer
            else "closed by the program"
        )
        parts.append(f"{how} {at(row.ended)} after {(row.end_idle_ns or 0) / 1e9:.3f} s of silence")
        if row.due_ns is not None:
            parts.append(f"due {at(row.due_ns)}")
        if row.ends > 1:
            parts.append(f"{row.ends} ends")
    else:
        parts.append("no end")
    if row.came_back:
        parts.append(
            f"active again {at(row.missed_t)}, {row.missed_ns / 1e9:.3f} s after it was due"
        )
    if joined and row.c_conn is not None:
        last, ended = (
            row.c_last - row.offset_ns,
            None if row.c_ended is None else row.c_ended - row.offset_ns,
        )
        parts.append(
            f"client: last byte {at(last)}, end {at(ended)}{' by the server' if row.c_by_server else ''}"
        )
    return "; ".join(parts)


def _broken(summary: dict[str, Any]) -> list[str]:
    """What is proven to be wrong."""
    verdicts = summary["verdicts"]
    reasons = [
        f"{verdicts[name]} {name}: {VERDICTS[name]}" for name in VIOLATIONS if verdicts[name]
    ]
    if rows := summary["clock"]["backward_rows"]:
        reasons.append(f"{rows} row(s) in which a monotonic clock ran backwards")
    return reasons


def _doubts(
    summary: dict[str, Any],
    server: Inputs,
    client: Inputs | None,
    seen_by_client: int,
    allowed: float,
) -> list[str]:
    """What was asked for and could not be judged."""
    reasons = []
    if quarantined := summary["files"]["quarantined"]:
        reasons.append(
            f"{len(quarantined)} file(s) put aside: {quarantined[0]['path']}: {quarantined[0]['reason']}"
        )
    reasons += map(hole_line, summary["holes"])
    if unjudged := summary["rows_read"] - summary["rows"] - summary["rows_of_writers"]:
        reasons.append(
            f"{unjudged} row(s) were judged by no rule: they belong to no run of a writer that is known"
        )
    if dropped := summary["dropped_rows"]:
        reasons.append(f"{dropped} row(s) that the writers dropped: the journal is not whole")
    reasons += map(line, summary["silent_servers"])
    skew = summary["clock"]["skew_s"]
    if skew is not None and not skew["consistent"] and not summary["clock"]["one_clock"]:
        reasons.append("the two sides' clocks cannot be reconciled: a clock was stepped")
    reasons += map(nothing_line, server.nothing + (client.nothing if client else []))
    if not summary["connections"]:
        reasons.append("no connection was found: nothing is proven")
    elif summary["verdicts"]["unknown"] == summary["connections"]:
        reasons.append("no connection could be judged: nothing is proven")
    if client is not None and (
        unjoined := _unjoined(summary, server, client, seen_by_client, allowed)
    ):
        reasons.append(unjoined)
    return reasons


def _unjoined(
    summary: dict[str, Any], server: Inputs, client: Inputs, seen_by_client: int, allowed: float
) -> str | None:
    """Why the client's log does not confirm the server's, where it does not."""
    joined, connections = summary["joined"], summary["connections"]
    alone, c_alone = joined["server_only"], joined["client_only"]
    if not client.files:
        return "the client's log was asked for, and none of its files could be read: one side alone was judged"
    apart = sum(not run.anchors for run in server.runs + client.runs)
    clockless = (
        f"; {apart} run(s) have no anchors, so their instants cannot be compared" if apart else ""
    )
    if not joined["pairs"]:
        return (
            f"none of the client's {seen_by_client} connection(s) is among the server's {connections}: it is another "
            "server's client, or an address translator or balancer lies between them. No two logs can be joined across "
            f"one: it gives connections other addresses, and nothing else tells them apart{clockless}"
        )
    if alone > allowed * connections or c_alone > allowed * seen_by_client:
        return (
            f"{alone} of the server's {connections} connection(s) and {c_alone} of the client's {seen_by_client} have "
            f"no counterpart, more than {allowed:.3g} of them (--unmatched): one side alone was judged{clockless}"
        )
    return None


def as_text(summary: dict[str, Any]) -> str:
    """The audit as a table to read."""
    total = summary["connections"] + summary["lost_without_a_row"]
    rows = (
        f"{summary['rows_read']:,} rows read: {summary['rows']:,} of connections judged, "
        f"{summary['rows_of_writers']:,} of the writers themselves"
    )
    lines = [f"audit: {summary['result'].upper()}   {summary['connections']:,} connections; {rows}"]
    lines += [f"  - {reason}" for reason in summary["reasons"]]
    lines.append("")
    lines.append(f"{'verdict':<20}{'connections':>12}  {'share':>8}  meaning")
    for name, count in summary["verdicts"].items():
        if count or name in VIOLATIONS:
            share = count / total if total else 0.0
            lines.append(f"{name:<20}{count:>12,}  {share:>8.3%}  {VERDICTS[name]}")
    lines.append("")
    lines.append(
        f"{'lateness, s':<26}{'reaped':>10}" + "".join(f"{name:>9}" for name in QUANTILE_NAMES)
    )
    for listener, entry in summary["listeners"].items():
        for label, key in (("", "lateness_s"), (", as the client saw it", "seen_lateness_s")):
            if values := entry.get(key):
                cells = "".join(f"{values[name]:>9.3f}" for name in QUANTILE_NAMES)
                lines.append(f"{listener + label:<26}{entry['reaped']:>10,}{cells}")
    if joined := summary.get("joined"):
        skew = summary["clock"]["skew_s"]
        estimate = (
            "no evidence" if skew["estimate"] is None else f"{skew['estimate'] * 1e3:+.2f} ms"
        )
        if summary["clock"]["one_clock"]:
            estimate = "none: both read it"
        lines.append("")
        lines.append(
            f"joined: {joined['pairs']:,} pairs, {joined['server_only']:,} server only, {joined['client_only']:,} "
            f"client only, {joined['crossed']:,} crossed; clocks: {summary['clock']['timeline']}, skew {estimate}"
        )
    for offender in summary["offenders"]:
        lines.append(
            f"  {offender['verdict']} {offender['conn']} ({offender['where']}): {offender['story']}"
        )
    return "\n".join(lines)
