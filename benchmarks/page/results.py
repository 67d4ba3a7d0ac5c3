"""The figures of a run, read back: what goals, tables and plots ask.

One rule: what is not there is None, never a guess.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..peers import table as peers

Spread = dict[str, Any]
LEASE = peers.LeaseTouch.name
UID = peers.UidTouch.name
EMPTY = peers.EmptyCall.name
CONTROL = peers.EmptyAgain.name
STORE = peers.DictStore.name
SERVERS_OURS = frozenset({"ours", "ours-parked", "ours-echo", "ours-echo-parked"})


class NoResults(Exception):
    """There is nothing to write about."""


class Results:
    """What lies in a results directory, one part per file."""

    def __init__(self, directory: Path) -> None:
        self.parts: dict[str, dict[str, Any]] = {}
        for path in sorted(directory.glob("*.json")):
            self.parts[path.stem] = json.loads(path.read_text())
        if not self.parts:
            raise NoResults(f"{directory}: no results there; measure first: python -m benchmarks run")

    def get(self, part: str, *path: str) -> Any:
        """The value at *path* within *part*; None if it is not there."""
        found: Any = self.parts.get(part)
        for step in path:
            if not isinstance(found, dict):
                return None
            found = found.get(step)
        return found

    def sizes(self, part: str, peer: str) -> list[int]:
        """The numbers of connections that *part* knows of *peer*, ascending."""
        return sorted(int(n) for n in self.get(part, "results", peer) or {})

    def largest(self, part: str, *path: str, most: int | None = None) -> int | None:
        """The largest number of connections below *path* in *part*, up to *most*."""
        found = [int(n) for n in self.get(part, *path) or {}]
        found = [n for n in found if most is None or n <= most]
        return max(found, default=None)


@dataclass(frozen=True)
class Comparison:
    """Ours compared with theirs, in one metric where less is better, at one size."""

    metric: str
    n: int
    ours: str
    theirs: str
    our_value: float
    their_value: float
    ratio: float
    unit: str


METRICS = {
    ("touch", "touch_ns"): ("a touch", "ns"),
    ("ticks", "register_ns"): ("register", "ns"),
    ("ticks", "release_ns"): ("release", "ns"),
    ("ticks", "idle_us"): ("tick, nothing due", "us"),
    ("ticks", "one_percent_ms"): ("tick, 1 % due, all others have spoken", "ms"),
    ("ticks", "all_due_ms"): ("tick, all due", "ms"),
    ("ticks", "steady_mean_ms"): ("tick under traffic, mean", "ms"),
    ("ticks", "steady_worst_ms"): ("tick under traffic, worst", "ms"),
    ("memory", "bytes_fresh"): ("memory, fresh", "B"),
    ("memory", "bytes_traffic"): ("memory, after a minute of traffic", "B"),
}


def middle(value: Any) -> float | None:
    """The median of a spread, or the number itself."""
    if isinstance(value, dict):
        value = value.get("median")
    return float(value) if isinstance(value, (int, float)) else None


def comparisons(results: Results) -> Iterator[Comparison]:
    """Every comparison of `lease.touch()` and its core with another implementation that the results hold."""
    for (part, metric), (what, unit) in METRICS.items():
        for theirs, by_n in (results.get(part, "results") or {}).items():
            if theirs in peers.OUR_NAMES or theirs in peers.CONTROLS:
                continue
            for n, figures in by_n.items():
                us = middle(results.get(part, "results", LEASE, n, metric))
                them = middle(figures.get(metric))
                if us is not None and them:
                    by_round = middle(figures.get("lease_to_it")) if metric == "touch_ns" else None
                    yield Comparison(what, int(n), LEASE, theirs, us, them, by_round or us / them, unit)
    for theirs, by_n in (results.get("jvm", "ratios") or {}).items():
        for n, ratio in by_n.items():
            us = middle(results.get("jvm", "results", "lease.touch", n, "touch_ns"))
            them = middle(results.get("jvm", "results", theirs, n, "touch_ns"))
            if us is not None and them is not None:
                yield Comparison("a touch (JVM)", int(n), LEASE, theirs, us, them, ratio["touch"]["median"], "ns CPU")
    for theirs, mine in (results.get("servers", "ratios") or {}).items():
        for ours, ratio in mine.items():
            n = results.get("servers", "size", "connections") or 0
            us, them = (results.get("servers", "results", name) for name in (ours, theirs))
            for key, what, unit in (
                ("bytes_per_idle_connection", "server: memory of an idle connection", "B"),
                ("cpu_us", "server: CPU per request", "us"),
            ):
                a, b = middle(us.get(key)), middle(them.get(key))
                if a is not None and b is not None and b > 0:
                    by_round = ratio["cpu"]["median"] if key == "cpu_us" else a / b
                    yield Comparison(what, n, ours, theirs, a, b, by_round, unit)
