"""What the core costs: touch, memory, ticks, slices. Interleaved rounds in one process; ratios are what to trust.

python benchmarks/core.py [--quick] [--json FILE]
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import reaper


class Empty:
    """The floor: an object as wide as a lease whose method does nothing."""

    __slots__ = ("a", "b", "c", "d")

    def touch(self) -> None:
        pass


def timed(function: Callable[[Iterable[Any]], None], items: Sequence[Any]) -> float:
    """Nanoseconds of process time an item."""
    before = time.perf_counter_ns()
    function(items)
    return (time.perf_counter_ns() - before) / len(items)


# Every variant has a function of its own: the interpreter specialises code by what it has seen in it.
def loop_only(items: Iterable[Any]) -> None:
    for _ in items:
        pass


def loop_only_uids(items: Iterable[Any]) -> None:
    for _ in items:
        pass


def call_empty(items: Iterable[Empty]) -> None:
    for item in items:
        item.touch()


def call_lease(items: Iterable[reaper.Lease]) -> None:
    for item in items:
        item.touch()


def touch_cost(n: int, rounds: int) -> dict[str, Any]:
    """Medians of *rounds* interleaved rounds over *n* connections in random order, net of the bare loop."""
    rng = random.Random(1)
    core = reaper.IdleReaper(tick=1.0)
    names = [f"10.0.{i >> 8 & 255}.{i & 255}:{i}" for i in range(n)]
    leases = [core.register(name, timeout=30.0, now=0.0) for name in names]
    empties = []
    for _ in range(n):
        empty = Empty()
        empty.a = empty.b = empty.c = empty.d = None
        empties.append(empty)
    plain: dict[str, Any] = dict.fromkeys(names)
    rng.shuffle(leases)
    rng.shuffle(empties)
    rng.shuffle(names)

    def store(items: Iterable[str]) -> None:
        for item in items:
            plain[item] = n

    def touch_uid(items: Iterable[str]) -> None:
        for item in items:
            core.touch(item)

    found: dict[str, list[float]] = {
        k: [] for k in ("empty", "empty_again", "lease", "store", "uid", "lease/empty", "empty/empty", "uid/store")
    }
    now = 0.0
    for _ in range(rounds):
        now += 1.0
        core.close_epoch(now)
        # What ran before decides what lies in the caches: the same pass goes before each, and is not counted.
        touch_uid(names)
        empty = timed(call_empty, empties) - timed(loop_only, empties)
        touch_uid(names)
        lease = timed(call_lease, leases) - timed(loop_only, leases)
        touch_uid(names)
        again = timed(call_empty, empties) - timed(loop_only, empties)
        call_empty(empties)
        stored = timed(store, names) - timed(loop_only_uids, names)
        call_empty(empties)
        uid = timed(touch_uid, names) - timed(loop_only_uids, names)
        for name, value in {
            "empty": empty,
            "empty_again": again,
            "lease": lease,
            "store": stored,
            "uid": uid,
            "lease/empty": lease / ((empty + again) / 2),
            "empty/empty": again / empty,
            "uid/store": uid / stored,
        }.items():
            found[name].append(value)
    return {name: spread(values) for name, values in found.items()}


def spread(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "median": statistics.median(ordered),
        "p10": ordered[len(ordered) // 10],
        "p90": ordered[len(ordered) * 9 // 10],
    }


def memory(n: int, minutes: int) -> dict[str, float]:
    """Bytes a connection (keys not counted): fresh, and after *minutes* of virtual traffic."""
    rng = random.Random(2)
    names = [f"10.0.{i >> 8 & 255}.{i & 255}:{i}" for i in range(n)]
    gc.collect()
    tracemalloc.start()
    base = tracemalloc.get_traced_memory()[0]
    core = reaper.IdleReaper(tick=1.0)
    for i, name in enumerate(names):
        core.register(name, timeout=30.0, now=i * 10.0 / n)
        if i % (n // 10) == 0:
            core.advance(i * 10.0 / n)
    fresh = (tracemalloc.get_traced_memory()[0] - base) / n
    without_map = fresh - sys.getsizeof(core._leases) / n
    now = 10.0
    for _ in range(minutes * 60):
        for _ in range(n // 10):
            core.touch(names[rng.randrange(n)])
        now += 1.0
        for expiry in core.advance(now):
            core.register(expiry.uid, timeout=30.0, now=now)
    after = (tracemalloc.get_traced_memory()[0] - base) / n
    tracemalloc.stop()
    return {"fresh": fresh, "fresh_without_uid_map": without_map, "after_traffic": after}


def slices(n: int, limit: int) -> dict[str, float]:
    """All *n* due in one instant, worked off in slices, with the garbage collector on. Milliseconds."""
    gc.enable()
    core = reaper.IdleReaper(tick=1.0)
    for i in range(n):
        core.register(i, timeout=30.0, now=0.0)
    core.close_epoch(1.0)
    core.close_epoch(31.0)
    gc.collect()
    collections_before = [generation["collections"] for generation in gc.get_stats()]
    times = []
    while len(core):
        before = time.perf_counter()
        expired = core.expire(31.0, limit=limit)
        times.append((time.perf_counter() - before) * 1e3)
        del expired
    after = [generation["collections"] for generation in gc.get_stats()]
    times.sort()
    return {
        "slices": len(times),
        "median": statistics.median(times),
        "p99.9": times[int(len(times) * 0.999)],
        "worst": times[-1],
        "gen2_collections": after[2] - collections_before[2],
    }


def ticks(n: int) -> dict[str, Any]:
    """Idle ticks, and steady ticks with every connection touched about every 10 s. Milliseconds."""
    core = reaper.IdleReaper(tick=1.0)
    leases = [core.register(i, timeout=3600.0, now=0.0) for i in range(n)]
    core.advance(1.0)
    idle = []
    for i in range(200):
        before = time.perf_counter()
        core.advance(2.0 + i)
        idle.append((time.perf_counter() - before) * 1e3)
    core = reaper.IdleReaper(tick=1.0)
    rng = random.Random(3)
    leases = [core.register(i, timeout=30.0, now=0.0) for i in range(n)]
    rng.shuffle(leases)
    steady = []
    now = 0.0
    for second in range(120):
        for lease in leases[second % 10 :: 10]:
            lease.touch()
        now += 1.0
        before = time.perf_counter()
        core.advance(now)
        if second >= 60:
            steady.append((time.perf_counter() - before) * 1e3)
    steady.sort()
    return {
        "idle_us": statistics.median(idle) * 1e3,
        "steady_mean": statistics.fmean(steady),
        "steady_worst": steady[-1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small numbers, to see that it runs")
    parser.add_argument("--json", metavar="FILE", help="write the raw figures")
    options = parser.parse_args()
    big = 20_000 if options.quick else 1_000_000
    middle = 2_000 if options.quick else 100_000
    results: dict[str, Any] = {
        "machine": {
            "python": platform.python_version(),
            "system": platform.platform(),
            "processors": os.cpu_count(),
        }
    }
    gc.disable()
    for n, rounds in ((1000, 301), (middle, 31), (big, 7)):
        cost = results[f"touch_{n}"] = touch_cost(n, rounds)
        print(
            f"touch, {n} connections, random order: empty call {cost['empty']['median']:.1f} ns, "
            f"lease.touch() {cost['lease']['median']:.1f} ns = {cost['lease/empty']['median']:.2f}x "
            f"({cost['lease/empty']['p10']:.2f}-{cost['lease/empty']['p90']:.2f}; "
            f"control {cost['empty/empty']['median']:.2f}x), "
            f"core.touch(uid) {cost['uid']['median']:.1f} ns = {cost['uid/store']['median']:.2f}x a dict store "
            f"({cost['uid/store']['p10']:.2f}-{cost['uid/store']['p90']:.2f})",
            flush=True,
        )
    gc.enable()
    results["memory"] = bytes_each = memory(middle, 2)
    print(
        f"memory, {middle} connections: fresh {bytes_each['fresh']:.0f} B each "
        f"({bytes_each['fresh_without_uid_map']:.0f} B without the uid map), "
        f"after two minutes of traffic {bytes_each['after_traffic']:.0f} B",
        flush=True,
    )
    results["ticks"] = tick = ticks(big)
    print(
        f"ticks, {big} connections: idle {tick['idle_us']:.1f} us, steady (each touched every 10 s) "
        f"mean {tick['steady_mean']:.2f} ms, worst {tick['steady_worst']:.2f} ms",
        flush=True,
    )
    results["slices"] = cut = slices(big, 1024)
    print(
        f"mass expiry of {big} in slices of 1024, collector on: median {cut['median']:.2f} ms, "
        f"p99.9 {cut['p99.9']:.2f} ms, worst {cut['worst']:.2f} ms ({cut['gen2_collections']} full collections)"
    )
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
