"""What a timer costs in the wheel and in a heapq with lazy deletion, and what an operation costs in the purgatory.

    python -m benchmarks run timers

The two queues take turns within each round, in one process, on the same timers; the machine's moods hit both, so the
ratios are what to trust. Figures are medians over the rounds, with the collector off while the clock runs: its pauses
depend on everything else that lives in the process.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from reaper.core.purgatory import DelayedOperation, Purgatory
from reaper.core.wheel import TimingWheel
from reaper.testing import HeapTimerQueue

from ..common import Note, Scale, by_scale, figure, markdown, ratios, resident, short, spread, times

QUEUES: dict[str, Callable[[], Any]] = {"wheel": TimingWheel, "heap": HeapTimerQueue}
NEAREST, FARTHEST = 10_000, 110_000  # deadlines in ticks: 10 to 110 s at 1 ms, three levels of the wheel
SAMPLE = 50_000  # timers cancelled, and as many rescheduled
IDLE_TICKS = 200
RENEWALS = 5
SHARED_KEYS = 1_000

Figures = dict[str, list[float]]


@contextmanager
def timed(figures: Figures, name: str, count: int) -> Iterator[None]:
    """Note the nanoseconds an item of *count* that the block takes."""
    before = time.process_time_ns()
    yield
    figures.setdefault(name, []).append((time.process_time_ns() - before) / max(count, 1))


def one_turn(queue: Any, deadlines: Sequence[int], choose: random.Random, figures: Figures, by_ticks: bool) -> None:
    """The life of one queue: filled, changed, worked off in one jump or tick by tick."""
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
    rest = len(queue)
    if by_ticks:
        with timed(figures, "all, by next_expiry", rest):
            while (upcoming := queue.next_expiry()) is not None:
                queue.advance(upcoming)
    else:
        with timed(figures, "all due, each", rest):
            queue.advance(FARTHEST)


def queues(count: int, rounds: int, note: Note) -> dict[str, dict[str, Any]]:
    """Nanoseconds by queue and act, for *count* timers."""
    figures: dict[str, Figures] = {name: {} for name in QUEUES}
    for turn in range(2 * rounds):
        note(f"{count:,} timers, turn {turn + 1} of {2 * rounds}")
        choose = random.Random(turn)
        deadlines = [choose.randrange(NEAREST, FARTHEST) for _ in range(count)]
        names = list(QUEUES) if turn % 4 < 2 else list(QUEUES)[::-1]
        for name in names:
            gc.collect()
            one_turn(QUEUES[name](), deadlines, random.Random(turn), figures[name], by_ticks=turn % 2 == 1)
    found: dict[str, dict[str, Any]] = {
        name: {act: spread(each) for act, each in acts.items()} for name, acts in figures.items()
    }
    found["wheel/heap"] = {act: ratios(each, figures["heap"][act]) for act, each in figures["wheel"].items()}
    return found


class Waiting(DelayedOperation):
    """An operation as lean as a user's own can be."""

    __slots__ = ()

    def try_complete(self) -> bool:
        return False


def purgatory(count: int, note: Note) -> dict[str, float]:
    """*count* operations on shared keys, each completed and replaced by a new one `RENEWALS` times over.

    Returns resident bytes per operation, ns to complete and renew one in the last round, the longest of these in us.
    """
    gc.collect()
    order = list(range(count))
    live: list[Waiting] = [None] * count  # type: ignore[list-item]
    base = resident()
    wheel = TimingWheel[DelayedOperation]()
    waiting = Purgatory(wheel)
    longest, took = 0, 0.0
    clock = time.perf_counter_ns
    for turn in range(RENEWALS + 1):
        note(f"{count:,} operations, round {turn} of {RENEWALS}")
        random.Random(turn).shuffle(order)
        longest, began = 0, clock()
        for number in order:
            before = clock()
            if turn:
                live[number].force_complete()
            operation = live[number] = Waiting(deadline=100_000 + number % 60_000 + turn)
            waiting.try_complete_else_watch(operation, (number % SHARED_KEYS,))
            longest = max(longest, clock() - before)
        took = clock() - began
        assert (waiting.watched, waiting.delayed, len(wheel)) == (count, count, count)
    grown = (resident() - base) / count
    return {"round": RENEWALS, "bytes": grown, "ns": took / count, "longest_us": longest / 1000}


def run(scale: Scale, note: Note) -> dict[str, Any]:
    """`timers[n][queue][act]` in ns per item; `purgatory`: after the last round."""
    gc.disable()
    # First, while the process is small: what it frees for others to use again would not show in its resident bytes.
    renewed = purgatory(by_scale(scale, 500, 20_000, 300_000), note)
    gc.collect()
    plan = by_scale(scale, [(500, 1)], [(10_000, 2)], [(100_000, 5), (1_000_000, 1)])
    found = {str(count): queues(count, rounds, note) for count, rounds in plan}
    gc.enable()
    return {"timers": found, "purgatory": renewed, "unit": "ns"}


def table(found: dict[str, Any]) -> str:
    """The most timers that were measured, and the purgatory in a line."""
    n, queues = list(found["timers"].items())[-1]
    rows = [
        [act, figure(each["median"]), figure(queues["heap"][act]["median"]), times(queues["wheel/heap"][act])]
        for act, each in queues["wheel"].items()
    ]
    last = found["purgatory"]
    return markdown([f"{short(n)} timers, ns each", "wheel", "heapq", "wheel / heapq"], rows) + (
        f"\n\nThe purgatory: {figure(last['bytes'])} bytes an operation, {figure(last['ns'])} ns to renew one."
    )
