"""Realistic journals of any size, for tests and measurements: same plan, same bytes. No Spark, no loop over events.

Diurnal load on several listeners, heavy-tailed silences, drips, crowds, storms after a restart or a network's failure,
mass reaps, month-long tunnels, stalls - and a server that kept the law, save for the faults that were asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np

from reaper.errors import InvalidArgument
from reaper.journal.schema import KINDS, SEQUENCE_BITS, WRITER_BITS, connection_id

from .faults import FAULTS, NEEDS_NS, Fault
from .files import ANCHOR_NS, ROWS_PER_FILE, Sink, Wall
from .habits import Ints, S
from .loop import AFTER_TICK_NS, TICK_NS, Loop
from .writer import Course, Generator

SCHEMA = "reaper-generated/1"
BEGIN_UNIX_NS = 1_767_571_200 * S
"""Monday, 2026-01-05 00:00 UTC: where every generated journal begins."""

GAP_THRESHOLD_NS = S
WRITERS_PER_HOST = 4
WINDOW_ROWS = 150_000
LEAST_WINDOWS = 60
"""The number of rows is steered once per window."""

MOST_STALLS = 6
CROWD_SHARE = 0.08
"""Of the rows, those of the crowds before and after the storms."""

CROWD_ROWS, TUNNEL_GAP_NS = 18, 1080 * S
MOST_CROWD = 5000
TUNNEL_SHARE = 0.02
DAY = 86_400


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be generated.

    Args:
        events: Rows over all files, >= 1000 a writer; met within 1 %.
        seed: >= 0.
        writers: Server processes, >= 1; four share a machine.
        mode: `full` or `gaps`, as a journal's.
        days: How long they ran, > 0.
        faults: Name of a fault (see `FAULTS`) -> how many connections have it.
        rows_per_file: Where a file ends, >= 1.
    Raises:
        InvalidArgument: by name and value.
    """

    events: int
    seed: int = 1
    writers: int = 8
    mode: str = "full"
    days: float = 31.0
    faults: dict[str, int] = field(default_factory=dict)
    rows_per_file: int = ROWS_PER_FILE

    def __post_init__(self) -> None:
        if not 1 <= self.writers < 1 << WRITER_BITS:
            raise InvalidArgument(f"writers must be in 1..{(1 << WRITER_BITS) - 1}, got {self.writers!r}")
        if self.events < 1000 * self.writers:
            raise InvalidArgument(f"events must be at least 1000 a writer, {1000 * self.writers}, got {self.events!r}")
        if self.seed < 0:
            raise InvalidArgument(f"seed must be >= 0, got {self.seed!r}")
        if self.mode not in ("full", "gaps"):
            raise InvalidArgument(f"mode must be full or gaps, got {self.mode!r}")
        if not (math.isfinite(self.days) and 0.01 <= self.days <= 3650):
            raise InvalidArgument(f"days must be in 0.01..3650, got {self.days!r}")
        if self.rows_per_file < 1:
            raise InvalidArgument(f"rows_per_file must be >= 1, got {self.rows_per_file!r}")
        for name, count in self.faults.items():
            if name not in FAULTS or count < 0:
                raise InvalidArgument(f"faults must be counts of {', '.join(FAULTS)}, got {name}={count}")
        if self.mode == "gaps" and self.faults.get("backward"):
            raise InvalidArgument("faults must not have backward in gaps mode: a journal writes no such silence there")


