"""The advice: which idle timeout, tick and wheel size this traffic wants, and what
every other choice would cost.

Spark counts silences into buckets of 1 % and connections into bins of time; the
statistics run on those few rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ...config.balancers import BALANCERS
from ...config.durations import format_duration
from ...config.lint import shortest_timeout, tick_for
from ...config.settings import ReaperConfig
from ...errors import printable
from ...html.units import spoken
from ...journal.schema import UNNAMED
from ..arguments import aside_lines
from ..engine import F
from ..places import Place
from ..read.expected import line
from ..read.frames import listener_names, read_events
from ..read.inputs import Inputs, hole_line, nothing_line
from .access_logs import (
    FORMATS,
    Requests,
    expected_line,
    put_back,
    read_requests,
    silences,
)
from .survival import LEAST_FREEDOM, Curve, Cut, Z, kaplan_meier
from .tables import TABLE, Table, read_uses
from .traffic import (
    Lives,
    Wanted,
    connections,
    histogram,
    lives_of_journal,
    lives_of_requests,
    silences_of_journal,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "reaper-advice/1"
FAR_MORE, MANY = 100, 0.5
"""If so many times more silences than may be cut, or this share of all, outlasted the
log, it does not show what they are: dead peers, or heartbeats a little slower than the
timeout.
"""

TIMES = 4
"""If they were followed for so many times the answer, and none ended, they are dead
peers after all.
"""

NEAR = 0.1
"""If the answer is this close to the longest silence that was followed, the true one
may be longer: the timeout cut it.
"""

POINTS = 300
"""How many points of a curve are kept; the first and the last always are."""

ENOUGH = 10
"""So many silences beyond a timeout are enough to estimate their share."""

ALIKE = 2.0
"""If silences tell less than independent ones by this factor, the answer says how they
lie among connections.
"""

BUSY = 0.1
"""If one connection has this share of the silences, the answer says so."""

WHEEL_SIZE: int = ReaperConfig().reaper.wheel_size
"""Always the default: another size changes the processor time of long timeouts a
little, and never the accuracy.
"""

BESIDE = shortest_timeout(ReaperConfig())[1]
"""The shortest timeout in force beside the advised one, unless it is set: `reaper
check` judges a tick by it.
"""

MARGIN_S = 5.0
"""By how much a timeout must outlast a load balancer's: a request and an idle close
must not cross on the way.
"""


@dataclass(frozen=True, slots=True)
class Policy:
    """What a user asks of a timeout."""

    max_cut: float = 0.001
    """Of the silences that the log saw end, the largest share that the advised timeout
    may cut: 0.001 is one in a thousand.
    """
    behind: str | None = None
    """A load balancer, one of `BALANCERS`."""


AccessLogs = tuple[str, Sequence[Place], int | None]
"""A format, files in it, and the timeout in force when they were written, ns; None:
`DEFAULT_TIMEOUT_NS`, and of a table none.
"""

DEFAULT_TIMEOUT_NS = 75 * 10**9

NEVER_NS = 1 << 61
"""Longer than any log: no timeout was in force."""

OVERLAPS = 0.05
"""If more of the requests in columns begin before the one before them has ended, their
lengths are not in seconds.
"""


@dataclass(slots=True)
class _Asked:
    """What is asked: silences, lives, and what is known of where they come from."""

    source: str
    rows: DataFrame
    lives: Callable[[Wanted], Lives]
    named: dict[int, str]
    read: int
    own: int
    tick: float
    threshold: float = 0.0
    apart: int = 0
    tells_ends: bool = True
    """Whether it tells when a connection was closed."""
    http: bool = False
    """Whether all of it is HTTP."""
    notes: list[str] = field(default_factory=list)
    quarantined: list[dict[str, str]] = field(default_factory=list)


def _of_journal(spark: SparkSession, inputs: Inputs) -> _Asked:
    events = read_events(spark, inputs)
    return _Asked(
        "journal",
        silences_of_journal(events),
        partial(lives_of_journal, spark, events, inputs),
        listener_names(spark, inputs),
        inputs.rows,
        inputs.own_rows,
        max((run.tick_ns for run in inputs.runs), default=10**9) / 1e9,
        max((run.gap_threshold_ns for run in inputs.runs), default=0) / 1e9,
    )


def _of_logs(spark: SparkSession, logs: AccessLogs) -> _Asked:
    name, paths, timeout_ns = logs
    requests = read_requests(spark, name, paths)
    where = ", ".join(map(str, paths))
    asked = _of_requests(name, requests, timeout_ns, where)
    if requests.bad:
        reason = (
            f"{requests.bad} of {requests.lines} line(s) are not in {name} format: "
            f"{'; '.join(requests.examples)}"
        )
        if requests.others:
            reason += f" (they are, as {' or '.join(requests.others)})"
        reason += f"; {expected_line(name)}{requests.stranger}"
        asked.quarantined.append({"path": where, "reason": reason})
    asked.quarantined += put_back(name, paths)
    if requests.own:
        asked.notes.insert(
            0, f"{requests.own} line(s) are reports of the server about itself, and no requests"
        )
    return asked


def _of_table(spark: SparkSession, table: Table, timeout_ns: int | None) -> _Asked:
    uses = read_uses(spark, table)
    where = ", ".join(map(str, table.paths)) or TABLE
    asked = _of_requests(TABLE, uses, timeout_ns, where)
    if uses.bad:
        reason = (
            f"{uses.bad} of {uses.lines} row(s) have no key, no instant, or end before they begin: "
            f"{'; '.join(uses.examples)}"
        )
        asked.quarantined.append({"path": where, "reason": reason})
    return asked


def _of_requests(source: str, requests: Requests, timeout_ns: int | None, where: str) -> _Asked:
    """*timeout_ns*: see `AccessLogs`."""
    if timeout_ns is None:
        timeout_ns = NEVER_NS if requests.tabled else DEFAULT_TIMEOUT_NS
    gaps = silences(requests.frame, timeout_ns).persist()
    told = F.xxhash64("listener"), "listener", F.count(F.when(F.col("overlaps"), 1)).alias("n")
    counted = gaps.groupBy(told[0].alias("hash"), "listener").agg(told[2]).collect()
    asked = _Asked(
        source,
        gaps.withColumn("listener_hash", F.xxhash64("listener")),
        partial(lives_of_requests, gaps),
        {row.hash: row.listener for row in counted},
        requests.lines,
        requests.own,
        1.0 if requests.tabled else tick_for(timeout_ns / 1e9),
        apart=requests.bad,
        tells_ends=False,
        http=not requests.tabled,
    )
    blind = KEYS_END if requests.tabled else FORMATS[source].blind
    asked.notes.append(f"{source} logs do not show {blind}")
    judged = max(requests.lines - requests.own - requests.bad, 1)
    if overlaps := sum(row.n for row in counted) / judged:
        text = (
            f"{overlaps:.1%} of the requests begin before the one before them on their connection "
            "has ended"
        )
        if source == "columns" and overlaps > OVERLAPS:
            reason = f"{text}: are the lengths in seconds? Nothing is advised from them"
            asked.quarantined.append({"path": where, "reason": reason})
        else:
            asked.notes.append(text)
    return asked


KEYS_END = (
    "when a key was given up, or by whom: the last silence of each is taken to have gone on to the "
    "end of the table"
)
"""What a table cannot show."""


def advise(
    spark: SparkSession,
    inputs: Inputs,
    logs: AccessLogs | None,
    policy: Policy,
    progress: Callable[[str], None] = lambda _: None,
    table: tuple[Table, int | None] | None = None,
) -> dict[str, Any]:
    """Learn from the journals of *inputs*, from *logs*, or from *table* with the
    timeout that was in force, ns; returns what goes to JSON.
    """
    lacking = inputs.lacking()
    quarantined: list[dict[str, str]] = lacking["quarantined"]
    asked = (
        _of_table(spark, *table)
        if table is not None
        else _of_journal(spark, inputs)
        if logs is None
        else _of_logs(spark, logs)
    )
    notes, threshold = asked.notes, asked.threshold
    quarantined += asked.quarantined
    progress("counting silences, weighing candidate timeouts")
    # The curve first: it says which candidates matter.
    buckets, lengths = histogram(asked.rows)
    wanted = Wanted.of(buckets, threshold, lengths)
    traffic = connections(asked.lives(wanted))
    running = max((edge for each in traffic.running.values() for edge in each), default=0.0)
    if not wanted.reaches(running):  # a silence that still runs is the longest of all
        longer = Wanted.candidates_for(running, threshold)
        traffic = connections(asked.lives(replace(wanted, candidates=longer)))
    if traffic.headless:
        notes.append(
            f"{traffic.headless} connection(s) began before the log: their silences count, their "
            "lives do not"
        )
    if lost := asked.read - traffic.rows - asked.own - asked.apart:
        reason = (
            f"{lost} row(s) were judged by no rule: they belong to no run of a writer that is known"
        )
        quarantined.append(
            {"path": ", ".join(str(facts.path) for facts in inputs.files[:3]), "reason": reason}
        )
    notes += notes_of_inputs(inputs)
    if threshold:
        notes.append(
            f"silences up to {spoken(threshold)} were not written one by one: no timeout shorter than that "
            "is judged, and where they were not counted either, shares are of the longer ones"
        )
    listeners = {}
    for key in [*buckets, *(key for key in traffic.running if key not in buckets)]:
        facts = traffic.listeners.get(key)
        if facts is None:
            continue
        counts = buckets.get(key, {})
        for edge, silent in traffic.running.get(key, {}).items():
            ended, censored = counts.get(edge, (0, 0))
            counts[edge] = (ended, censored + silent)
        if facts["short"]:
            edge = max(threshold, 1e-6)
            counts[edge] = (
                counts.get(edge, (0, 0))[0] + facts["short"],
                counts.get(edge, (0, 0))[1],
            )
        curve = kaplan_meier(
            ((edge, ended, censored) for edge, (ended, censored) in counts.items()),
            traffic.spread.get(key),
        )
        entry = _listener(
            *(curve, facts, policy, traffic.span_s, threshold, asked.tick),
            candidates=traffic.candidates,
            tells_ends=asked.tells_ends,
        )
        listeners[asked.named.get(key, UNNAMED)] = entry
    summary: dict[str, Any] = {
        "schema": SCHEMA,
        "source": asked.source,
        "policy": {"max_cut": policy.max_cut, "behind": policy.behind},
        "observed_s": traffic.span_s,
        "rows_read": asked.read,
        "rows_judged": traffic.rows,
        "rows_of_writers": asked.own,
        "rows_apart": asked.apart,
        "connections_without_opening": traffic.headless,
        "listeners": dict(sorted(listeners.items(), key=lambda item: -item[1]["silences"])),
        **lacking,
        "notes": notes,
    }
    # Wherever input is missing no file is written that a server would obey.
    missing = any(lacking.values())
    summary["config"] = {} if missing else _config(summary["listeners"], http=asked.http)
    summary["result"] = "pass" if summary["config"] else "inconclusive"
    return summary


def notes_of_inputs(inputs: Inputs) -> list[str]:
    """Notes on the files that were read, for every question but the audit's."""
    notes = [*map(nothing_line, inputs.nothing), *map(hole_line, inputs.holes)]
    if inputs.dropped_rows:
        notes.append(
            f"the writers dropped {inputs.dropped_rows} row(s): figures are of what is left"
        )
    return notes


