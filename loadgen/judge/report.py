"""The report: a run as JSON, schema `reaper-loadgen-report/1`.

One rule: the keys of the schema's contract never change their meaning. More keys may
appear; figures that are not known are null, never 0.
"""

from __future__ import annotations

import csv
import json
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from ..plan.behaviours import Behaviour
from ..plan.plan import Law, Plan
from ..units import seconds
from .histogram import PERCENTILES
from .observation import Counters, Observation, Outcome, summed
from .records import How, Record
from .thresholds import Threshold
from .verdict import BAD, GRAIN, Finding, Verdict, judge_all, judge_each

SCHEMA = "reaper-loadgen-report/1"
TIMELINE_POINTS = 240
LATENESS_BUCKETS_PER_TICK = 50
"""Bars of the lateness histogram per tick."""
UNKNOWN_SERVER: dict[str, Any] = {
    "workers": None,
    "rss_bytes_per_connection": None,
    "cpu_fraction": None,
}
"""The `server` block of a server that is not ours to look at."""

Report = dict[str, Any]


@dataclass(frozen=True)
class Judged:
    """A run, its verdict, and the sums over all processes that more than one section
    needs.

    Attributes:
        asked: What was asked for besides the plan.
        server: What is known of the server's processes.
        total: The counters of all processes together.
        elapsed: Seconds from the first connection to the last event.
        line, peak: What `timeline` returns.
    """

    plan: Plan
    observation: Observation
    verdict: Verdict
    asked: dict[str, Any]
    server: dict[str, Any]
    total: Counters
    elapsed: float
    line: list[dict[str, float]]
    peak: int

    def per_second(self, amount: float) -> float | None:
        """*amount* by the length of the run; None if it had no length."""
        return amount / self.elapsed if self.elapsed > 0 else None


def _config(run: Judged) -> dict[str, Any]:
    plan, law = run.plan, run.plan.law
    return {
        "mix": {behaviour.name: behaviour.weight for behaviour in plan.behaviours},
        "timeout_s": law.timeout,
        "tick_s": law.tick,
        "tolerance_s": law.tolerance,
        "duration_s": plan.duration,
        "connect_rate": plan.ramp.rate or plan.rate,
        "beat_s": plan.beat,
        **run.asked,
    }


def _plan(run: Judged) -> dict[str, Any]:
    ends, digest = run.plan.survey()
    return {"seed": run.plan.seed, "digest": digest, "by_behaviour": ends}


def _connections(run: Judged) -> dict[str, Any]:
    seen, total = run.observation, run.total
    failures = sum((Counter(outcome.failures) for outcome in seen.outcomes), Counter[str]())
    ramped = seen.ramped
    return {
        "requested": run.plan.connections,
        "established": total.established,
        "failed": total.failed,
        "peak_open": run.peak,
        "reconnected": total.reconnected,
        "refused": total.refused,
        "failures": dict(failures),
        "unanswered": total.unanswered,
        "connect_s": None if ramped is None else ramped - seen.started,
    }


def _reaps(run: Judged) -> dict[str, Any]:
    verdict, total = run.verdict, run.total
    count = verdict.categories
    ends = run.observation.records.columns[2]
    named = (*BAD, "own_lag", "undecided", "closed_itself", "announced", "unjudged")
    return {
        "expected": verdict.expected,
        "observed": verdict.observed,
        **{name: count[name] for name in named},
        "alive_at_end": count["alive"],
        "late_raw": verdict.beyond_tick + total.read_late,
        "late_raw_own": total.read_late,
        "late_but_server_stuck": verdict.excused,
        "excused_share": verdict.excused / verdict.expected if verdict.expected else 0.0,
        "fin": ends.count(How.FIN),
        "rst": ends.count(How.RST),
        "grain_s": GRAIN,
    }


def _actions(run: Judged) -> dict[str, Any]:
    total = run.total
    named = ("asked", "answered", "cut", "underway", "surplus")
    return {
        "done": total.actions,
        "per_s": run.per_second(total.actions),
        **{name: getattr(total, name) for name in named},
        "refused": total.refused_acts,
        "unanswered": total.lost_answers,
        "statuses": total.wrong,
        "blocked": total.blocked,
    }


def _loadgen(run: Judged) -> dict[str, Any]:
    outcomes = run.observation.outcomes
    grown = sum(each.rss_open for each in outcomes)
    before = sum(each.rss_before for each in outcomes)
    established = run.total.established
    return {
        "processes": len(outcomes),
        "processes_lost": len(run.observation.lost),
        "lag_s": run.observation.lag.summary(),
        "rss_bytes": grown or None,
        "rss_bytes_per_connection": (
            (grown - before) / established if grown and established else None
        ),
        "cpu_fraction": run.per_second(sum(outcome.cpu_seconds for outcome in outcomes)),
    }


def _stuck(run: Judged) -> dict[str, Any]:
    return {
        "own": max(stalls.longest for stalls in run.observation.own_stalls),
        "server": run.observation.server_stalls.longest,
    }