def generate(plan: Plan, out: Path, progress: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Write the files of *plan* into *out*, which must hold none.

    Returns:
        What was written: rows (exact), connections, rows by kind, files, bytes, and the verdict on each connection that
        an audit must come to.
    Raises:
        InvalidArgument: *out* holds Parquet files already.
    Cost: about 0.5 us per row on one core; some hundred MB, whatever the number of rows.
    """
    if out.exists() and any(out.rglob("*.parquet")):
        raise InvalidArgument(f"out must be a directory without Parquet files, got {str(out)!r}")
    out.mkdir(parents=True, exist_ok=True)
    kinds = np.zeros(len(KINDS), np.int64)
    sinks: list[Sink] = []
    connections = 0
    for writer in range(1, plan.writers + 1):

        def report(_: int, writer: int = writer) -> None:
            done = sum(sink.rows for sink in sinks)
            progress(f"writer {writer} of {plan.writers}: {done:,} of {plan.events:,} rows")

        made = _writer(plan, writer, out, sinks, report)
        made.run()
        kinds += made.kinds
        connections += made.connections
    rows = {name: int(count) for name, count in zip(KINDS, kinds, strict=True)}
    faults = {name: plan.faults.get(name, 0) for name in FAULTS}
    reaped = rows["reap"] - sum(FAULTS[name] * count for name, count in faults.items())
    verdicts = {"ok_reaped": reaped, "ok_closed": connections - reaped - sum(faults.values()), **faults}
    verdicts["unknown"] = verdicts.pop("backward")
    return {
        "schema": SCHEMA,
        "events": sum(rows.values()),
        "wanted": plan.events,
        "seed": plan.seed,
        "writers": plan.writers,
        "mode": plan.mode,
        "days": plan.days,
        "connections": connections,
        "kinds": rows,
        "verdicts": verdicts,
        "files": sum(sink.files for sink in sinks),
        "bytes": sum(sink.bytes for sink in sinks),
    }


def _stream(plan: Plan, *key: int) -> np.random.Generator:
    """Random numbers of their own for each writer and host: none shifts when another draws more."""
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence([plan.seed, *key])))


def _writer(plan: Plan, writer: int, out: Path, sinks: list[Sink], report: Callable[[int], None]) -> Generator:
    rng = _stream(plan, 1, writer)
    host = (writer - 1) // WRITERS_PER_HOST
    of_host = _stream(plan, 2, host)
    booted = int(of_host.integers(10**5, 10**7)) * S  # uptime when the journal begins
    boot = str(UUID(bytes=of_host.bytes(16), version=4))
    span = round(plan.days * DAY) * S
    minutes = span // ANCHOR_NS + 2
    drift = np.cumsum(of_host.normal(0.0, 2_000.0, minutes)).astype(np.int64)
    wall = Wall(booted, BEGIN_UNIX_NS - booted + drift)
    start = booted + 20_000_000 * writer
    phase = start + int(rng.integers(TICK_NS))
    budget = plan.events // plan.writers + (writer <= plan.events % plan.writers)
    load = _load(start, span)
    windows = max(LEAST_WINDOWS, math.ceil(budget / WINDOW_ROWS))
    borders = np.interp(np.linspace(0.0, 1.0, windows + 1), load[1], load[0]).astype(np.int64)
    storms = {round(0.31 * windows): "blip", round(0.73 * windows): "blip" if writer % 2 else "restart"}
    course = Course(
        borders=borders,
        load=load,
        storms=storms,
        faults=_faults(plan, writer, rng, borders, storms),
        rows=budget,
        crowd=min(MOST_CROWD, int(budget * CROWD_SHARE / len(storms) / CROWD_ROWS)),
        tunnels=max(1, int(budget * TUNNEL_SHARE / (span / TUNNEL_GAP_NS + 2))),
    )
    loop = Loop(phase, _stalls(rng, borders, storms, phase))
    long_ns = -1 if plan.mode == "full" else GAP_THRESHOLD_NS
    begun = [start, *(int(borders[number]) for number, storm in storms.items() if storm == "restart")]
    return Generator(rng, loop, course, _sinks(plan, writer, rng, out, wall, boot, begun, sinks, report), long_ns)


def _sinks(
    plan: Plan,
    writer: int,
    rng: np.random.Generator,
    out: Path,
    wall: Wall,
    boot: str,
    starts: list[int],
    sinks: list[Sink],
    report: Callable[[int], None],
) -> Iterator[Sink]:
    """A sink for each start of the writer."""
    for begun in starts:
        unix_ms = (begun + int(wall.offsets[wall.index(begun)])) // 1_000_000
        metadata = {
            "run": rng.bytes(6).hex(),
            "writer": str(writer),
            "mode": plan.mode,
            "tick_ns": str(TICK_NS),
            "gap_threshold_ns": str(GAP_THRESHOLD_NS if plan.mode == "gaps" else 0),
            "first_conn": str(connection_id(writer, unix_ms * 4 % (1 << SEQUENCE_BITS))),
            "boot": boot,
        }
        sinks.append(Sink(out, wall, metadata, plan.rows_per_file, report))
        yield sinks[-1]


def _load(start: int, span: int) -> tuple[Any, Any]:
    """Instants, and the share of the load before each: a day's wave, quieter at weekends."""
    instants = np.linspace(start, start + span, 4096)
    days = (instants - start) / (DAY * S)
    wave = 1.0 + 0.6 * np.sin(2 * np.pi * (days - 0.375))
    wave *= np.where(days % 7 < 5, 1.0, 0.7)
    cumulated = np.concatenate([[0.0], np.cumsum((wave[1:] + wave[:-1]) / 2)])
    return instants, cumulated / cumulated[-1]


def _stalls(rng: np.random.Generator, borders: Ints, storms: dict[int, str], phase: int) -> tuple[tuple[int, int], ...]:
    """Stalls of 0.1 to 2.5 s, each well within a window that no storm begins or ends."""
    calm = [
        number
        for number in range(len(borders) - 1)
        if not {number, number + 1} & set(storms) and borders[number + 1] - borders[number] > 60 * S
    ]
    chosen = sorted(rng.choice(calm, min(MOST_STALLS, len(calm) // 8), replace=False).tolist())
    stalls = []
    for number in chosen:
        at = int(rng.integers(borders[number] + 15 * S, borders[number + 1] - 15 * S))
        begun = phase + (at - phase) // TICK_NS * TICK_NS + AFTER_TICK_NS
        stalls.append((begun, begun + int(10 ** rng.uniform(8.0, 9.4))))
    return tuple(stalls)


def _faults(plan: Plan, writer: int, rng: np.random.Generator, borders: Ints, storms: dict[int, str]) -> list[Fault]:
    """This writer's part of the faults, at instants from which no storm is near."""
    names = [name for name in FAULTS for _ in range(plan.faults.get(name, 0))][writer - 1 :: plan.writers]
    breaks = [int(borders[0]), *(int(borders[number]) for number in sorted(storms)), int(borders[-1])]
    spans = [(since + 10 * S, to - NEEDS_NS) for since, to in pairwise(breaks)]
    spans = [(since, to) for since, to in spans if since < to]
    if names and not spans:
        raise InvalidArgument(f"days must be at least 0.02 to plant faults, got {plan.days!r}")
    found = []
    for name in names:
        since, to = spans[int(rng.integers(len(spans)))]
        found.append(Fault(int(rng.integers(since, to)), name))
    return sorted(found, key=lambda fault: fault.at)
