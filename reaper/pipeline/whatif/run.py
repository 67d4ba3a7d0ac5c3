"""What if: a journal replayed under other settings, and for every figure how well it
can be known.

The rule of this module: *exact, bounded, estimated or refused, and it says which*. A
client that is cut may come back or not, and a silence that the log's reaper cut may
have ended a moment later or never: what follows is a range.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import printable
from ...html.units import spoken
from ...journal.schema import UNNAMED
from ..advise.run import notes_of_inputs
from ..engine import F
from ..read.expected import line
from ..read.frames import listener_names, read_events, runs_frame, small_frame
from ..read.inputs import Inputs
from ..read.runs import Timeline
from . import replay
from .settings import InForce, Setting, parse, refusal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = "reaper-what-if/1"
HOUR_NS = 3600e9
CANNOT_KNOW = 0.01
"""Share of the silences that reach a timeout which the log may have cut before, for the
answer still to be known.
"""

LEGEND = (
    "12 is exact, ~12 an estimate, 10..14 bounds; never and back: the two worlds, in which a "
    "client that was cut never comes back, or does as the log shows; ?: the log cannot know"
)

MEASURES = {"reaps": 0, "false_cuts": 0, "peak_open": 0, "descriptor_hours": 2}
"""Keys of a row that are shown as bounds and in each of the two worlds, and their
digits.
"""

HEAD = (
    "setting",
    *(
        head
        for name in ("reaps", "false cuts", "peak open", "descriptor-h")
        for head in (name, "never", "back")
    ),
    "back/s",
)


@dataclass(slots=True)
class Log:
    """What the replay of every setting shares."""

    in_force: list[InForce]
    facts: dict[int, dict[str, int]]
    """By run: see `replay.facts_of_runs`."""
    ticks: dict[int, int]
    begin: int
    end: int
    held_ns: int
    complete: bool

    @property
    def blur_ns(self) -> int:
        """The epoch to which activity is known, ns. 0: exactly."""
        return max((facts["blur_ns"] for facts in self.facts.values()), default=0)

    def plan(self, spark: SparkSession, settings: Iterable[tuple[int, Setting]]) -> DataFrame:
        """Each setting, spelt out for each timeout that was in force; see
        `replay.PLAN`.
        """
        found = []
        for number, setting in settings:
            for entry in self.in_force:
                timeout = setting.timeout_ns(entry.listener, entry.timeout_ms)
                tick, facts = self.ticks[entry.run], self.facts[entry.run]
                epoch = max(1, (setting.tick_ns or tick) // facts["epochs"])
                where = (number, entry.run, entry.timeout_ms, entry.listener_hash)
                found.append((*where, timeout, epoch, facts["origin_ns"], facts["blur_ns"]))
        return small_frame(spark, found, replay.PLAN)

    def settings_of(self, setting: Setting) -> dict[str, Any]:
        """The timeouts and the tick that *setting* comes to, for the answer."""
        timeouts = {setting.timeout_ns(entry.listener, entry.timeout_ms) for entry in self.in_force}
        ticks = {setting.tick_ns or tick for tick in self.ticks.values()}
        return {
            "timeouts_s": [timeout / 1e9 for timeout in sorted(timeouts)],
            "tick_s": [tick / 1e9 for tick in sorted(ticks)],
        }


def what_if(
    spark: SparkSession,
    inputs: Inputs,
    sets: Sequence[Sequence[str]],
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Replay the journals of *inputs* under the settings in force, then under each of
    *sets*, the words of a `--set`; returns what goes to JSON.

    Raises:
        Fault: a word of *sets* makes no sense.
    """
    timeline = Timeline.of(inputs.runs)
    runs = runs_frame(spark, inputs.runs, timeline)
    events = read_events(spark, inputs)
    progress("looking at what was in force")
    listeners = listener_names(spark, inputs)
    groups = replay.groups(events, runs)
    watching = [row for row in groups if row.silences and row.timeout_ms]
    in_force = [
        InForce(
            row.run, listeners.get(row.listener_hash, UNNAMED), row.listener_hash, row.timeout_ms
        )
        for row in sorted(watching, key=lambda row: (-row.silences, row.run, row.timeout_ms))
    ]
    known = sorted({entry.listener for entry in in_force} | set(listeners.values()))
    asked = [Setting("as it was"), *(parse(words, known) for words in sets)]
    thresholds = {run.index: 0 if run.full else run.gap_threshold_ns for run in inputs.runs}
    refused = [None, *(refusal(setting, in_force, thresholds) for setting in asked[1:])]
    lives = replay.lives(events, runs).persist()
    progress("counting connections")
    facts = _connections(lives)
    facts["unjudged"] = inputs.rows - inputs.own_rows - facts["rows"]
    ticks = {run.index: run.tick_ns for run in inputs.runs}
    lacking = inputs.lacking()
    log = Log(
        in_force=in_force,
        facts=replay.facts_of_runs(groups, ticks),
        ticks=ticks,
        begin=facts["begin"],
        end=max([facts["end"], *(run.log_end_ns + timeline.offset_ns(run) for run in inputs.runs)]),
        held_ns=facts["held_ns"],
        complete=not (any(lacking.values()) or facts["headless"] or facts["unjudged"]),
    )
    table: list[dict[str, Any]] = [
        {"name": setting.name, "settings": log.settings_of(setting), "refused": why}
        for setting, why in zip(asked, refused, strict=True)
    ]
    calibration = None
    if in_force:
        todo = [i for i, why in enumerate(refused) if not why]
        plan = log.plan(spark, ((i, asked[i]) for i in todo))
        hits = replay.judged(replay.silences(events, runs), plan).persist()
        progress(f"judging silences under {len(todo)} settings")
        unseen = replay.tails(lives, plan)
        counted = _count(hits, lives, unseen, todo)
        progress("looking for the peaks")
        peaks = replay.peaks(todo, lives, hits, unseen, (log.begin, log.end))
        hits.unpersist()
        for i in todo:
            table[i] |= _figures(log, counted[i], peaks[i, replay.LOW], peaks[i, replay.HIGH])
        peak = peaks[replay.AS_LOGGED, replay.LOW]
        logged = {
            "reaps": facts["reaped"],
            "peak_open": peak,
            "descriptor_hours": log.held_ns / HOUR_NS,
        }
        back = table[0][
            "come_back"
        ]  # what the log says happened, beside the replay of the settings in force
        calibration = {
            name: {"logged": value, "replayed": back[name]} for name, value in logged.items()
        }
    lives.unpersist()
    answered = any(
        not row["refused"] and not row["cannot_know"] for row in table[1:] if "reaps" in row
    )
    return {
        "schema": SCHEMA,
        "connections": facts["connections"],
        "observed_s": (log.end - log.begin) / 1e9,
        "rows_read": inputs.rows,
        "rows_judged": facts["rows"],
        "rows_of_writers": inputs.own_rows,
        "gap_threshold_s": max(thresholds.values(), default=0) / 1e9,
        "activity_known_to_s": log.blur_ns / 1e9,
        "rows": table,
        "calibration": calibration,
        "complete": log.complete,
        "result": "pass" if log.complete and facts["connections"] and answered else "inconclusive",
        **lacking,
        "notes": _notes(log, facts, inputs),
    }


