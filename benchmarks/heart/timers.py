"""What a timer costs in the wheel and in a heapq with lazy deletion.

    python -m benchmarks run timers

The two queues take turns within each round, in one process, on the same timers; the
machine's moods hit both, so the ratios are what to trust. Figures are medians over the
rounds, with the collector off while the clock runs: its pauses depend on everything
else that lives in the process.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from reaper.core.wheel import TimingWheel
from reaper.testing import HeapTimerQueue

from ..common import Note, Scale, by_scale, figure, markdown, ratios, short, spread, times

QUEUES: dict[str, Callable[[], Any]] = {"wheel": TimingWheel, "heap": HeapTimerQueue}
NEAREST, FARTHEST = (
    10_000,
    110_000,
)  # deadlines in ticks: 10 to 110 s at 1 ms, three levels of the wheel
SAMPLE = 50_000  # timers cancelled, and as many rescheduled
IDLE_TICKS = 200

Figures = dict[str, list[float]]


@contextmanager
def timed(figures: Figures, name: str, count: int) -> Iterator[None]:
    """Note the nanoseconds an item of *count* that the block takes."""
    before = time.process_time_ns()
    yield
    figures.setdefault(name, []).append((time.process_time_ns() - before) / max(count, 1))


def one_turn(queue: Any, deadlines: Sequence[int], choose: random.Random, figures: Figures) -> None:
    """The life of one queue: filled, changed, worked off."""
    with timed(figures, "schedule", len(deadlines)):
        timers = [queue.schedule(deadline, None) for deadline in deadlines]
    picked = choose.sample(timers, min(2 * SAMPLE, len(timers) // 2))
    half = len(picked) // 2
    targets = [choose.randrange(NEAREST, FARTHEST) for _ in range(half)]
    with timed(figures, "reschedule", half):
        for timer, deadline in zip(picked[:half], targets, strict=True):
            timer.reschedule(deadline)
    with timed(figures, "cancel", half):
        for timer in picked[half:]:
            timer.cancel()
    with timed(figures, "idle tick", IDLE_TICKS):
        for now in range(IDLE_TICKS):
            queue.next_expiry()
            queue.advance(now)
    queue.advance(NEAREST - 1)
    one_percent = NEAREST + (FARTHEST - NEAREST) // 100
    before = len(queue)
    with timed(figures, "1% due, each", round(before * 0.01)):
        queue.advance(one_percent)
    with timed(figures, "all due, each", len(queue)):
        queue.advance(FARTHEST)


def queues(count: int, rounds: int, note: Note) -> dict[str, dict[str, Any]]:
    """Nanoseconds by queue and act, for *count* timers."""
    figures: dict[str, Figures] = {name: {} for name in QUEUES}
    for turn in range(rounds):
        note(f"{count:,} timers, round {turn + 1} of {rounds}")
        choose = random.Random(turn)
        deadlines = [choose.randrange(NEAREST, FARTHEST) for _ in range(count)]
        names = list(QUEUES) if turn % 2 else list(QUEUES)[::-1]
        for name in names:
            gc.collect()
            one_turn(QUEUES[name](), deadlines, random.Random(turn), figures[name])
    found: dict[str, dict[str, Any]] = {
        name: {act: spread(each) for act, each in acts.items()} for name, acts in figures.items()
    }
    found["wheel/heap"] = {
        act: ratios(each, figures["heap"][act]) for act, each in figures["wheel"].items()
    }
    return found


def run(scale: Scale, note: Note) -> dict[str, Any]:
    """`timers[n][queue][act]` in ns per item."""
    gc.disable()
    plan = by_scale(scale, [(500, 2)], [(10_000, 4)], [(100_000, 10), (1_000_000, 2)])
    found = {str(count): queues(count, rounds, note) for count, rounds in plan}
    gc.enable()
    return {"timers": found, "unit": "ns"}


def table(found: dict[str, Any]) -> str:
    """The most timers that were measured."""
    n, queues = list(found["timers"].items())[-1]
    rows = [
        [
            act,
            figure(each["median"]),
            figure(queues["heap"][act]["median"]),
            times(queues["wheel/heap"][act]),
        ]
        for act, each in queues["wheel"].items()
    ]
    return markdown([f"{short(n)} timers, ns each", "wheel", "heapq", "wheel / heapq"], rows)
