"""Write docs/pipeline-speed.md and its plots from the measurements: no figure is typed by hand.

    python -m benchmarks.pipeline.document benchmarks/results/pipeline-*.json

Same files, same bytes. What was not measured is said to be missing, and a goal that was missed is called missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import matplotlib as mpl

from benchmarks.common import ROOT
from benchmarks.pipeline.run import SCHEMA
from benchmarks.pipeline.start import SCHEMA as START_SCHEMA

DOCS = ROOT / "docs"
GIB = 1 << 30
FULL = 50_000_000
"""Events for which the goals hold."""

GOALS = (
    ("audit", "audit", 2.0, "a verdict for every connection, written to Parquet"),
    ("advise", "advise", 2.0, "silences as logged: their histogram, and every candidate's cuts and open connections"),
    ("session-audit", "audit", 2.0, "the same of a session, the first of this size that it is asked"),
    ("session-advise", "advise", 2.0, "the same of that session, after the audit"),
    ("session-again-audit", "audit", 2.0, "the same of that session a second time: what it needs is compiled"),
    ("session-again-advise", "advise", 2.0, "the same"),
    ("table-audit", "audit", 2.0, "the same; Spark on the compacted table, the rivals on the files"),
    ("table-advise", "advise", 3.0, "the same; Spark on the compacted table, the rivals on the files"),
    ("table-recompute", "recompute", 1.5, "the same from silences recomputed; Spark on the compacted table"),
)
"""Spark's step, the rivals' question, how many times DuckDB's time is the goal, what is asked."""

SMALLER = {step: 3.0 for step, question, *_ in GOALS if step.endswith(question) and not step.startswith("table-")}
"""The goals below `FULL` events, where the start of Spark's compilers is a larger part."""

GROWTH_GOAL, MEMORY_GOAL = 2.2, 4 * GIB
STEPS = {
    "audit": "audit, files",
    "advise": "advise, files",
    "session-audit": "audit, files, in a session",
    "session-advise": "advise, files, in a session",
    "session-again-audit": "audit, files, in a session, again",
    "session-again-advise": "advise, files, in a session, again",
    "table-audit": "audit, table",
    "table-advise": "advise, table",
    "table-recompute": "advise, recomputed, table",
    "recompute": "advise, recomputed, files",
}
WAYS: dict[str, tuple[str, float | None]] = {
    "plain": ("Java with its own defaults", None),
    "flags": ("the quick compiler, the simple collector", 12.0),
    "first": ("the first command of all: the same, and it leaves the archive behind", 12.0),
    "archive": ("with the archive of classes", 12.0),
    "start": ("`session start`", None),
    "at once": ("in a session, asked right after its start", None),
    "at once, again": ("the same, asked a second time", None),
    "warm": ("until a session that is left alone is warm", None),
    "left alone": ("in a session that was left alone until then", 3.0),
    "left alone, again": ("the same, asked a second time", 3.0),
}
"""Ways of `start`, what they are, and the goal in seconds."""

TRIED = """\
Tried and not kept, for each changed the CPU time by less than a tenth: interpreted plans instead of compiled ones
(`spark.sql.codegen.wholeStage`, `factoryMode`), no adaptive execution, one or two shuffle partitions."""

TRIED_AT_SIZE = """\
Where an audit's processor time goes at 10M events, from cold: half of it is Java that compiles, collects, and runs code
that is not compiled yet; of the rest most is one row per connection made (the aggregation) and written (Parquet). So
up to 192 MiB of files the quick compiler is used, which took about a fifth less in all. Tried and not kept, for each
changed the time by less than a tenth: one task per file (`spark.sql.files.maxPartitionBytes`), a larger first map of
the aggregation (`fastHashMap.capacityBit`), a table written uncompressed, with zstd, or without dictionaries. Compiling
well ten times later (`Tier4CompileThreshold` and its like) saved an eighth, the quick compiler more.
An audit has no first look any more, for stalls and overdue silences: a pass of its own, an eighth of a warm audit. The
check of the files hands on what writers say of themselves, and which files have a silence beyond its timeout. They
alone are looked through; in these journals there is none. Old and new in turns at 10M events, on a busy machine: the
first check and audit of a Java take about the same processor time, the later ones an eighth less (the check 2 % more,
the audit a fifth less). DuckDB and Polars are given the same.

The first large question that a warm session is asked takes nearly twice as long as the second: 8 s of processor time
are Java's compilers, and the tasks take 12 s instead of 8 while they run what is not compiled yet. It is not known
what they compile that the session's own journals had not had compiled. Tried, one run each, first and second audit of
10M events, s: as it is 11.4 and 6.7; a warm-up of 100,000 connections instead of 10,000 11.4 and 7.5; one without
silences beyond their timeout 10.6 and 6.2, and without stalls too 13.2 and 8.4; 1,000 generated classes kept
(`spark.sql.codegen.cache.maxEntries`) instead of 100 12.9 and 7.7. That is the machine's own spread. Nor is it the
heap that grows: from cold the kernel takes 2 s of processor time of some 40, and huge pages did not help.

An advice reads every row three times: for the silences, for the first opening and the last end, from which the bins of
time follow, and for the ends under each candidate. One reading less for the connections did not help, for what costs is
columns per connection and rows made of it. Tried in a warm Java at 10M events, twice at most, on a busy machine: bins
known beforehand and all sums in one pass took 29 and 30 s of processor time, one query in which Spark uses the shuffled
rows twice 37 and 45 s, connections kept in memory between 36 s; two readings 27 and 28 s. What helped is to do less in
the second: no row that ends nothing, no count that the first can have, a third of the additions, each of which Spark
checks for overflow by way of two closures: 15 and 24 % less in all, in two pairs. The silences are not counted so, for
their grain is another: each row would be made twice, and aggregated with the columns of both."""