def _listener(
    curve: Curve,
    facts: dict[str, Any],
    policy: Policy,
    span_s: float,
    threshold: float,
    tick_s: float,
    *,
    candidates: Sequence[float],
    tells_ends: bool,
) -> dict[str, Any]:
    total = facts["connections"]
    trade_off: list[dict[str, Any]] = []
    for i, candidate in enumerate(candidates):
        if candidate < threshold or (trade_off and trade_off[-1]["beyond_what_was_seen"]):
            continue  # below: not in the log; above: one row that says so is enough
        estimate, low, high = curve.cut(candidate)
        trade_off.append(
            {
                "timeout_s": candidate,
                "silences_cut": estimate,
                "silences_cut_interval": [low, high],
                "connections_cut": facts["cut"][i] / total if total else 0.0,
                "held_s_per_silence": curve.held(candidate),
                "idle_connection_seconds": curve.held(candidate) * curve.total,
                "mean_open": facts["mean"][i],
                "peak_open": facts["peak"][i],
                "beyond_what_was_seen": candidate > curve.horizon,
            }
        )
    recommendation = _recommend(curve, policy, threshold, tick_s, span_s, tells_ends=tells_ends)
    if (found := curve.spread.survivors()) is not None:
        recommendation["because"] = [*recommendation["because"], _survivors(found)]
    timeout = recommendation["timeout_s"]
    if timeout is not None:
        recommendation |= {"tick_s": tick_for(min(timeout, BESIDE)), "wheel_size": WHEEL_SIZE}
    points = list(zip(curve.times, curve.survival, strict=True))
    if len(points) > POINTS:
        points = [points[round(i * (len(points) - 1) / (POINTS - 1))] for i in range(POINTS)]
    return {
        "connections": total,
        "silences": curve.total,
        "silences_ended": curve.events,
        "longest_seen_s": curve.followed,
        "followed_s": curve.horizon,
        "busiest_connection": curve.spread.busiest,
        "never_ended_in_sight": curve.at(curve.horizon),
        "recommendation": recommendation,
        "trade_off": trade_off,
        "survival": [[time, level, *curve.interval(time)] for time, level in points],
    }


