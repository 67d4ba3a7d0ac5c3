"""What writers say of themselves, and which files can show a silence that lasted too long.

The rule of this module: *no row is read*. The check of the files has met them all; what it kept is enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .runs import Facts, Run, Timeline

Intervals = list[tuple[int, int]]
Stalls = dict[int, Intervals]
"""run -> (from, to) of each stall of its loop, on the timeline that all runs share."""


@dataclass(frozen=True, slots=True)
class Said:
    """What the writers of some runs say of themselves."""

    stalls: Stalls
    """Of every run, also of those without any."""
    drained: list[int]
    """Runs that said that no connection of theirs is left; ascending."""
    own: int
    """Rows that writers logged of themselves and that belong to a run."""


def said(files: Iterable[Facts], runs: Sequence[Run], timeline: Timeline) -> Said:
    """What is said in *files*, by the *runs* that they make up."""
    stalls: Stalls = {run.index: [] for run in runs}
    drained: set[int] = set()
    own = 0
    known = {(run.writer, run.name): run for run in runs}
    for facts in files:
        if run := known.get((facts.writer, facts.run)):
            own += facts.own_rows
            if facts.drained:
                drained.add(run.index)
            by = timeline.offset_ns(run)
            stalls[run.index] += [(t + by - idle_ns, t + by) for t, idle_ns in facts.stalls]
    return Said({run: merge(found) for run, found in stalls.items()}, sorted(drained), own)


def merge(intervals: Iterable[tuple[int, int]]) -> Intervals:
    """*intervals* as a union: sorted, none touching another."""
    merged: Intervals = []
    for since, to in sorted(intervals):
        if merged and since <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], to))
        else:
            merged.append((since, to))
    return merged


def overdue_files(files: Sequence[Facts], least_ns: int) -> list[Facts]:
    """Those of *files* with a silence overdue by more than *least_ns*, or a final check by a writer that has one: the
    silence that it ended may be in a later file.
    """

    def overdue(facts: Facts) -> bool:
        return facts.overdue_ns is not None and facts.overdue_ns > least_ns

    writers = {facts.writer for facts in files if overdue(facts)}
    return [facts for facts in files if overdue(facts) or (facts.averted and facts.writer in writers)]
