"""The longest pause: all due in one instant, worked off in slices, with the garbage collector on.

One rule: next to every run stands a control, an empty loop cut into slices of the same length on the same machine a
moment later. A pause that the control has too is the machine's; so is one long on the wall and short on the processor.
"""

from __future__ import annotations

import gc
import statistics
import time
from typing import Any

import reaper

from ..common import Note, Scale, by_scale, figure, markdown, short, spread

LIMIT = 1024

MEASURED = [("cpu", "median"), ("cpu", "p99.9"), ("cpu", "worst"), ("wall", "p99.9"), ("wall", "worst")]
Slices = list[tuple[float, float]]
"""(wall, CPU) milliseconds of each."""


def run(scale: Scale, note: Note) -> dict[str, Any]:
    """`results[n]`: median, p99.9 and worst slice of each run, ms, on the wall and of CPU; the control's too."""
    plan = by_scale(scale, [(1_000, 2)], [(50_000, 3), (200_000, 1)], [(100_000, 9), (1_000_000, 5), (10_000_000, 1)])
    results = {}
    for n, rounds in plan:
        runs: list[Slices] = []
        controls: list[Slices] = []
        collections = 0
        for turn in range(rounds):
            note(f"{n:,} due at once: round {turn + 1} of {rounds}")
            slices, collected = mass_expiry(n)
            runs.append(slices)
            collections += collected
            controls.append(control(len(slices), statistics.median(wall for wall, _ in slices)))
        results[str(n)] = {
            "ours": _summary(runs),
            "control": _summary(controls),
            "slices": len(runs[0]),
            "rounds": rounds,
            "full_collections": collections,
            "worst_wall_cpu": sorted(pair for each in runs for pair in each)[-100:],
        }
    return {"results": results, "limit": LIMIT, "unit": "ms"}


def _summary(runs: list[Slices]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for index, name in enumerate(("wall", "cpu")):
        ordered = [sorted(each[index] for each in slices) for slices in runs]
        found[name] = {
            "median": spread([statistics.median(each) for each in ordered]),
            "p99.9": spread([each[int((len(each) - 1) * 0.999)] for each in ordered]),
            "worst": spread([each[-1] for each in ordered]),
        }
    return found


def mass_expiry(n: int) -> tuple[Slices, int]:
    """(wall, CPU) milliseconds of each slice, and how many full collections fell into them."""
    core = reaper.IdleReaper(tick=1.0)
    for number in range(n):
        core.register(number, 30.0, 0.0)
    core.close_epoch(1.0)
    core.close_epoch(31.0)
    gc.collect()
    before = gc.get_stats()[2]["collections"]
    slices = []
    while len(core):
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        expired = core.expire(31.0, LIMIT)
        cpu = time.thread_time_ns() - cpu
        slices.append(((time.perf_counter_ns() - wall) / 1e6, cpu / 1e6))
        del expired  # what the caller lets go of is no part of the step, but must be gone before the next
    return slices, gc.get_stats()[2]["collections"] - before


def control(count: int, length_ms: float) -> Slices:
    """*count* slices of an empty loop, about *length_ms* each: what the machine itself takes away."""
    trial = 100_000
    began = time.perf_counter_ns()
    for _ in range(trial):
        pass
    steps = max(1, int(trial * length_ms * 1e6 / (time.perf_counter_ns() - began)))
    slices = []
    for _ in range(count):
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        for _ in range(steps):
            pass
        cpu = time.thread_time_ns() - cpu
        slices.append(((time.perf_counter_ns() - wall) / 1e6, cpu / 1e6))
    return slices


def table(found: dict[str, Any]) -> str:
    """Ours and the control, per number of connections."""
    rows = []
    for n, figures in found["results"].items():
        for who, name in (("ours", "slices"), ("control", "the control")):
            each = figures[who]
            cells = [figure(each[clock][what]["max" if what == "worst" else "median"]) for clock, what in MEASURED]
            collections = figures["full_collections"] if who == "ours" else ""
            rows.append([f"{short(n)}, {name}", f"{figures['rounds']} x {figures['slices']:,}", *cells, collections])
    head = ["all due in one instant", "runs x slices", *(f"{what}, ms {clock}" for clock, what in MEASURED)]
    return markdown([*head, "full collections"], rows) + (
        f"\n\nSlices of {found['limit']:,} closes, the collector on. The control is an empty loop, cut alike, run a "
        "moment later."
    )