def _recommend(
    curve: Curve,
    policy: Policy,
    threshold: float,
    tick_s: float = 1.0,
    span_s: float = 0.0,
    *,
    tells_ends: bool = True,
) -> dict[str, Any]:
    """The shortest timeout that keeps the policy at the careful end of its interval,
    then the load balancer's rule.

    Where the silences that ended reach up to where others were cut, and more were cut
    than may be, or where far more were, the answer lies beyond: `timeout_s` is null,
    and `at_least_s` is what is known.
    """
    point, careful = curve.shortest(policy.max_cut), curve.shortest(policy.max_cut, which=2)
    optimistic = curve.shortest(policy.max_cut, which=1)
    allowed, seen = f"{policy.max_cut:.2%}", f"{spoken(curve.horizon)} that were seen"
    because = [
        f"shortest timeout that cuts at most {allowed} of the silences that end within the {seen}"
    ]
    if not curve.events:
        because = ["no silence that ended was seen: the log says nothing about how long they last"]
        return _unsure(None, because)
    outlived = curve.at(curve.horizon)
    chosen = curve.horizon if careful is None else careful
    near = chosen > curve.horizon - max(2 * tick_s, NEAR * curve.horizon)
    far_more = outlived > min(FAR_MORE * policy.max_cut, MANY) and chosen > curve.horizon / TIMES
    if outlived > policy.max_cut and (near or far_more):
        hours = max(1, math.ceil(span_s / 3600 * ENOUGH / policy.max_cut / curve.total))
        longer = spoken(max(4 * curve.followed, 60.0))
        because = [
            (
                f"{outlived:.1%} of the silences lasted longer than the {seen}: how long they "
                f"would have lasted is not in the log, and {allowed} may be cut"
                if tells_ends
                else f"{_no_request(outlived)}, and the timeout in force was taken to be "
                f"{spoken(curve.followed)}"
            ),
            (
                f"this log cannot say more: log with a timeout of {longer} for "
                f"{spoken(hours * 3600.0)} to know"
                + ("" if tells_ends else "; if the timeout was longer, say so with --timeout")
            ),
        ]
        return _unsure(curve.horizon, because)
    if careful is None:
        return _unsure(optimistic if point is not None else curve.horizon, _too_few(curve, policy))
    if outlived > policy.max_cut:
        because.append(
            f"{outlived:.1%} of the silences outlasted everything that was seen: dead peers, or "
            "longer than any timeout that was in force; the log cannot tell which, only a longer "
            "timeout on a few servers can"
            if tells_ends
            else _no_request(outlived)
        )
    step = 1.0 if chosen <= 60 else 5.0  # whole seconds, and multiples of five beyond a minute
    timeout = max(math.ceil(chosen / step) * step, math.ceil(threshold), 1.0)
    if policy.behind is not None:
        balancer = BALANCERS[policy.behind]
        if balancer.tells and timeout < balancer.idle + MARGIN_S:
            timeout = balancer.idle + MARGIN_S
            because.append(
                f"raised: {balancer.title} keeps connections {balancer.idle:g} s and must be first "
                "to close"
            )
        elif not balancer.tells and timeout > balancer.idle - MARGIN_S:
            timeout = balancer.idle - MARGIN_S
            because.append(
                f"lowered: {balancer.title} forgets connections silently after {balancer.idle:g} s"
            )
    if (
        optimistic is not None and optimistic == careful
    ):  # both ends in one bucket: the truth is within it
        optimistic = max((time for time in curve.times if time < optimistic), default=0.0)
    return {
        "timeout_s": timeout,
        "at_least_s": None,
        "interval_s": [optimistic, careful],
        "because": because,
    }


