"""What if: a journal replayed under other settings, and for every figure how well it can be known.

The rule of this module: *exact, bounded, estimated or refused, and it says which*. A client that is cut may come back
or not, and a silence that the log's reaper cut may have ended a moment later or never: what follows is a range.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...config.durations import spoken
from ..advise.survival import Curve, kaplan_meier
from ..advise.traffic import histogram, silences_of_journal, with_edge
from ..engine import F
from ..read.expected import as_list
from ..read.frames import names, read_events, runs_frame
from ..read.inputs import Inputs
from ..read.runs import Timeline
from . import replay as spark_replay
from .log import Log, merged, notes_of, settings_of, wheel_of
from .replay import RETURNED
from .settings import CURRENT, HOUR_NS, InForce, Setting, figure, parse, refusal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "reaper-what-if/1"
CANNOT_KNOW = 0.01
"""Share of the silences that reach a timeout which the log may have cut before, for the answer still to be known."""
ASSUMPTIONS = (
    "Low: a client that was cut never comes back.",
    "High: it connects again at the activity that the log shows, and goes on as it did.",
    "High of false cuts: every client that the log's reaper cut came back; the log does not say which did.",
    "No loop stalls: epochs lie on one grid per run, from its first opening on, and what is due is reaped then.",
    "Low and high of reaps and false cuts hold wherever the epochs lie.",
    "At one instant bytes come before ends, and ends before what is due.",
)


@dataclass(slots=True)
class WhatIf:
    """The outcome; `summary` goes to JSON, `curves` to the page."""

    summary: dict[str, Any]
    curves: dict[int, list[list[float]]]
    """Number of a row -> [second, open at the low end, open at the high end], ascending."""

    @property
    def complete(self) -> bool:
        """Whether nothing was missing from the log, and it knows the answer for one of the settings asked about."""
        return bool(self.summary["result"] == "pass")


def what_if(
    spark: SparkSession,
    inputs: Inputs,
    base: Setting,
    variants: Sequence[Setting],
    sets: Sequence[Sequence[str]] = (),
    *,
    seed: int = 1,
    tick_ns: int = 1_000_000_000,
    progress: Callable[[str], None] = lambda _: None,
) -> WhatIf:
    """Replay the journals of *inputs* under the settings in force, then under each other.

    Args:
        base: What each of *sets* starts from.
        variants: Further settings, ready made.
        sets: Words of each `--set`.
        seed: Of the jitter.
        tick_ns: Of files that do not state their tick.
    Raises:
        CannotTell: a word of *sets* makes no sense.
    """
    timeline = Timeline.of(inputs.runs)
    runs = runs_frame(spark, inputs.runs, timeline, tick_ns)
    events = read_events(spark, inputs)
    progress("looking at what was in force")
    listeners = names(events, "listener")
    rows = spark_replay.silences(events, runs)
    groups = spark_replay.groups(events, runs)
    in_force = [
        InForce(row.run, listeners.get(row.listener_hash, "(none)"), row.listener_hash, row.timeout_ms, row.silences)
        for row in spark_replay.timeouts_in_force(groups)
    ]
    known = sorted({entry.listener for entry in in_force} | set(listeners.values()))
    asked = [*variants, *(parse(words, base, known) for words in sets)]
    current = Setting(CURRENT, epochs_per_tick=base.epochs_per_tick)
    thresholds = {run.index: 0 if run.full else run.gap_threshold_ns for run in inputs.runs}
    refused = {i: refusal(setting, in_force, thresholds) for i, setting in enumerate(asked, 1)}
    todo = [(i, setting) for i, setting in enumerate([current, *asked]) if not refused.get(i)]
    lives = spark_replay.lives(events, runs).persist()
    progress("counting connections")
    facts = _connections(lives)
    read, own = sum(file.rows for file in inputs.files), sum(file.own_rows for file in inputs.files)
    unjudged = read - own - facts["rows"]
    ticks = {run.index: run.tick_ns or tick_ns for run in inputs.runs}
    log = Log(
        spark=spark,
        rows=rows,
        lives=lives,
        in_force=in_force,
        facts=spark_replay.facts_of_runs(groups, ticks),
        ticks=ticks,
        begin=facts["begin"],
        end=max([facts["end"], *(run.log_end_ns + timeline.offset_ns(run) for run in inputs.runs)]),
        held_ns=facts["held_ns"],
        connections=facts["connections"],
        complete=not (
            inputs.dropped_rows or inputs.quarantined or inputs.holes or inputs.silent or facts["headless"] or unjudged
        ),
    )
    answers, curves = _replay_all(log, events, todo, seed, progress) if in_force else ({}, {})
    table = []
    for i, setting in enumerate([current, *asked]):
        entry = {"name": setting.name, "settings": settings_of(setting, log), "refused": refused.get(i)}
        table.append(entry | answers.get(i, {}))
    lives.unpersist()
    answered = any(not row["refused"] and not row["cannot_know"] for row in table[1:] if "reaps" in row)
    summary: dict[str, Any] = {
        "schema": SCHEMA,
        "connections": facts["connections"],
        "observed_s": (log.end - log.begin) / 1e9,
        "rows_read": read,
        "rows_judged": facts["rows"],
        "rows_of_writers": own,
        "in_force": [
            {"listener": listener, "timeout_s": timeout / 1e3, "silences": count}
            for (listener, timeout), count in merged(in_force).items()
        ],
        "gap_threshold_s": max(thresholds.values(), default=0) / 1e9,
        "activity_known_to_s": max(log.blurred, default=0) / 1e9,
        "seed": seed,
        "rows": table,
        "calibration": _calibration(facts, answers),
        "complete": log.complete,
        "result": "pass" if log.complete and facts["connections"] and answered else "inconclusive",
        "quarantined": inputs.quarantined,
        "silent_servers": as_list(inputs.silent),
        "holes": inputs.holes,
        "assumptions": list(ASSUMPTIONS),
        "notes": notes_of(log, {**facts, "unjudged": unjudged}, inputs, asked),
    }
    return WhatIf(summary, curves)


def _connections(lives: DataFrame) -> dict[str, Any]:
    """What the log says happened. begin, end: on the shared timeline, ns."""
    end = F.coalesce("ended", "log_end_ns")
    row = lives.agg(
        F.count(F.lit(1)).alias("connections"),
        F.sum("rows").alias("rows"),
        F.sum(end - F.col("opened")).alias("held_ns"),
        F.count(F.when(F.col("reaped") & ~F.col("by_deadline"), 1)).alias("reaped"),
        F.count(F.when(F.col("by_deadline"), 1)).alias("by_deadline"),
        F.count(F.when(F.col("headless"), 1)).alias("headless"),
        F.count(F.when(F.col("ended").isNull(), 1)).alias("open_at_end"),
        F.min(F.col("opened") + F.col("offset_ns")).alias("begin"),
        F.max(end + F.col("offset_ns")).alias("end"),
    ).first()
    found = {} if row is None else row.asDict()
    return {key: value or 0 for key, value in found.items()}


def _replay_all(
    log: Log, events: DataFrame, todo: list[tuple[int, Setting]], seed: int, progress: Callable[[str], None]
) -> tuple[dict[int, dict[str, Any]], dict[int, list[list[float]]]]:
    """The figures of each row by its number, and the curves by it."""
    plan = log.plan(todo)
    hits = spark_replay.judged(log.rows, plan, seed).persist()
    progress(f"judging silences under {len(todo)} settings")
    counted = spark_replay.sums(hits)
    unseen = spark_replay.tails(log.lives, plan)
    late = unseen.groupBy("setting").agg(F.count(F.lit(1)), F.sum(F.col("log_end_ns") - F.col("at"))).collect()
    tails = {row[0]: (row[1], row[2]) for row in late}
    early = spark_replay.ended_early(hits, log.lives)
    gone = F.coalesce("ended", "log_end_ns") - F.col("due")
    freed = {row[0]: row[1] for row in early.groupBy("setting").agg(F.sum(gone)).collect()}
    progress("looking for the busiest seconds")
    at = (F.col("until") + F.col("offset_ns")).alias("at")
    came_back = hits.where(F.col("cut") & (F.col("how") == RETURNED)).select("setting", at)
    busiest = spark_replay.busiest_second(came_back, log.begin)
    progress("looking for the peaks")
    steps = spark_replay.replayed_steps(hits, early).unionByName(spark_replay.unseen_steps(unseen))
    logged = spark_replay.logged_steps(log.lives)
    peaks, levels, width = spark_replay.peaks(log.spark, logged, steps, [i for i, _ in todo], log.begin, log.end)
    censored = any(row.censored for row in counted.values())
    guesses = _estimates(events, hits, progress) if censored else {}
    hits.unpersist()
    answers = {}
    for i, setting in todo:
        seen = Counted(
            counted.get(i), tails.get(i, (0, 0)), freed.get(i, 0), busiest.get(i, 0), peaks[i], guesses.get(i)
        )
        answers[i] = _figures(log, setting, seen)
    answers[0]["apart_s"] = _spread(counted[0].apart, ("min", "p10", "p50", "p90", "max")) if 0 in counted else None
    answers[spark_replay.AS_LOGGED] = {"peak_open": peaks[spark_replay.AS_LOGGED][0]}
    step = max(1, len(levels[0][0]) // 600)
    curves = {
        i: [[at * width, float(low), float(high)] for at, (low, high) in _highest(levels[i], step)] for i, _ in todo
    }
    return answers, curves


def _highest(levels: list[Any], step: int) -> list[tuple[int, tuple[int, int]]]:
    """The levels at the low and the high end, the highest of each *step* bins: (first bin, levels)."""
    low, high = levels
    return [(i, (int(low[i : i + step].max()), int(high[i : i + step].max()))) for i in range(0, len(low), step)]


@dataclass(frozen=True, slots=True)
class Counted:
    """What Spark counted under one setting."""

    sums: Any | None
    """See `replay.sums`; None: no silence was long enough."""
    tails: tuple[int, int]
    """Connections that may have fallen due unseen, and for how long, ns."""
    never_freed_ns: int
    """Descriptor time that is free where a client that was cut does not come back."""
    busiest: int
    peak: tuple[int, int]
    guess: tuple[float, float] | None


def _figures(log: Log, setting: Setting, seen: Counted) -> dict[str, Any]:
    def total(name: str) -> int:
        return 0 if seen.sums is None else int(seen.sums[name])

    censored, (unseen, unseen_ns) = total("censored"), seen.tails
    known = "exact" if log.complete and not log.blurred else "estimated"
    span_s = log.span_s

    def ranged(low: float, high: float, better: float | None = None) -> dict[str, Any]:
        if better is not None:
            return figure(better, low, high, "estimated")
        return figure(low, low, high, known) if low == high else figure(None, low, high, "bounded")

    guessed_reaps, guessed_s = (None, None) if seen.guess is None or unseen else seen.guess
    hours = (log.held_ns - total("freed_ns")) / HOUR_NS
    never_hours = (log.held_ns - seen.never_freed_ns) / HOUR_NS
    false_cuts = total("false_cuts")
    most_false = total("false_possible") + total("cut_as_logged") + total("censored_reaps")
    return {
        "reaps": ranged(
            total("never_reaps_certain"),
            total("reaps_possible") + total("censored_reaps") + unseen,
            None if guessed_reaps is None else total("reaps") + guessed_reaps,
        ),
        "false_cuts": ranged(total("never_false_certain"), most_false),
        "undecided": censored,
        "cannot_know": _cannot_know(censored, seen.sums, log),
        "peak_open": ranged(*seen.peak),
        "descriptor_hours": ranged(
            never_hours - unseen_ns / HOUR_NS,
            hours + total("censored_ns") / HOUR_NS,
            None if guessed_s is None else hours + guessed_s / 3600,
        ),
        "reconnects_per_s": {
            "mean": ranged(0.0, most_false / span_s),
            "peak": ranged(0, seen.busiest) if most_false == false_cuts else figure(None, 0, None, "bounded"),
        },
        "come_back": {
            "reaps": total("reaps"),
            "false_cuts": false_cuts,
            "peak_open": seen.peak[1],
            "descriptor_hours": hours,
            "busiest_second": seen.busiest,
        },
        "never_come_back": {
            "reaps": total("never_reaps"),
            "false_cuts": total("never_false"),
            "peak_open": seen.peak[0],
            "descriptor_hours": never_hours,
        },
        "lateness_s": None if seen.sums is None else _spread(seen.sums.slack, ("min", "p50", "p90", "p99", "max")),
        "wheel": wheel_of(setting, log, log.held_ns - total("freed_ns")),
    }


def _cannot_know(censored: int, sums: Any | None, log: Log) -> str | None:
    """Why neither world is known under a timeout longer than the log's; None: of nearly all silences it is."""
    if sums is None or censored <= CANNOT_KNOW * (censored + sums.reaps):
        return None
    longest = spoken(max(entry.timeout_ms for entry in log.in_force) / 1e3)
    return (
        f"the log cannot know: its own reaper cut {censored:,} silence(s) after {longest} or less, before this timeout "
        "would have, and what came of them is not in it; log with a timeout at least as long"
    )