ENGINES = {"spark": "Spark", "duckdb": "DuckDB", "polars": "Polars"}
ALSO = ENGINES | {"session": "Spark in a session"}
COLOURS = {"spark": "#c2410c", "duckdb": "#0f766e", "polars": "#1d4ed8"}

INTRODUCTION = """\
What is compared: Spark in one process (the functions behind `python -m reaper.pipeline`), DuckDB and Polars with two
threads each, on one journal (`python -m benchmarks.pipeline.generate`), each in a fresh process, in interleaved rounds.
All must give the same answers, to the last cell, or the run ends. Those rows are true for who asks once: no engine is
warmed, the first question pays for Spark's compilers. The rows in a session are true for who has started one before
(`session start`): its start, and the time in which it warms itself with journals of its own, are not in them. It is a
new one each round, so a question is the first of its size in the session's life, or, where the row says again, the
second. The rivals are in `benchmarks/pipeline/rivals.py`; making them faster is welcome."""

Sample = dict[str, Any]


def number(value: float, digits: int = 3) -> str:
    """Three significant digits, no exponent: what is less than a thousandth is 0."""
    if abs(value) < 0.001:
        return "0"
    rounded = float(f"{value:.{digits}g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 10 ** (digits - 1) else f"{rounded:.{digits}g}"


def count(events: int) -> str:
    return f"{events / 1e6:g}M"


class Results:
    """All samples of the files that were named."""

    def __init__(self, files: list[Path]) -> None:
        found = [json.loads(file.read_text(encoding="utf-8")) for file in files]
        for file, run in zip(files, found, strict=True):
            if run.get("schema") not in (SCHEMA, START_SCHEMA):
                raise SystemExit(f"{file}: schema is {run.get('schema')!r}, expected {SCHEMA!r} or {START_SCHEMA!r}")
        self.runs = [run for run in found if run["schema"] == SCHEMA]
        self.starts = [run for run in found if run["schema"] == START_SCHEMA]
        compared = [run for run in self.runs if run["kind"] == "comparison"]
        latest = {run["sizes"][0]["events"]: run for run in sorted(compared, key=lambda run: run["machine"]["date"])}
        self.comparisons = [latest[events] for events in sorted(latest, reverse=True)]

    def samples(self, run: dict[str, Any], engine: str) -> list[Sample]:
        return [sample for sample in run["samples"] if sample["engine"] == engine]

    def seconds(self, run: dict[str, Any], engine: str, step: str) -> list[float]:
        return [sample["s"][step] for sample in self.samples(run, engine) if step in sample["s"]]

    def ratios(self, run: dict[str, Any], step: str, question: str, rival: str) -> list[float]:
        """Spark's time over the rival's, round by round."""
        engine, asked = whose(step)
        ours, theirs = ({sample["round"]: sample["s"] for sample in self.samples(run, of)} for of in (engine, rival))
        return [ours[n][asked] / theirs[n][question] for n in ours if n in theirs and asked in ours[n]]

    def curve(self, engine: str, step: str, of: str) -> list[tuple[int, float]]:
        """(events, median seconds or GiB), ascending: of growth runs, and of comparisons at sizes that those lack."""
        found: dict[tuple[int, str], list[float]] = {}
        for run in self.runs:
            for sample in self.samples(run, engine):
                if step in sample["s"]:
                    value = sample["s"][step] if of == "s" else sample["peak_bytes"].get(step, 0) / GIB
                    found.setdefault((sample["events"], run["kind"]), []).append(value)
        # "growth" sorts after "comparison", and so overrides it.
        return sorted({events: statistics.median(found[events, kind]) for events, kind in sorted(found)}.items())


def goals_at(events: int) -> list[tuple[str, str, float | None, str]]:
    """`GOALS`, with those that hold at so many *events*; None: none does."""
    full = events >= FULL
    return [(step, question, goal if full else SMALLER.get(step), asked) for step, question, goal, asked in GOALS]


def whose(step: str) -> tuple[str, str]:
    """Of a step of Spark: the engine whose samples have it, and its name there."""
    found, asked = step.removeprefix("session-"), step.startswith("session-")
    return ("session" if asked else "spark"), found


def span(values: list[float]) -> str:
    """Median and range."""
    if not values:
        return "not measured"
    middle = number(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({number(min(values))} to {number(max(values))})"


def verdict(value: float, goal: float) -> str:
    return "met" if value <= goal else f"**missed** by {value / goal - 1:.0%}"


def comparison_tables(results: Results, run: dict[str, Any]) -> list[str]:
    size = run["sizes"][0]
    full = size["events"] >= FULL
    lines = [
        f"## {count(size['events'])} events, {size['files']} files, {number(size['bytes'] / 1e6)} MB",
        "",
        "Seconds, median (least to most) of the rounds; the ratio is the median of the rounds' own ratios.",
        "",
        "| question | Spark | DuckDB | Polars | Spark / DuckDB | goal | |",
        "|---|---|---|---|---|---|---|",
    ]
    goals = goals_at(size["events"])
    for step, question, goal, _ in goals:
        cells = [span(results.seconds(run, *whose(step)))]
        cells += [span(results.seconds(run, rival, question)) for rival in ("duckdb", "polars")]
        found = results.ratios(run, step, question, "duckdb")
        said = verdict(statistics.median(found), goal) if found and goal else "" if found else "not measured"
        lines.append(
            f"| {STEPS[step]} | {' | '.join(cells)} | {span(found)} | {f'{goal:g}' if goal else ''} | {said} |"
        )
    if not full:
        return [*lines, ""]
    lines += ["", "| asked | |", "|---|---|"]
    lines += [f"| {STEPS[step]} | {asked} |" for step, _, _, asked in GOALS]
    lines += ["", "Not in these times, s, and the most memory of all processes of an engine together, GiB:", ""]
    lines += [f"| | {' | '.join(ALSO.values())} |", "|---" * (1 + len(ALSO)) + "|"]
    for step, title in (("session", "start of the engine"), ("check", "check of every file and page (the same code)")):
        lines.append(f"| {title} | {' | '.join(span(results.seconds(run, engine, step)) for engine in ALSO)} |")
    peaks = [[max(s["peak_bytes"].values()) / GIB for s in results.samples(run, engine)] for engine in ALSO]
    lines.append(f"| peak memory | {' | '.join(span(values) for values in peaks)} |")
    lines.append("")
    for engine, title in (("spark", "The driver's JVM"), ("session", "The session's JVM")):
        if java := [sample["java_peak_bytes"] for sample in results.samples(run, engine)]:
            said = verdict(max(java), MEMORY_GOAL)
            lines.append(f"{title} took at most {number(max(java) / GIB)} GiB; the goal of 4 GiB is: {said}.")
    if "compact_s" in size:
        seconds, memory = number(size["compact_s"]), number(size["compact_peak_bytes"] / GIB)
        made = f"{size['table_files']} files and {number(size['table_bytes'] / 1e6)} MB"
        lines += ["", f"Making the table took {seconds} s with Spark's start, and {memory} GiB; it has {made}."]
    return [*lines, ""]


def start_tables(results: Results) -> list[str]:
    """What one audit of a small journal costs."""
    lines = ["## A small journal", ""]
    if not results.starts:
        return [*lines, "Not measured.", ""]
    run = max(results.starts, key=lambda run: str(run["machine"]["date"]))
    lines += [
        f"One audit of {run['events']:,} events, the whole command, from cold; CPU seconds of everything it started.",
        "",
        "| | s | CPU s | goal, s | |",
        "|---|---|---|---|---|",
    ]
    for way, (title, goal) in WAYS.items():
        samples = [sample for sample in run["samples"] if sample["way"] == way]
        seconds = [sample["s"] for sample in samples]
        spent = [sample["cpu_s"] for sample in samples if "cpu_s" in sample]
        said = f"{goal:g} | {verdict(statistics.median(seconds), goal)}" if goal and seconds else " | "
        lines.append(f"| {title} | {span(seconds)} | {span(spent) if spent else ''} | {said} |")
    return [*lines, "", *TRIED.splitlines(), ""]


def growth_tables(results: Results) -> list[str]:
    lines = ["## Growth", ""]
    curves = {step: results.curve("spark", step, "s") for step in STEPS}
    sizes = sorted({events for curve in curves.values() for events, _ in curve})
    if len(sizes) < 2:
        return [*lines, "No growth was measured.", ""]
    lines += [
        "![Time and memory against the number of events](img/pipeline-growth.svg)",
        "",
        f"| Spark, s (GiB) | {' | '.join(count(events) for events in sizes)} |",
        "|---|" + "---|" * len(sizes),
    ]
    for step, curve in curves.items():
        if curve:
            memory = dict(results.curve("spark", step, "GiB"))
            cells = {events: f"{number(s)} ({number(memory[events], 2)})" for events, s in curve}
            lines.append(f"| {STEPS[step]} | {' | '.join(cells.get(events, '') for events in sizes)} |")
    lines.append("")
    for step in ("audit", "advise"):
        found = dict(curves[step])
        if FULL in found and 2 * FULL in found:
            grown = found[2 * FULL] / found[FULL]
            said = verdict(grown, GROWTH_GOAL)
            lines.append(f"- {step}: {number(grown)} times the time at twice {count(FULL)}; the goal of 2.2 is {said}.")
        else:
            lines.append(f"- {step}: from {count(FULL)} to {count(2 * FULL)} events was not measured.")
    return [*lines, ""]


def speed_page(results: Results, name: str) -> str:
    """docs/pipeline-speed.md."""
    lines = [
        "# How fast the pipeline is",
        "",
        "Written by `python -m benchmarks.pipeline.document`; raw samples in `benchmarks/results/pipeline-*.json`.",
        "",
        *INTRODUCTION.splitlines(),
        "",
        *(line for run in results.comparisons for line in comparison_tables(results, run)),
        *([*TRIED_AT_SIZE.splitlines(), ""] if results.comparisons else ["No comparison was measured.", ""]),
        *start_tables(results),
        *growth_tables(results),
        "## What it was measured on",
        "",
        "| | |",
        "|---|---|",
    ]
    for run in [*results.runs, *results.starts]:
        machine = run["machine"]
        packages = ", ".join(f"{p} {machine['packages'][p]}" for p in ("pyspark", "duckdb", "polars", "pyarrow"))
        change = " with uncommitted changes" if machine["dirty"] else ""
        loads = [sample["load_before"] for sample in run["samples"]] if "kind" in run else [run["load_before"]]
        lines.append(
            f"| {run.get('kind', 'start')}, {machine['date']} | {machine['cpu']}, {machine['cpus']} processors, "
            f"{number(machine['memory_bytes'] / GIB)} GiB; {machine['python']}, {packages}, {machine['java']}; commit "
            f"{machine['commit'][:10]}{change}; load before {number(min(loads), 2)} to {number(max(loads), 2)} |"
        )
    # Older results have the program under the path it had then.
    old = "benchmarks/pipeline.py"
    commands = sorted({f"python {run['command'].replace(old, '-m benchmarks.pipeline.run')}" for run in results.runs})
    commands += ["python -m benchmarks.pipeline.start"] if results.starts else []
    return "\n".join([*lines, "", "```", *commands, f"python -m benchmarks.pipeline.document {name}", "```", ""])


def plot(results: Results, target: Path) -> None:
    """Time and memory against events, both axes logarithmic; a dashed line has slope one."""
    mpl.use("svg")
    import matplotlib.pyplot as plt

    with mpl.rc_context({"svg.hashsalt": "pipeline", "svg.fonttype": "none", "font.size": 9}):
        figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), constrained_layout=True)
        for axis, of, title in zip(axes, ("s", "GiB"), ("seconds", "GiB at most"), strict=True):
            for engine, label in ENGINES.items():
                for step, style in (("audit", "o-"), ("advise", "s--")):
                    if curve := results.curve(engine, step, of):
                        x, y = zip(*curve, strict=True)
                        axis.plot(x, y, style, color=COLOURS[engine], label=f"{label}, {step}", markersize=4)
            if of == "s" and (curve := results.curve("spark", "audit", "s")):
                (first, s), (last, _) = curve[0], curve[-1]
                axis.plot([first, last], [s, s * last / first], ":", color="#888888", label="in proportion")
            axis.set(xscale="log", yscale="log" if of == "s" else "linear", xlabel="events", title=title)
            axis.grid(visible=True, alpha=0.3)
        axes[1].set_ylim(bottom=0)
        axes[0].legend(fontsize=7)
        target.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(target, metadata={"Date": None, "Creator": None})
        plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="what benchmarks.pipeline.run wrote")
    parser.add_argument("--docs", type=Path, default=DOCS, metavar="DIR", help="default: docs/")
    arguments = parser.parse_args()
    results = Results(sorted(arguments.files))
    arguments.docs.mkdir(parents=True, exist_ok=True)
    page = speed_page(results, "benchmarks/results/pipeline-*.json")
    (arguments.docs / "pipeline-speed.md").write_text(page, encoding="utf-8")
    if len({size["events"] for run in results.runs for size in run["sizes"]}) > 1:
        plot(results, arguments.docs / "img" / "pipeline-growth.svg")


if __name__ == "__main__":
    main()