def _survivors(found: Cut) -> str:
    """That the interval is of those that no timeout cut."""
    (n, a), (m, b) = found.cut, found.others
    return (
        f"clients that were cut had longer silences before: {a / n:.1%} beyond "
        f"{spoken(found.seconds)}, and {b / m:.1%} of the others': the interval describes those "
        "that were not cut, and more may be cut than it says"
    )


def _unsure(at_least_s: float | None, because: list[str]) -> dict[str, Any]:
    """Make an answer without a recommendation: what is known, and why not more."""
    nothing = {"timeout_s": None, "interval_s": [None, None]}
    return {**nothing, "at_least_s": at_least_s, "because": because}


def _no_request(share: float) -> str:
    """Say that an access log does not show how *share* of its silences ended."""
    return (
        f"after {share:.1%} of the silences no request followed: an access log has no line for a "
        "close, and does not tell how long those lasted"
    )


def _too_few(curve: Curve, policy: Policy) -> list[str]:
    """Why the log has too few silences to be sure of its answer."""
    effect, freedom = curve.spread.effect(curve.horizon)
    allowed, wanted = f"{policy.max_cut:.2%}", Z * Z / policy.max_cut
    most = math.ceil(wanted * max(effect, 1.0))
    because = [
        (
            f"{curve.events:,} silences that ended are too few to be 95 % sure that at most "
            f"{allowed} are cut: it takes {most:,} or more"
        )
    ]
    if effect > ALIKE or freedom < LEAST_FREEDOM:
        because.append(
            f"they count by their connections, and one of those has {curve.spread.busiest:.0%}: "
            "silences of one client say little of the others"
        )
    return because


