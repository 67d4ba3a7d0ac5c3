"""What else a peer does: register, release, a tick with nothing due, one in a hundred
due, or all, and under traffic.

Virtual time, one peer at a time, the collector off: its pauses are `mass.py`'s subject.
"""

from __future__ import annotations

import gc
import random
import statistics
from contextlib import closing
from typing import Any

from ..common import Note, Scale, by_scale, figure, markdown, names, ns_of, short, spread
from ..peers import python as peers

TIMEOUT = 30.0
IDLE_TICKS = 9
ENDED = 50_000
"""So many at most are released."""
WARM_UP = 35
TOUCH_EVERY = 10
"""Ticks between two touches of a connection under traffic."""


def run(scale: Scale, note: Note) -> dict[str, Any]:
    """`results[peer][n]`: register_ns, release_ns, idle_us, one_percent_ms, all_due_ms,
    steady_mean_ms.
    """
    sizes = by_scale(scale, [200], [1_000, 10_000], [1_000, 100_000, 1_000_000])
    gc.disable()
    results: dict[str, dict[str, Any]] = {}
    for n in sizes:
        rounds = by_scale(scale, 1, 3, 1 if n > 100_000 else 3)
        samples: dict[str, dict[str, list[float]]] = {}
        keys = names(n)
        kinds = [kind for kind in peers.ALL if kind.expires and n <= kind.largest]
        for turn in range(rounds):
            for kind in kinds:
                note(f"{n:,} connections, {kind.name}: round {turn + 1} of {rounds}")
                figures = samples.setdefault(kind.name, {})
                one_life(kind, keys, figures)
                if not issubclass(kind, peers.TrioScope):
                    steady(kind, keys, figures)
                gc.collect()
        for peer, figures in samples.items():
            results.setdefault(peer, {})[str(n)] = {
                act: spread(each) for act, each in figures.items()
            }
    gc.enable()
    return {"results": results, "timeout_s": TIMEOUT, "touch_every_s": TOUCH_EVERY}


def one_life(kind: type[peers.Peer], keys: list[str], figures: dict[str, list[float]]) -> None:
    """All registered at once; ticks with nothing due; 99 % speak, 1 % falls due; then
    all; some just leave.
    """

    def add(act: str, value: float) -> None:
        figures.setdefault(act, []).append(value)

    n = len(keys)
    shuffled = random.Random(1).sample(range(n), n)
    speaking, silent = shuffled[n // 100 :], n - len(shuffled[n // 100 :])
    with closing(kind(keys, TIMEOUT)) as peer:
        add("register_ns", ns_of(peer.register, n, 0.0) / n)
        peer.tick(1.0)
        for i in range(IDLE_TICKS):
            add("idle_us", ns_of(peer.tick, 2.0 + i) / 1e3)
        peer.touch_all(peer.handles(speaking), 20.0)
        peer.tick(21.0)
        add("one_percent_ms", _tick(peer, 34.0, silent) / 1e6)
        add("all_due_ms", _tick(peer, 60.0, len(speaking)) / 1e6)
    if issubclass(kind, peers.TrioScope):
        return  # a scope that is left is work for trio's scheduler, not for its timers
    with closing(kind(keys, TIMEOUT)) as peer:
        peer.register(n, 0.0)
        peer.tick(1.0)
        leaving = peer.handles(shuffled[: max(1, min(ENDED, n // 2))])
        add("release_ns", ns_of(peer.release, leaving) / len(leaving))


def _tick(peer: peers.Peer, now: float, expected: int) -> int:
    found: list[Any] = []
    spent = ns_of(lambda: found.extend(peer.tick(now)))
    if len(found) != expected:
        raise RuntimeError(f"{peer.name} expired {len(found)} at {now}, not {expected}")
    return spent


def steady(kind: type[peers.Peer], keys: list[str], figures: dict[str, list[float]]) -> None:
    """Every connection speaks every 10 s, a tenth of them in each second; none falls
    due. The last ticks count.
    """
    n = len(keys)
    shuffled = random.Random(3).sample(range(n), n)
    with closing(kind(keys, TIMEOUT)) as peer:
        peer.register(n, 0.0)
        cohorts = [peer.handles(shuffled[i::TOUCH_EVERY]) for i in range(TOUCH_EVERY)]
        spent = []
        for second in range(
            WARM_UP + round(TIMEOUT)
        ):  # what is counted is one whole timeout: all come up once
            peer.touch_all(cohorts[second % TOUCH_EVERY], float(second))
            spent.append(ns_of(peer.tick, second + 1.0) / 1e6)
        counted = spent[WARM_UP:]
        figures.setdefault("steady_mean_ms", []).append(statistics.fmean(counted))
        figures.setdefault("steady_worst_ms", []).append(max(counted))


COLUMNS = {
    "register, ns": "register_ns",
    "release, ns": "release_ns",
    "nothing due, us": "idle_us",
    "1 % due, ms": "one_percent_ms",
    "all due, ms": "all_due_ms",
    "traffic, mean ms": "steady_mean_ms",
    "traffic, worst ms": "steady_worst_ms",
}


def table(found: dict[str, Any]) -> str:
    """A row per peer, of the most connections that all of them can hold."""
    results = {
        kind: found["results"][kind.name] for kind in peers.ALL if kind.name in found["results"]
    }
    size = max(set.intersection(*(set(by_size) for by_size in results.values())), key=int)
    rows = []
    for kind, by_size in results.items():
        cells = (
            figure(by_size[size][key]["median"] if key in by_size[size] else None)
            for key in COLUMNS.values()
        )
        rows.append([f"**{kind.name}**" if kind in peers.OURS else kind.name, *cells])
    return markdown([f"{short(size)} connections", *COLUMNS], rows) + (
        "\n\nOne timeout for all, the easiest case for us; *a timeout each*: no two are the same, "
        "within a tenth, which a heap does not notice. "
        "That costs us more than one for all: timeouts are rounded up to quarters of a tick, and no "
        "coarser, or a close would come more than a tick late; so an epoch has a slot for each quarter, "
        "slots are small, few chunks move as a whole, and what was asked for is one more field. "
        "*1 % due*: all others have spoken, and are looked at in that tick. "
        f"*Traffic*: each speaks every {found['touch_every_s']} s."
    )