def _connections(lives: DataFrame) -> dict[str, Any]:
    """What happened as the log says it. begin, end: on the shared timeline, ns."""
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


def _notes(log: Log, facts: dict[str, Any], inputs: Inputs) -> list[str]:
    """Notes that a reader of the answer needs."""
    notes = notes_of_inputs(inputs)
    if inputs.quarantined:
        notes.append(
            f"{len(inputs.quarantined)} file(s) were put aside: figures are of what is left"
        )
    notes += map(line, inputs.silent)
    for key, text in (
        ("unjudged", "row(s) belong to no run of a writer that is known: they are in no figure"),
        ("headless", "connection(s) began before the log: held from their first trace on"),
        ("open_at_end", "connection(s) have no end: held to the end of the log"),
        ("by_deadline", "connection(s) were ended by a deadline: kept as it was"),
    ):
        if facts[key]:
            notes.append(f"{facts[key]} {text}")
    if log.blur_ns:
        known = (
            f"activity is known to {spoken(log.blur_ns / 1e9)} only, because leases logged "
            "themselves"
        )
        notes.append(f"{known}: it is taken to be in the middle")
    return notes


def _count(
    hits: DataFrame, lives: DataFrame, unseen: DataFrame, todo: list[int]
) -> dict[int, dict[str, int]]:
    """What each setting of *todo* would have done, by its number; see `replay.sums`.

    And: never_freed_ns, descriptor time that is free where a client that was cut does
    not come back; unseen and unseen_ns, connections that may have fallen due unseen,
    and for how long.
    """
    found: dict[int, dict[str, int]] = {i: defaultdict(int) for i in todo}
    for setting, sums in replay.sums(hits).items():
        found[setting] |= sums
    gone = F.coalesce("ended", "log_end_ns") - F.col("due")
    for setting, freed in (
        replay.ended_early(hits, lives).groupBy("setting").agg(F.sum(gone)).collect()
    ):
        found[setting]["never_freed_ns"] = freed
    late = F.sum(F.col("log_end_ns") - F.col("at"))
    for setting, count, late_ns in unseen.groupBy("setting").agg(F.count(F.lit(1)), late).collect():
        found[setting] |= {"unseen": count, "unseen_ns": late_ns}
    return found


