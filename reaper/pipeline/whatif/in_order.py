"""Settings with pressure: silences collected from Spark, replayed in order process by process, and summed up.

The rule of this module: *within the size that fits, or refused*. What Spark hands over is bounded by
`whatif_pressure.MOST`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from .pressure import (
    CLOSED,
    CUT,
    MIN_AGE_NS,
    MOST,
    RETURNED,
    Bools,
    Ints,
    Outcome,
    Process,
    closed_epochs,
    most_open,
    replay,
)
from .replay import QUANTILES, judged
from .settings import HOUR_NS, Setting, figure


def press(
    rows: DataFrame,
    plan: DataFrame,
    lives: DataFrame,
    setting: Setting,
    seed: int,
    *,
    facts: Mapping[int, Mapping[str, int]],
    ticks: Mapping[int, int],
    offsets: Mapping[int, int],
    begin: int,
    span_s: float,
    complete: bool,
) -> dict[str, Any]:
    """The figures of one setting with `max_open`; or `refused`, when there is too much to replay in order.

    Where silences were cut too early to tell, it is replayed twice, as if they had all ended then, and as if none ever
    had: low and high are the outcomes of the two.
    """
    hits = judged(rows, plan, seed, MIN_AGE_NS).select("run", "since", "until", "how", "timeout", "censored")
    alive = _arrays(lives.select("run", "opened", "ended", F.col("log_end_ns").alias("log_end")))
    size = hits.count() + len(alive["run"])
    if size > MOST:
        return {"refused": f"{size:,} silences and connections are too many to replay in order; at most {MOST:,}"}
    silent = _arrays(hits)
    order = np.lexsort((silent["until"], silent["since"]))
    silent = {name: column[order] for name, column in silent.items()}
    worlds = []
    for censored_as in (CLOSED, CUT) if silent["censored"].any() else (CUT,):
        how = np.where(silent["censored"].astype(bool), censored_as, silent["how"])
        worlds.append(_Sum(begin, span_s))
        for run in sorted(set(alive["run"].tolist())):
            mine, of_run = silent["run"] == run, alive["run"] == run
            has_end = alive["ended"][of_run] >= 0
            process = Process(
                opened=np.sort(alive["opened"][of_run]),
                ended=np.sort(alive["ended"][of_run][has_end]),
                starts=silent["since"][mine],
                ends=silent["until"][mine],
                how=how[mine],
                timeouts=silent["timeout"][mine],
                origin=facts[run]["origin_ns"],
                log_end=int(alive["log_end"][of_run][0]),
            )
            tick = setting.tick_ns or ticks[run]
            epoch = setting.epoch_ns(ticks[run], facts[run]["epochs"])
            worlds[-1].add(process, replay(process, epoch, tick, setting.max_open), epoch, offsets[run])
    return _figures(worlds, setting, complete)


class _Sum:
    """The outcomes of all processes together."""

    def __init__(self, begin: int, span_s: float) -> None:
        self.begin, self.span_s = begin, span_s
        self.reaps = self.evicted = self.false_cuts = self.evicted_false = self.unmet = self.shut_ns = 0
        self.held_ns = 0
        self.parts: list[tuple[Ints, Ints, Bools]] = []
        self.slack: list[Ints] = []
        self.back: list[Ints] = []

    def add(self, process: Process, outcome: Outcome, epoch_ns: int, offset: int) -> None:
        gone = outcome.gone_at >= 0
        came_back = gone & (process.how == RETURNED)
        self.reaps += int((gone & ~outcome.evicted).sum())
        self.evicted += int(outcome.evicted.sum())
        self.false_cuts += int(came_back.sum())
        self.evicted_false += int((came_back & outcome.evicted).sum())
        self.unmet += outcome.unmet
        self.shut_ns += outcome.shut_ns
        never = process.how == CUT
        over = np.where(gone, outcome.gone_at, np.where(never, process.log_end, process.ends))
        self.held_ns += int(process.ended.sum() - process.opened.sum() - (process.ends - over).sum())
        self.held_ns += process.log_end * (len(process.opened) - len(process.ended))
        self.parts.append((outcome.instants + offset, outcome.steps, outcome.openings))
        by_timeout = gone & ~outcome.evicted
        starts = process.starts[by_timeout]
        self.slack.append(closed_epochs(starts, process.origin, epoch_ns) - starts)
        self.back.append((process.ends[came_back] + offset - self.begin) // 10**9)

    @property
    def busiest(self) -> int:
        seconds = np.concatenate(self.back)
        return int(np.unique(seconds, return_counts=True)[1].max()) if len(seconds) else 0


def _figures(worlds: list[_Sum], setting: Setting, complete: bool) -> dict[str, Any]:
    known = "exact" if complete and not any(world.unmet for world in worlds) else "estimated"

    def ranged(values: list[float]) -> dict[str, Any]:
        if len(worlds) > 1:
            return figure(None, min(values), max(values), "bounded")
        return figure(values[0], values[0], values[0], known)

    last = worlds[-1]
    slack = np.concatenate(last.slack) / 1e9
    lateness = None
    if len(slack):
        quantiles = np.quantile(slack, [0, *QUANTILES, 1]).tolist()
        lateness = dict(zip(("min", "p50", "p90", "p99", "max"), quantiles, strict=True))
    return {
        "reaps": ranged([world.reaps for world in worlds]),
        "false_cuts": ranged([world.false_cuts for world in worlds]),
        "evicted": ranged([world.evicted for world in worlds]),
        "undecided": 0 if len(worlds) == 1 else abs(worlds[0].reaps - last.reaps),
        "peak_open": ranged([most_open(world.parts) for world in worlds]),
        "descriptor_hours": ranged([world.held_ns / HOUR_NS for world in worlds]),
        "reconnects_per_s": {
            "mean": ranged([world.false_cuts / world.span_s for world in worlds]),
            "peak": ranged([world.busiest for world in worlds]),
        },
        "lateness_s": lateness,
        "pressure": {
            "evicted_that_came_back": last.evicted_false,
            "not_found": last.unmet,
            "door_shut_s": last.shut_ns / 1e9,
        },
    }


def _arrays(frame: DataFrame) -> dict[str, Ints]:
    """The columns as arrays; null is -1."""
    table = frame.toArrow()
    return {
        name: table.column(name).cast("int64").fill_null(-1).to_numpy().astype(np.int64) for name in table.column_names
    }
