"""What the journal costs the event loop: a touch of a lease that logs itself, of a
`ConnectionLog`, and each event.

    python -m benchmarks run journal

Rounds are interleaved within one run, because on a shared machine only differences
within a run mean anything. Epochs change between rounds as they do in a server, so the
comparison that a logging lease makes at each touch is never a foregone conclusion.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from operator import methodcaller
from pathlib import Path
from typing import Any

from reaper import IdleReaper
from reaper.journal import ConnectionLog, Journal
from reaper.journal.leases import LeaseLog

from ..common import Note, Scale, by_scale, figure, markdown, ns_of, ratios, spread, times


def leases(count: int, journal: Journal | None) -> tuple[IdleReaper, list[Callable[[], None]]]:
    """A core with *count* leases, logging if there is a journal, and their touches."""
    core = IdleReaper(tick=1.0)
    keeper = None if journal is None else LeaseLog(core, journal)
    touches = []
    for uid in range(count):
        lease = core.register(uid, 1e5, 0.0)
        if keeper is not None:
            keeper.opened(lease, 0.0, "bench")
        touches.append(lease.touch)
    return core, touches


def touch_costs(count: int, journal: Journal, rounds: int) -> dict[str, Any]:
    """Bare and logging touches of *count* connections, once each a round,
    interleaved.
    """
    kinds = {"bare": leases(count, None), "gaps": leases(count, journal)}
    samples: dict[str, list[float]] = {name: [] for name in kinds}
    repeats = max(1, 20_000 // count)
    for turn in range(rounds):
        for name, (core, touches) in kinds.items():
            core.advance(float(turn + 1))

            def work(touches: list[Callable[[], None]] = touches) -> None:
                for _ in range(repeats):
                    for touch in touches:
                        touch()

            samples[name].append(ns_of(work) / (count * repeats))
    found = {name: spread(values) for name, values in samples.items()}
    return {**found, "ratio": ratios(samples["gaps"], samples["bare"])}


def event_costs(directory: Path, rounds: int, count: int) -> dict[str, Any]:
    """Each call of the API in full mode, per call on the loop's thread; and what the
    writer's thread spends a row.
    """
    samples: dict[str, list[float]] = {}
    with Journal(directory, mode="full", queue_rows=10_000_000, background=False) as journal:
        for turn in range(rounds):
            for name, spent in one_round(journal, turn, count):
                samples.setdefault(name, []).append(spent)
    return {name: spread(values) for name, values in samples.items()}


def one_round(journal: Journal, turn: int, count: int) -> Iterator[tuple[str, float]]:
    """*count* connections that open, are touched, and are reaped."""
    logs: list[ConnectionLog] = []
    serials = range(count)
    yield (
        "open",
        ns_of(lambda: logs.extend(journal.open(each, 5000, "bench", each) for each in serials))
        / count,
    )
    yield "touch, full mode", ns_of(deque, map(methodcaller("touch", turn, 10), logs), 0) / count
    yield "reap", ns_of(deque, map(methodcaller("reap", turn, turn, "idle"), logs), 0) / count
    rows = journal.statistics().pending
    yield "writer's thread, CPU a row", ns_of(journal.flush, 60) / rows


def run(scale: Scale, note: Note) -> dict[str, Any]:
    """`touch_ns[n]`: bare and logging; `event_ns[call]`; and the bytes a row takes as
    Parquet.
    """
    rounds, rows = by_scale(scale, (3, 100), (9, 1_000), (41, 2_000))
    with tempfile.TemporaryDirectory() as scratch:
        touches = {}
        for count in by_scale(scale, (1, 50), (1, 1_000, 20_000), (1, 1_000, 100_000)):
            note(f"a touch that logs, {count:,} connections")
            with Journal(
                Path(scratch, str(count)), mode="gaps", gap_threshold=5.0, background=False
            ) as journal:
                touches[str(count)] = touch_costs(count, journal, rounds)
        note("each event in full mode")
        events = event_costs(Path(scratch, "events"), rounds, rows)
        size = sum(path.stat().st_size for path in Path(scratch, "events").glob("*.parquet"))
    return {
        "touch_ns": touches,
        "event_ns": events,
        "parquet_bytes_per_row": size / (rounds * 3 * rows),
    }


def table(found: dict[str, Any]) -> str:
    """Touches in `gaps` mode; a line for the events of `full` mode."""
    rows = [
        [
            f"{int(n):,}",
            figure(each["bare"]["median"]),
            figure(each["gaps"]["median"]),
            times(each["ratio"]),
        ]
        for n, each in found["touch_ns"].items()
    ]
    events = "; ".join(
        f"{name} {figure(each['median'])} ns" for name, each in found["event_ns"].items()
    )
    head = ["a touch in `gaps` mode, connections", "bare, ns", "logging, ns", "ratio"]
    return (
        markdown(head, rows)
        + f"\n\n{events}; {figure(found['parquet_bytes_per_row'])} bytes per row as Parquet."
    )