def _config(listeners: dict[str, Any], *, http: bool) -> dict[str, Any]:
    """One timeout for each key of reaper.toml: the longest that any of its listeners
    wants. Empty if the log cannot say what one of them wants.
    """
    if any(entry["recommendation"]["at_least_s"] is not None for entry in listeners.values()):
        return {}
    keys: dict[str, tuple[float, str]] = {}
    for name, entry in listeners.items():
        timeout = entry["recommendation"]["timeout_s"]
        if timeout is not None:
            key = "keep_alive" if http or "http" in name.lower() else "idle"
            keys[key] = max(keys.get(key, (0.0, "")), (timeout, name))
    if not keys:
        return {}
    tick = tick_for(min(BESIDE, *(timeout for timeout, _ in keys.values())))
    timeouts = {
        key: {"timeout_s": timeout, "listener": name}
        for key, (timeout, name) in sorted(keys.items())
    }
    return {"tick_s": tick, "wheel_size": WHEEL_SIZE, "timeouts": timeouts}


def as_text(summary: dict[str, Any]) -> str:
    """The advice as tables to read."""
    rows = f"{summary['rows_judged']:,} of {summary['rows_read']:,} rows judged"
    if summary["rows_of_writers"] or summary["rows_apart"]:
        rows += (
            f", {summary['rows_of_writers']:,} of the writers themselves, "
            f"{summary['rows_apart']:,} set apart"
        )
    things = "keys" if summary["source"] == TABLE else "connections"
    lines = [f"advice from {summary['source']}: {spoken(summary['observed_s'])} observed; {rows}"]
    lines += [f"  note: {note}" for note in summary["notes"]]
    lines += [f"  {text}" for text in aside_lines(summary["quarantined"])]
    lines += [f"  {line(entry)}" for entry in summary["silent_servers"]]
    if not summary["listeners"]:
        lines.append("nothing to learn from: no silence was found")
    for name, entry in summary["listeners"].items():
        lines.append("")
        lines.append(
            f"{name}: {entry['connections']:,} {things}, {entry['silences']:,} silences"
            + _busiest(entry)
        )
        lines.append(
            f"{'timeout':>9}{'silences cut':>14}{'95 % interval':>20}"
            f"{'conns cut':>11}{'peak':>9}{'mean':>9}"
        )
        for row in entry["trade_off"]:
            low, high = row["silences_cut_interval"]
            mark = " beyond what was seen" if row["beyond_what_was_seen"] else ""
            lines.append(
                f"{spoken(row['timeout_s']):>9}{row['silences_cut']:>14.3%}"
                f"{low:>10.3%}{high:>10.3%}"
                f"{row['connections_cut']:>11.3%}{row['peak_open']:>9,}"
                f"{row['mean_open']:>9,.0f}{mark}"
            )
        advice = entry["recommendation"]
        if advice["at_least_s"] is not None:
            lines.append(f"  at least {spoken(advice['at_least_s'])}")
        elif advice["timeout_s"] is None:
            lines.append("  no recommendation")
        else:
            low, high = (spoken(end) if end is not None else "?" for end in advice["interval_s"])
            lines.append(
                f"  recommended: {spoken(advice['timeout_s'])} (95 %: {low} to {high}), tick "
                f"{spoken(advice['tick_s'])}, wheel size {advice['wheel_size']}"
            )
        lines += [f"    - {reason}" for reason in advice["because"]]
    return "\n".join(map(printable, lines))


