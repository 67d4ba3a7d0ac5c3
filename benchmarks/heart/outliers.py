"""What the single slices of 7 to 14 ms were that a mass expiry of a million showed with the collector off.

One rule: the suspect designs run next to an empty loop, and of each slow slice is noted what tells the machine from the
design: CPU time of the thread (time on the wall beyond it was taken by others), page faults, involuntary switches, and
where in the run it came.
"""

from __future__ import annotations

import gc
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import reaper

from ..common import Note, Scale, by_scale

LIMIT = 1024
SLOW_MS = 2.0


class Connection:
    """What lies in the naive slots: as wide as a lease."""

    __slots__ = ("a", "b", "stamp", "uid")

    def __init__(self, uid: int) -> None:
        self.uid = uid
        self.a = self.b = None
        self.stamp = 0


Steps = Iterator[None]
"""Each next() is one slice."""


def kept_to_the_end(n: int) -> Steps:
    """One list a slot, walked by index, dropped when it is done: it holds every connection until then."""
    index = {uid: Connection(uid) for uid in range(n)}
    slot = list(index.values())
    yield
    for start in range(0, n, LIMIT):
        for connection in slot[start : start + LIMIT]:
            del index[connection.uid]
        if start + LIMIT >= n:
            del slot, connection
        yield


def cut_at_the_front(n: int) -> Steps:
    """One list a slot, `del slot[:1024]`: what is left is moved down each time."""
    index = {uid: Connection(uid) for uid in range(n)}
    slot = list(index.values())
    yield
    while slot:
        for connection in slot[:LIMIT]:
            del index[connection.uid]
        del slot[:LIMIT], connection
        yield


def popped_at_the_end(n: int) -> Steps:
    """One list a slot, popped from its end: the list gives memory back when it is half empty."""
    index = {uid: Connection(uid) for uid in range(n)}
    slot = list(index.values())
    yield
    while slot:
        for _ in range(min(LIMIT, len(slot))):
            del index[slot.pop().uid]
        yield


def moved_to_a_growing_list(n: int) -> Steps:
    """One list a slot whose connections have all spoken: each is appended to the next slot, which grows as it goes."""
    slot = [Connection(uid) for uid in range(n)]
    target: list[Connection] = []
    yield
    for start in range(0, n, LIMIT):
        for connection in slot[start : start + LIMIT]:
            target.append(connection)  # noqa: PERF402 - one at a time, as when each is decided about
        yield
    # What is dropped after the last slice is not part of any.


def chunks(n: int) -> Steps:
    """Ours: the slot is a row of short lists, and a slice lets go of what it has reaped."""
    core = reaper.IdleReaper(tick=1.0)
    for uid in range(n):
        core.register(uid, 30.0, 0.0)
    core.close_epoch(1.0)
    core.close_epoch(31.0)
    yield
    while len(core):
        core.expire(31.0, LIMIT)
        yield


def empty(n: int) -> Steps:
    """The control: nothing but a loop, for as long as a slice of ours lasts."""
    yield
    for _ in range(0, n, LIMIT):
        for _ in range(12 * LIMIT):
            pass
        yield


DESIGNS: dict[str, Callable[[int], Steps]] = {
    "one list, kept to the end": kept_to_the_end,
    "one list, cut at the front": cut_at_the_front,
    "one list, popped at the end": popped_at_the_end,
    "one list, moved to a growing one": moved_to_a_growing_list,
    "chunks (ours)": chunks,
    "empty loop (control)": empty,
}


def run(scale: Scale, note: Note) -> dict[str, Any]:
    """`results[design]`: slices, worst ms wall and CPU over all rounds, and every slow slice with what it was."""
    n, rounds = by_scale(scale, (5_000, 1), (100_000, 3), (1_000_000, 5))
    results: dict[str, Any] = {
        name: {"slices": 0, "medians": [], "worst_ms": [], "worst_cpu_ms": [], "last_ms": [], "slow": []}
        for name in DESIGNS
    }
    for turn in range(rounds):
        for name in list(DESIGNS) if turn % 2 else list(DESIGNS)[::-1]:
            note(f"{n:,} due at once, {name}: round {turn + 1} of {rounds}")
            one(DESIGNS[name](n), results[name])
    for each in results.values():
        # More than half of it on the wall and not on the processor: another program had the processor.
        each["taken_by_others"] = sum(s["cpu_ms"] < s["ms"] / 2 for s in each["slow"])
        each["median_ms"] = statistics.median(each.pop("medians"))
    return {"results": results, "n": n, "rounds": rounds, "limit": LIMIT, "slow_ms": SLOW_MS}


def one(steps: Steps, into: dict[str, Any]) -> None:
    """Time every slice of one run, the collector off."""
    next(steps)
    gc.collect()
    gc.disable()
    taken = []
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    going = True
    while going:
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        going = next(steps, steps) is None
        cpu = time.thread_time_ns() - cpu
        wall = time.perf_counter_ns() - wall
        after = resource.getrusage(resource.RUSAGE_THREAD)
        taken.append((wall / 1e6, cpu / 1e6, after.ru_minflt - usage.ru_minflt, after.ru_nivcsw - usage.ru_nivcsw))
        usage = after
    gc.enable()
    taken.pop()  # the end of the generator, no slice
    walls = [wall for wall, *_ in taken]
    into["slices"] += len(taken)
    into["medians"].append(statistics.median(walls))
    into["worst_ms"].append(max(walls))
    into["worst_cpu_ms"].append(max(cpu for _, cpu, *_ in taken))
    into["last_ms"].append(walls[-1])
    into["slow"] += [
        {"ms": wall, "cpu_ms": cpu, "page_faults": faults, "involuntary_switches": switches, "at": (i + 1) / len(taken)}
        for i, (wall, cpu, faults, switches) in enumerate(taken)
        if wall > SLOW_MS
    ]
