"""The log that is replayed: what was in force, how well it knows, and what settings mean for it.

The rule of this module: *a log is asked once*. Its facts are gathered before the first setting is replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..read.expected import as_list, line
from ..read.frames import small_frame
from ..read.inputs import Inputs, hole_line, nothing_line
from .replay import PLAN
from .settings import InForce, Setting, duration, wheel

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(slots=True)
class Log:
    """What the replay of every setting shares."""

    spark: SparkSession
    rows: DataFrame
    lives: DataFrame
    in_force: list[InForce]
    facts: dict[int, dict[str, int]]
    ticks: dict[int, int]
    begin: int
    end: int
    held_ns: int
    connections: int
    complete: bool

    @property
    def blurred(self) -> list[int]:
        """Epochs to which activity is known, ns, where it is not known exactly."""
        return [facts["blur_ns"] for facts in self.facts.values() if facts["blur_ns"]]

    @property
    def span_s(self) -> float:
        return max((self.end - self.begin) / 1e9, 1e-9)

    def epoch_ns(self, setting: Setting, run: int) -> int:
        """Length of an epoch of *run* under *setting*."""
        return setting.epoch_ns(self.ticks[run], self.facts[run]["epochs"])

    def plan(self, settings: Sequence[tuple[int, Setting]]) -> DataFrame:
        """Each setting spelt out for each timeout that was in force; see `whatif_replay.PLAN`."""
        found = []
        for number, setting in settings:
            for entry in self.in_force:
                timeout = setting.timeout_ns(entry.listener, entry.timeout_ms)
                tick, facts = self.ticks[entry.run], self.facts[entry.run]
                steps, step = setting.jitter_steps(timeout, tick)
                epoch, origin, blur = self.epoch_ns(setting, entry.run), facts["origin_ns"], facts["blur_ns"]
                where = (number, entry.run, entry.listener_hash, entry.timeout_ms)
                found.append((*where, timeout, steps, step, epoch, origin, blur))
        return small_frame(self.spark, found, PLAN)


def merged(in_force: list[InForce]) -> dict[tuple[str, int], int]:
    """(listener, timeout in ms) -> silences it watched, most first."""
    merged: dict[tuple[str, int], int] = {}
    for entry in in_force:
        key = entry.listener, entry.timeout_ms
        merged[key] = merged.get(key, 0) + entry.silences
    return dict(sorted(merged.items(), key=lambda item: -item[1]))


def settings_of(setting: Setting, log: Log) -> dict[str, Any]:
    timeouts = sorted({setting.timeout_ns(entry.listener, entry.timeout_ms) for entry in log.in_force})
    ticks = sorted({setting.tick_ns or tick for tick in log.ticks.values()})
    return {
        "timeouts_s": [timeout / 1e9 for timeout in timeouts],
        "tick_s": [tick / 1e9 for tick in ticks],
        "epochs_per_tick": setting.epochs_per_tick or max((facts["epochs"] for facts in log.facts.values()), default=2),
        "wheel_size": setting.wheel_size,
        "jitter": setting.jitter,
    }


def wheel_of(setting: Setting, log: Log, held_ns: int) -> dict[str, Any]:
    """What the reaper does for it: the wake-ups while anything is armed, moves and cascades at most."""
    found, slots, cascades, wakes, timeouts = [], 0, 0.0, 0.0, set()
    for listener, timeout, tick, epoch in {
        (e.listener, setting.timeout_ns(e.listener, e.timeout_ms), setting.tick_ns or log.ticks[e.run],
         log.epoch_ns(setting, e.run))
        for e in log.in_force
    }:  # fmt: skip
        steps, step = setting.jitter_steps(timeout, log.ticks[log.in_force[0].run])
        wakes = max(wakes, 1e9 / epoch)
        for k in range(steps):
            one = wheel(timeout + k * step, tick, epoch, setting.wheel_size)
            found.append(one)
            slots += one.slots
            cascades += one.cascades * 1e9 / epoch
            timeouts.add((listener, timeout + k * step))
    shortest = min((timeout for _, timeout in timeouts), default=0)
    mean_open = held_ns / 1e9 / log.span_s
    moves = mean_open * 1e9 / shortest if shortest else 0.0
    return {
        "wakeups_per_s": wakes,
        "slots_at_most": slots,
        "levels": max((one.levels for one in found), default=0),
        "cascades_per_s_at_most": cascades,
        "moves_per_s": moves,
        "moves_per_s_at_most": 2 * moves,
    }


def notes_of(log: Log, facts: dict[str, Any], inputs: Inputs, asked: Sequence[Setting]) -> list[str]:
    """What a reader must know of this log."""
    notes = []
    if inputs.dropped_rows:
        notes.append(f"the writers dropped {inputs.dropped_rows} row(s): figures are of what is left")
    if inputs.quarantined:
        notes.append(f"{len(inputs.quarantined)} file(s) were put aside: figures are of what is left")
    notes += map(nothing_line, inputs.nothing)
    notes += map(hole_line, inputs.holes)
    notes += map(line, as_list(inputs.silent))
    if facts["unjudged"]:
        notes.append(f"{facts['unjudged']} row(s) belong to no run of a writer that is known: they are in no figure")
    if facts["headless"]:
        notes.append(f"{facts['headless']} connection(s) began before the log: held from their first trace on")
    if facts["open_at_end"]:
        notes.append(f"{facts['open_at_end']} connection(s) have no end: held to the end of the log")
    if facts["by_deadline"]:
        notes.append(f"{facts['by_deadline']} connection(s) were ended by a deadline: kept as it was")
    if log.blurred:
        notes.append(
            f"activity is known to {duration(max(log.blurred))} only, because leases logged themselves: it is taken to "
            "be in the middle"
        )
    timeouts = {
        (setting.timeout_ns(entry.listener, entry.timeout_ms), log.epoch_ns(setting, entry.run))
        for setting in asked
        for entry in log.in_force
    }
    if off_grid := sorted({timeout for timeout, epoch in timeouts if timeout % epoch}):
        shown = ", ".join(map(duration, off_grid[:6]))
        notes.append(
            f"{shown}: no whole number of epochs, so waking for what is due moves the reaper's grid: reaps and false "
            "cuts lie between low and high of what-if.json"
        )
    several: dict[str, list[int]] = {}
    for listener, timeout in merged(log.in_force):
        several.setdefault(listener, []).append(timeout)
    for listener, had in several.items():
        if len(had) > 1 and any(rule.was_ms is None for setting in asked for rule in setting.rules):
            shown = ", ".join(duration(timeout * 1_000_000) for timeout in sorted(had)[:6])
            notes.append(
                f"{listener} had {len(had)} timeouts in force ({shown}{', ...' if len(had) > 6 else ''}): "
                f"timeout.{listener}=D replaces all of them, timeout.{listener}@WAS=D one"
            )
    return notes