def _by_behaviour(run: Judged) -> dict[str, Any]:
    return {name: dict(counts) for name, counts in sorted(run.verdict.by_behaviour.items())}


def _violations(run: Judged) -> list[Any]:
    return [
        story(record, behaviour, finding, run.plan.law, run.observation.started)
        for record, behaviour, finding in run.verdict.violations
    ]


SECTIONS: Mapping[str, Callable[[Judged], Any]] = {
    "schema": lambda run: SCHEMA,
    "partial": lambda run: run.observation.partial,
    "interrupted": lambda run: run.observation.interrupted,
    "config": _config,
    "plan": _plan,
    "connections": _connections,
    "reaps": _reaps,
    "lateness_s": lambda run: lateness_summary(run.verdict.lateness),
    "latency_s": lambda run: run.observation.latency.summary(),
    "actions": _actions,
    "loadgen": _loadgen,
    "server": lambda run: run.server,
    "stuck_s": _stuck,
    "by_behaviour": _by_behaviour,
    "lateness_histogram": lambda run: lateness_histogram(run.verdict.lateness, run.plan.law.tick),
    "timeline": lambda run: run.line,
    "violations": _violations,
    "journal_dropped": lambda run: run.total.journal_dropped,
    "elapsed_s": lambda run: run.elapsed,
}
"""The sections of a report in their order, and what writes each; the verdict comes
last.
"""


def build_report(
    plan: Plan,
    observation: Observation,
    config: dict[str, Any],
    server: dict[str, Any],
    thresholds: Sequence[Threshold] = (),
) -> Report:
    """Judge the run, and put everything known about it into one dictionary that JSON
    can carry.

    *config* is what was asked for besides the plan.
    """
    verdict = judge_all(
        plan, observation.records, observation.own_stalls, observation.server_stalls
    )
    total = summed(outcome.counters for outcome in observation.outcomes)
    elapsed = observation.ended - observation.started
    line, peak = timeline(observation)
    run = Judged(plan, observation, verdict, config, server, total, elapsed, line, peak)
    report: Report = {name: write(run) for name, write in SECTIONS.items()}
    broken = [
        *verdict.reasons(plan.law),
        *_answers(observation.outcomes, total, config.get("protocol", "")),
    ]
    if verdict.categories["early"]:
        broken += _said(run)
    if observation.because is not None:
        broken.insert(0, observation.because)
    if not observation.partial:
        broken += [why for threshold in thresholds if (why := threshold.broken(report))]
    doubts = _doubts(run)
    report["verdict"] = "fail" if broken else "inconclusive" if doubts else "pass"
    report["reasons"] = broken + doubts
    return report


def _doubts(run: Judged) -> list[str]:
    """Why the run proves less than it was to prove."""
    seen, verdict = run.observation, run.verdict
    doubts = list(seen.lost) if seen.partial else verdict.doubts()
    if not seen.partial and not verdict.shown:
        doubts.append("no connection came to a good end: nothing was shown")
    if seen.interrupted:
        still = verdict.categories["undecided"] + verdict.categories["alive"]
        open_ends = f"{still:,} of {run.total.established:,} connections"
        doubts.append(
            f"interrupted after {seconds(run.elapsed)}: {open_ends} were still to be judged"
        )
    return doubts


def _answers(outcomes: Sequence[Outcome], total: Counters, protocol: str) -> list[str]:
    """The reasons to fail a server for what it answered, or for what it did not
    answer.
    """
    found: list[str] = []
    if total.lost_answers:
        what = f"{total.lost_answers:,} of {total.asked:,} answers never came"
        found.append(f"{total.unanswered:,} connections unanswered: {what}")
        if not total.answered:
            others = "raw, or echo" if protocol == "http" else "raw, or http"
            found[-1] += f"; if the server speaks another protocol, give --protocol {others}"
    if total.surplus:
        found.append(f"{total.surplus:,} answers that nobody had asked for")
    if total.wrong:
        wrong = Counter(total.wrong)
        counts = ", ".join(
            f"{count:,} with status {status}" for status, count in wrong.most_common(5)
        )
        found.append(f"{wrong.total():,} answers not as expected: {counts}")
    if foreign := next((each.counters.foreign for each in outcomes if each.counters.foreign), b""):
        found.append(f"answers that are no {protocol or 'answers'}: {foreign[:40]!r}")
    return found


def _said(run: Judged) -> list[str]:
    """What the server said before it closed too early: where answers are not known,
    they tell why.
    """
    heard = next(
        (each.counters.heard for each in run.observation.outcomes if each.counters.heard), b""
    )
    return [f"the first thing that the server sent was {heard!r}"] if heard else []


def percentile(ordered: Sequence[float], percent: float) -> float | None:
    """The value at or below which *percent* of the *ordered* values lie (nearest rank).

    None when there are no values.
    """
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)] if ordered else None