def _spread(values: Sequence[int] | None, names: Sequence[str]) -> dict[str, float] | None:
    """ns as named seconds; None: there was nothing to spread."""
    return None if values is None else dict(zip(names, (value / 1e9 for value in values), strict=True))


def _estimates(
    events: DataFrame, hits: DataFrame, progress: Callable[[str], None]
) -> dict[int, tuple[float, float] | None]:
    """setting -> (reaps, seconds held) to expect of the silences that the log's reaper cut too early to tell.

    By the Kaplan-Meier curve of each listener; None where a timeout lies beyond the longest silence it has seen.
    """
    progress("estimating what was cut too early to tell")
    curves: dict[int, Curve] = {
        key: kaplan_meier((edge, ended, censored) for edge, (ended, censored) in counts.items())
        for key, counts in histogram(silences_of_journal(events)).items()
    }
    cut = with_edge(hits.where("censored"), "idle")
    cells = cut.groupBy("setting", "listener_hash", "timeout", "edge_ns").count()
    found: dict[int, tuple[float, float] | None] = {}
    for row in cells.collect():
        before, more = found.get(row.setting, (0.0, 0.0)), None
        if before is not None:
            more = expected(curves[row.listener_hash], row.timeout / 1e9, row.edge_ns / 1e9, row["count"])
        found[row.setting] = None if before is None or more is None else (before[0] + more[0], before[1] + more[1])
    return found


def expected(curve: Curve, timeout: float, since: float, many: int) -> tuple[float, float] | None:
    """Of *many* silences that were cut after *since* seconds: (reaps by a longer *timeout*, seconds held more).

    Returns:
        None: the timeout lies beyond the longest silence that *curve* has seen.
    """
    here = curve.at(since)
    if timeout > curve.followed or here <= 0:
        return None
    held = max(curve.held(timeout) - curve.held(since), 0.0)
    return many * curve.at(max(timeout, since)) / here, many * held / here


def _calibration(facts: dict[str, Any], answers: dict[int, dict[str, Any]]) -> dict[str, Any] | None:
    """What the log says happened, beside the replay of the settings that were in force."""
    if 0 not in answers:
        return None
    replayed = answers[0]
    return {
        "reaps": {"logged": facts["reaped"], "replayed": replayed["come_back"]["reaps"]},
        "peak_open": {
            "logged": answers[spark_replay.AS_LOGGED]["peak_open"], "replayed": replayed["peak_open"]["high"]
        },
        "descriptor_hours": {
            "logged": facts["held_ns"] / HOUR_NS, "replayed": replayed["descriptor_hours"]["high"]
        },
        "replayed_later_s": replayed.pop("apart_s"),
    }  # fmt: skip