def _figures(log: Log, seen: dict[str, int], low_peak: int, high_peak: int) -> dict[str, Any]:
    """The figures of one row of the answer."""
    known = "exact" if log.complete and not log.blur_ns else "estimated"

    def ranged(low: float, high: float) -> dict[str, Any]:
        """A figure and how it is known: exact, estimated or bounded (value null); low
        and high inclusive.
        """
        alike = low == high
        return {
            "value": low if alike else None,
            "low": low,
            "high": high,
            "kind": known if alike else "bounded",
        }

    hours = (log.held_ns - seen["freed_ns"]) / HOUR_NS
    never_hours = (log.held_ns - seen["never_freed_ns"]) / HOUR_NS
    most_false = seen["false_possible"] + seen["cut_as_logged"] + seen["censored_reaps"]
    return {
        "reaps": ranged(
            seen["never_reaps_certain"],
            seen["reaps_possible"] + seen["censored_reaps"] + seen["unseen"],
        ),
        "false_cuts": ranged(seen["never_false_certain"], most_false),
        "undecided": seen["censored"],
        "cannot_know": _cannot_know(seen, log),
        "peak_open": ranged(low_peak, high_peak),
        "descriptor_hours": ranged(
            never_hours - seen["unseen_ns"] / HOUR_NS, hours + seen["censored_ns"] / HOUR_NS
        ),
        "reconnects_per_s": {
            "mean": ranged(0.0, most_false / max((log.end - log.begin) / 1e9, 1e-9))
        },
        "come_back": {
            "reaps": seen["reaps"],
            "false_cuts": seen["false_cuts"],
            "peak_open": high_peak,
            "descriptor_hours": hours,
        },
        "never_come_back": {
            "reaps": seen["never_reaps"],
            "false_cuts": seen["never_false"],
            "peak_open": low_peak,
            "descriptor_hours": never_hours,
        },
    }


def _cannot_know(seen: dict[str, int], log: Log) -> str | None:
    """Why nothing is known under a timeout longer than the log's. None if nearly all
    silences are known.
    """
    if seen["censored"] <= CANNOT_KNOW * (seen["censored"] + seen["reaps"]):
        return None
    longest = spoken(max(entry.timeout_ms for entry in log.in_force) / 1e3)
    return (
        f"the log cannot know: its own reaper cut {seen['censored']:,} silence(s) after {longest} "
        "or less, before this timeout would have, and what came of them is not in it; log with a "
        "timeout at least as long"
    )


def say(figure: dict[str, Any], digits: int = 0) -> str:
    """A figure as a reader sees it: `12`, `~12` for an estimate, `10..14` for
    bounds.
    """
    low, high = (f"{figure[end]:,.{digits}f}" for end in ("low", "high"))
    if figure["kind"] == "bounded":
        return low if low == high else f"{low}..{high}"
    return f"{'~' if figure['kind'] == 'estimated' else ''}{low}"


def cells(row: dict[str, Any]) -> list[str]:
    """The row's figures in the order of `HEAD`."""
    found = [row["name"]]
    for key, digits in MEASURES.items():
        worlds = [f"{row[world][key]:,.{digits}f}" for world in ("never_come_back", "come_back")]
        found += [say(row[key], digits), *(["?", "?"] if row["cannot_know"] else worlds)]
    return [*found, say(row["reconnects_per_s"]["mean"], 3)]


def as_text(summary: dict[str, Any]) -> str:
    """The answer as a table to read."""
    answered = [row for row in summary["rows"] if "reaps" in row]
    shown = [list(HEAD), *(cells(row) for row in answered)]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    lines = [
        (
            f"what if: {summary['connections']:,} connections, {spoken(summary['observed_s'])} "
            "observed"
        ),
        "",
    ]
    for name, *figures in shown:
        lines.append("  ".join([name.ljust(widths[0]), *map(str.rjust, figures, widths[1:])]))
    lines += [f"{row['name']}: {row['cannot_know']}" for row in answered if row["cannot_know"]]
    lines += [
        f"{row['name']}: REFUSED: {row['refused']}" for row in summary["rows"] if row["refused"]
    ]
    lines += ["", LEGEND, ""]
    if calibration := summary["calibration"]:
        lines.append("how far the first row is from what the log says happened:")
        for name, entry in calibration.items():
            texts = [f"{which} {entry[which]:,.6g}" for which in ("logged", "replayed")]
            lines.append(f"  {name.replace('_', ' ')}: {', '.join(texts)}")
        lines.append("")
    lines += [f"note: {note}" for note in summary["notes"]]
    return "\n".join(map(printable, lines))