def lateness_summary(ordered: Sequence[float]) -> dict[str, float | None]:
    """Minimum, percentiles, average and maximum, in seconds; they are exact, not from
    buckets.
    """
    known = {
        name: percentile(ordered, at)
        for name, at in {"min": 0.0, **PERCENTILES, "max": 100.0}.items()
    }
    return {**known, "avg": math.fsum(ordered) / len(ordered) if ordered else None}


def write_csv(plan: Plan, observation: Observation, path: Path) -> None:
    """Write a row for each connection: what its client saw, and what that amounts to.

    Instants are seconds from the start of the run.
    """
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(
            [
                "connection",
                "incarnation",
                "behaviour",
                "how",
                "category",
                "established_s",
                "last_sent_s",
                "due_s",
                "closed_s",
                "lateness_s",
            ]
        )
        lags = observation.own_stalls, observation.server_stalls
        for record, behaviour, found in judge_each(plan, observation.records, *lags):
            instants = (
                record.established,
                record.sent,
                record.sent + behaviour.timeout,
                record.closed_by,
            )
            rows.writerow(
                [
                    record.connection,
                    record.incarnation,
                    behaviour.name,
                    How(record.how).name,
                    found.category,
                    *(f"{instant - observation.started:.6f}" for instant in instants),
                    "" if found.lateness is None else f"{found.lateness:.6f}",
                ]
            )


def lateness_histogram(lateness: Sequence[float], tick: float) -> dict[str, Any]:
    """Count in bars of tick / LATENESS_BUCKETS_PER_TICK seconds: [lower edge in s,
    count] each.
    """
    width = tick / LATENESS_BUCKETS_PER_TICK
    bars = Counter(math.floor(value / width) for value in lateness)
    return {"width_s": width, "bars": [[number * width, bars[number]] for number in sorted(bars)]}


def timeline(observation: Observation) -> tuple[list[dict[str, float]], int]:
    """Count open connections over time, and those opened, reaped by the server and left
    by us.

    Returns a point for each of TIMELINE_POINTS equal intervals, whose `t` is the end of
    the interval in seconds from the start, and the exact peak of open connections.
    Cost: O(n log n).
    """
    instants: dict[str, list[float]] = {"opened": [], "reaped": [], "left": []}
    for record in observation.records:
        if record.how != How.FAILED:
            instants["opened"].append(record.established)
        if record.how not in (How.FAILED, How.OPEN):
            instants["left" if record.how == How.SELF else "reaped"].append(record.closed_by)
    for each in instants.values():
        each.sort()
    span = max(observation.ended - observation.started, 1e-9)
    points: list[dict[str, float]] = []
    before = dict.fromkeys(instants, 0)
    for number in range(1, TIMELINE_POINTS + 1):
        until = (
            observation.started + span * number / TIMELINE_POINTS
            if number < TIMELINE_POINTS
            else math.inf
        )
        upto = {name: bisect_right(each, until) for name, each in instants.items()}
        open_now = upto["opened"] - upto["reaped"] - upto["left"]
        added = {name: upto[name] - before[name] for name in instants}
        points.append({"t": span * number / TIMELINE_POINTS, "open": open_now, **added})
        before = upto
    return points, _peak(instants["opened"], sorted(instants["reaped"] + instants["left"]))


def _peak(opened: Sequence[float], ended: Sequence[float]) -> int:
    """The most connections that were open at once.

    One that ends in the instant in which another begins was not open beside it.
    """
    gone = peak = 0
    for number, instant in enumerate(opened, 1):
        while gone < len(ended) and ended[gone] <= instant:
            gone += 1
        peak = max(peak, number - gone)
    return peak


def story(
    record: Record, behaviour: Behaviour, finding: Finding, law: Law, started: float
) -> dict[str, Any]:
    """Tell one connection's life, in words and in seconds from the start of the run."""
    due = record.sent + behaviour.timeout
    ending = (
        "was still open"
        if record.how == How.OPEN
        else f"was closed by the server ({How(record.how).name})"
    )
    words = (
        f"{behaviour.name} connection {record.connection}: connected, did {record.sends} steps, "
        f"sent its last byte at {record.sent - started:.3f} s, was due at {due - started:.3f} s "
        f"(at the latest one tick of {seconds(law.tick)} after), "
        f"and {ending} at {record.closed_by - started:.3f} s"
    )
    return {
        "category": finding.category,
        "connection": record.connection,
        "incarnation": record.incarnation,
        "behaviour": behaviour.name,
        "how": How(record.how).name,
        "silent_for_good": bool(record.final),
        "steps": record.sends,
        "established_s": record.established - started,
        "last_sent_s": record.sent - started,
        "due_s": due - started,
        "closed_s": record.closed_by - started,
        "lateness_s": finding.lateness,
        "story": words,
    }


def report_schema() -> dict[str, Any]:
    """The JSON Schema of a report, as it is published."""
    schema: dict[str, Any] = json.loads(
        resources.files(__package__).joinpath("report.schema.json").read_text()
    )
    return schema


def write_report(report: Report, path: Path) -> None:
    """Write *report* to *path* in one move, so that no reader ever sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_text(json.dumps(report, indent=1) + "\n")
    temporary.replace(path)
