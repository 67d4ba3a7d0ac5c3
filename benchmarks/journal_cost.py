"""What the journal costs the event loop: a touch of a lease that logs itself, of a `ConnectionLog`, and each event.

    python benchmarks/journal_cost.py [--json]

Every figure is the lower quartile of many rounds, interleaved within one run, because on a shared machine only
differences within a run mean anything. Epochs change between rounds as they do in a server, so the comparison that a
logging lease makes at each touch is never a foregone conclusion.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from reaper import IdleReaper
from reaper.journal import ConnectionLog, Journal
from reaper.journal.leases import Keeper

ROUNDS = 41


def quartile(samples: list[float]) -> float:
    """The lower quartile."""
    return sorted(samples)[len(samples) // 4]


def timed(work: Callable[[], object], count: int, clock: Callable[[], int] = time.perf_counter_ns) -> float:
    """Nanoseconds a piece."""
    began = clock()
    work()
    return (clock() - began) / count


def leases(count: int, journal: Journal | None) -> tuple[IdleReaper, list[Callable[[], None]]]:
    """A core with *count* leases, logging if there is a journal, and their touches."""
    core = IdleReaper(tick=1.0)
    keeper = None if journal is None else Keeper(core, journal)
    touches = []
    for uid in range(count):
        lease = core.register(uid, 1e5, 0.0)
        if keeper is not None:
            keeper.opened(lease, 0.0, "bench")
        touches.append(lease.touch)
    return core, touches


def touch_costs(count: int, journal: Journal) -> dict[str, float]:
    """Bare and logging touches of *count* connections, once each a round, interleaved."""
    kinds = {"bare": leases(count, None), "gaps": leases(count, journal)}
    samples: dict[str, list[float]] = {name: [] for name in kinds}
    repeats = max(1, 20_000 // count)
    for turn in range(ROUNDS):
        for name, (core, touches) in kinds.items():
            core.advance(float(turn + 1))

            def work(touches: list[Callable[[], None]] = touches) -> None:
                for _ in range(repeats):
                    for touch in touches:
                        touch()

            samples[name].append(timed(work, count * repeats))
    return {name: quartile(values) for name, values in samples.items()}


def event_costs(directory: Path) -> dict[str, float]:
    """Each call of the API in full mode, per call on the loop's thread; and what the writer's thread spends a row."""
    count = 2_000
    samples: dict[str, list[float]] = {}
    with Journal(directory, mode="full", queue_rows=10_000_000, background=False) as journal:
        for turn in range(ROUNDS):
            logs: list[ConnectionLog] = []

            def opened(logs: list[ConnectionLog] = logs) -> None:
                logs.extend(journal.open(serial, 5000, "bench", serial) for serial in range(count))

            def touched(logs: list[ConnectionLog] = logs, turn: int = turn) -> None:
                for log in logs:
                    log.touch(turn, 10)

            def reaped(logs: list[ConnectionLog] = logs, turn: int = turn) -> None:
                for log in logs:
                    log.reap(turn, turn, "idle")

            for name, work in (("open", opened), ("touch, full mode", touched), ("reap", reaped)):
                samples.setdefault(name, []).append(timed(work, count))
            rows = journal.statistics().pending
            # CPU time, because the writer gives the interpreter away between columns.
            spent = timed(lambda: journal.flush(60), rows, time.thread_time_ns)
            samples.setdefault("writer's thread, CPU a row", []).append(spent)
    return {name: quartile(values) for name, values in samples.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What the journal costs.")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        touches = {}
        for count in (1, 1_000, 100_000):
            with Journal(Path(scratch, str(count)), mode="gaps", gap_threshold=5.0, background=False) as journal:
                touches[str(count)] = touch_costs(count, journal)
        events = event_costs(Path(scratch, "events"))
        size = sum(path.stat().st_size for path in Path(scratch, "events").glob("*.parquet"))
        rows = ROUNDS * 3 * 2_000
    result = {
        "python": platform.python_version(),
        "machine": platform.processor() or platform.machine(),
        "touch_ns": {count: {**cost, "difference": cost["gaps"] - cost["bare"]} for count, cost in touches.items()},
        "event_ns": events,
        "parquet_bytes_per_row": size / rows,
    }
    if options.json:
        print(json.dumps(result, indent=2))
        return
    print(f"{'connections':>12}{'bare touch':>12}{'gaps mode':>12}{'difference':>12}   ns")
    for connections, cost in touches.items():
        print(f"{connections:>12}{cost['bare']:>12.1f}{cost['gaps']:>12.1f}{cost['gaps'] - cost['bare']:>12.1f}")
    for name, spent in events.items():
        print(f"{name:<26}{spent:>8.0f} ns")
    print(f"{'Parquet':<26}{size / rows:>8.1f} bytes a row")


if __name__ == "__main__":
    main()