def _busiest(entry: dict[str, Any]) -> str:
    share = entry["busiest_connection"]
    return f", {share:.0%} of those that ended on the busiest connection" if share >= BUSY else ""


def as_toml(summary: dict[str, Any]) -> str:
    """The advice as a `reaper.toml`. Call it only if there is a `config`."""
    config = summary["config"]
    traffic, allowed = (
        f"{summary['source']}, {spoken(summary['observed_s'])} of traffic",
        summary["policy"]["max_cut"],
    )
    lines = [
        (
            f"# Advised from {traffic}: at most {allowed:.2%} of the silences that end in sight "
            "are cut."
        ),
        "[reaper]",
        f'tick = "{format_duration(config["tick_s"])}"',
        f"wheel_size = {config['wheel_size']}",
        "",
        "[timeouts]",
    ]
    for key, entry in config["timeouts"].items():
        advice = summary["listeners"][entry["listener"]]["recommendation"]
        lines += [f"# {reason}" for reason in advice["because"]]
        lines.append(f'{key} = "{format_duration(entry["timeout_s"])}"')
    if "keep_alive" in config["timeouts"]:
        behind = summary["policy"]["behind"]
        if behind is None:
            lines += [
                "",
                "# No load balancer was named: with one in front, ask again with --behind.",
            ]
        lines += ["", "[server]", f'behind = "{behind or "direct"}"']
    return "\n".join([*map(printable, lines), ""])
