"""What DenseReaper costs compared with IdleReaper: touch, memory, register, ticks, slices, growth; and where it loses.

One rule: processor time of this thread, both in one process, in interleaved rounds. Ratios within a run are what to
trust.

python -m benchmarks.heart.dense [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from reaper import DenseReaper, IdleReaper

LIMIT = 1024
"""Reaps a slice."""


def nanoseconds(function: Callable[..., object], *arguments: Any) -> int:
    """Of this thread's processor time, for one call."""
    before = time.thread_time_ns()
    function(*arguments)
    return time.thread_time_ns() - before


def spread(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    last = len(ordered) - 1
    return {
        "median": statistics.median(ordered),
        "p10": ordered[round(last * 0.1)],
        "p90": ordered[round(last * 0.9)],
        "p99.9": ordered[round(last * 0.999)],
        "worst": ordered[-1],
    }


# Every variant has a function of its own: the interpreter specialises code by what it has seen in it.
def loop_only(items: Iterable[Any]) -> None:
    for _ in items:
        pass


def idle_lease(items: Iterable[Any]) -> None:
    for item in items:
        item.touch()


def dense_lease(items: Iterable[Any]) -> None:
    for item in items:
        item.touch()


def touch_cost(n: int, rounds: int) -> dict[str, Any]:
    """ns per touch, net of the bare loop, over *n* connections in random order; the ratios are to a dict store."""
    order = random.Random(1).sample(range(n), n)
    idle, dense = IdleReaper(), DenseReaper(capacity=n)
    idle_leases = [idle.register(uid, 30.0, 0.0) for uid in range(n)]
    dense_leases = [dense.register(uid, 30.0, 0.0) for uid in range(n)]
    idle_leases, dense_leases = [idle_leases[i] for i in order], [dense_leases[i] for i in order]
    plain = dict.fromkeys(range(n), 0)

    def store(items: Iterable[int]) -> None:
        for item in items:
            plain[item] = n

    def idle_uid(items: Iterable[int]) -> None:
        for item in items:
            idle.touch(item)

    def dense_uid(items: Iterable[int]) -> None:
        for item in items:
            dense.touch(item)

    def dense_inline(items: Iterable[int]) -> None:
        epochs = dense.epochs
        for item in items:
            epochs[item] = dense.open_number

    variants: dict[str, tuple[Callable[[Any], None], Sequence[Any]]] = {
        "dict store": (store, order),
        "IdleReaper lease.touch()": (idle_lease, idle_leases),
        "IdleReaper touch(uid)": (idle_uid, order),
        "DenseReaper lease.touch()": (dense_lease, dense_leases),
        "DenseReaper touch(uid)": (dense_uid, order),
        "DenseReaper inline": (dense_inline, order),
        "DenseReaper touch_many": (dense.touch_many, order),
    }
    found: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(rounds + 1):
        idle.close_epoch(float(turn))
        dense.close_epoch(float(turn))
        for name, (function, items) in variants.items():
            bare = 0 if name == "DenseReaper touch_many" else nanoseconds(loop_only, items)
            cost = (nanoseconds(function, items) - bare) / n
            if turn:  # the first round warms up
                found[name].append(cost)
    base = found["dict store"]
    return {
        name: spread(values) | {"to_store": statistics.median(a / b for a, b in zip(values, base, strict=True))}
        for name, values in found.items()
    }


def memory(n: int) -> dict[str, float]:
    """Bytes a connection, uids not counted: registered one by one, handles dropped or kept; then a long silence."""
    uids = list(range(n))

    def measure(make: Callable[[], Any], keep: bool, timeout: float = 30.0, seconds: int = 0) -> float:
        gc.collect()
        tracemalloc.start()
        core = make()
        kept = [None] * n if keep else []
        base = tracemalloc.get_traced_memory()[0]
        for uid in uids:
            lease = core.register(uid, timeout, 0.0)
            if keep:
                kept[uid] = lease
        for second in range(1, seconds):
            core.advance(float(second))
        used = tracemalloc.get_traced_memory()[0] - base
        tracemalloc.stop()
        return used / n

    return {
        "IdleReaper": measure(IdleReaper, False),
        "DenseReaper": measure(lambda: DenseReaper(capacity=0), False),
        "DenseReaper, handles kept": measure(lambda: DenseReaper(capacity=0), True),
        "IdleReaper after 5 silent minutes of 1 h": measure(IdleReaper, False, 3600.0, 300),
        "DenseReaper after 5 silent minutes of 1 h": measure(lambda: DenseReaper(capacity=0), False, 3600.0, 300),
    }


def life(make: Callable[[int], Any], n: int) -> dict[str, float]:
    """ns to register and to discard each of *n*, and the longest single registration, ms of wall time."""
    core = make(0)

    def register() -> None:
        for uid in range(n):
            core.register(uid, 30.0, 0.0)

    def discard() -> None:
        for uid in range(n):
            core.discard(uid)

    figures = {"register_ns": nanoseconds(register) / n, "discard_ns": nanoseconds(discard) / n}
    core = make(0)
    worst = 0
    for uid in range(n):
        before = time.thread_time_ns()
        core.register(uid, 30.0, 0.0)
        worst = max(worst, time.thread_time_ns() - before)
    return figures | {"longest_register_ms": worst / 1e6}


def ticks(make: Callable[[int], Any], n: int) -> dict[str, Any]:
    """One `advance` a second: nothing due; each touched every 10 s of 30; all due at once, in slices."""
    core = make(n)
    for uid in range(n):
        core.register(uid, 30.0, 0.0)
    idle = [nanoseconds(core.advance, 1.0 + i) / 1e3 for i in range(20)]
    order = random.Random(3).sample(range(n), n)
    touch_many = getattr(core, "touch_many", None)
    steady = []
    now = 20.0
    for second in range(60):
        if touch_many is None:
            for uid in order[second % 10 :: 10]:
                core.touch(uid)
        else:
            touch_many(order[second % 10 :: 10])
        now += 1.0
        spent = nanoseconds(core.advance, now) / 1e3
        if second >= 20:
            steady.append(spent)
    assert len(core) == n
    del order
    for uid in range(n):
        core.touch(uid)
    core.close_epoch(now + 1.0)
    slices = []
    while len(core):
        before = time.thread_time_ns()
        expired = core.expire(now + 31.0, limit=LIMIT)
        slices.append((time.thread_time_ns() - before) / 1e6)
        del expired
    return {
        "idle_us": spread(idle),
        "steady_us": spread(steady) | {"mean": statistics.fmean(steady)},
        "slice_ms": spread(slices),
        "all_due_s": sum(slices) / 1e3,
    }


def sparse(members: int, largest: int) -> dict[str, float]:
    """*members* connections with uids spread evenly up to *largest*: bytes each, and a tick, us."""
    figures = {}
    for name, make in (("IdleReaper", IdleReaper), ("DenseReaper", lambda: DenseReaper(max_uid=largest))):
        tracemalloc.start()
        core: Any = make()
        for i in range(members):
            core.register((i + 1) * (largest // members), 30.0, 0.0)
        figures[f"{name} bytes"] = tracemalloc.get_traced_memory()[0] / members
        tracemalloc.stop()
        spent = []
        for second in range(1, 29):
            for uid in range(largest // members, largest + 1, largest // members):
                core.touch(uid)
            core.advance(float(second))
        for second in range(29, 60):
            for uid in range(largest // members, largest + 1, largest // members):
                core.touch(uid)
            spent.append(nanoseconds(core.advance, float(second)) / 1e3)
        figures[f"{name} tick_us"] = statistics.fmean(spent)
    return figures


def lanes(n: int, kinds: int) -> dict[str, float]:
    """A steady tick, us, when *n* connections have *kinds* distinct timeouts and all speak every second."""
    figures = {}
    for name, make in (("IdleReaper", IdleReaper), ("DenseReaper", lambda: DenseReaper(capacity=n))):
        core: Any = make()
        for uid in range(n):
            core.register(uid, 2.0 + uid % kinds / 1000, 0.0)
        spent = []
        for second in range(1, 13):
            for uid in range(n):
                core.touch(uid)
            cost = nanoseconds(core.advance, float(second)) / 1e3
            if second > 4:
                spent.append(cost)
        figures[name] = statistics.fmean(spent)
    return figures


def ageing(n: int) -> dict[str, Any]:
    """*n* connections fall silent in one second under a timeout of an hour: the calls in which they lose the number."""
    core = DenseReaper(capacity=n)
    for uid in range(n):
        core.register(uid, 3600.0, 0.0)
    for second in range(1, 225):
        core.close_epoch(float(second))
    slices = []
    while core.statistics().moved < n:
        slices.append(nanoseconds(core.expire, 224.0, LIMIT) / 1e6)
    return {"slice_ms": spread(slices), "total_ms": sum(slices)}


def run(quick: bool, note: Callable[[str], None]) -> dict[str, Any]:
    """All figures, told to *note* line by line as they come."""
    small, middle, big, huge = (500, 2_000, 10_000, 20_000) if quick else (1_000, 100_000, 1_000_000, 10_000_000)
    results: dict[str, Any] = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "processors": os.cpu_count(),
    }
    gc.disable()
    for n, rounds in ((small, 101), (middle, 15), (big, 5)):
        results[f"touch_{n}"] = cost = touch_cost(n, rounds)
        note(
            f"touch, {n:,} in random order: "
            + ", ".join(f"{name} {each['median']:.0f} ns ({each['to_store']:.2f}x)" for name, each in cost.items())
        )
        gc.collect()
    results["memory"] = bytes_each = memory(middle)
    note(f"bytes each, {middle:,}: " + ", ".join(f"{name} {value:.1f}" for name, value in bytes_each.items()))
    gc.enable()
    makers: dict[str, Callable[[int], Any]] = {
        "IdleReaper": lambda n: IdleReaper(),
        "DenseReaper": lambda n: DenseReaper(capacity=n),
    }
    for name, make in makers.items():
        results[f"life_{name}"] = figures = life(make, big)
        note(f"{name}, {big:,}: " + ", ".join(f"{act} {value:.2f}" for act, value in figures.items()))
        for n in (middle, big, huge) if name == "DenseReaper" else (middle, big):
            results[f"ticks_{name}_{n}"] = tick = ticks(make, n)
            note(
                f"{name}, {n:,}: idle tick {tick['idle_us']['median']:.0f} us, steady tick mean "
                f"{tick['steady_us']['mean']:.0f} us, worst {tick['steady_us']['worst']:.0f} us; all due: slice of "
                f"{LIMIT} {tick['slice_ms']['median']:.2f} ms, p99.9 {tick['slice_ms']['p99.9']:.2f} ms, worst "
                f"{tick['slice_ms']['worst']:.2f} ms, together {tick['all_due_s']:.2f} s"
            )
            gc.collect()
    results["sparse"] = figures = sparse(100, big)
    note(f"100 uids spread over {big:,}: " + ", ".join(f"{name} {value:,.1f}" for name, value in figures.items()))
    for kinds in (1, 16, 250):
        results[f"lanes_{kinds}"] = figures = lanes(middle, kinds)
        note(f"{kinds} timeouts, {middle:,}: tick us " + ", ".join(f"{name} {v:.0f}" for name, v in figures.items()))
    results["ageing"] = aged = ageing(big)
    note(
        f"ageing of {big:,} at once: slice {aged['slice_ms']['median']:.2f} ms, worst {aged['slice_ms']['worst']:.2f} "
        f"ms, together {aged['total_ms']:.0f} ms"
    )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small numbers, to see that it runs")
    parser.add_argument("--json", metavar="FILE", help="write the raw figures")
    options = parser.parse_args()
    results = run(options.quick, lambda line: print(line, flush=True))
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
