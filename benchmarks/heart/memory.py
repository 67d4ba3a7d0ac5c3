"""Bytes a connection: fresh, after traffic, after an hour of it. Keys not counted; tracemalloc, so every allocation is.

One rule: what is compared is the same connections, still there: a connection that is reaped comes back at once.
"""

from __future__ import annotations

import gc
import random
import sys
import tracemalloc
from typing import Any

import numpy

import reaper

from ..common import Note, Scale, by_scale, figure, markdown, names, short
from ..peers import python as peers

TIMEOUT = 30.0


def run(scale: Scale, note: Note) -> dict[str, Any]:
    """`results[peer][n]`: bytes_fresh, bytes_traffic (a minute); `hour`: ours through an hour of virtual traffic."""
    sizes = by_scale(scale, [200], [1_000, 10_000], [1_000, 10_000, 100_000, 1_000_000])
    results: dict[str, dict[str, Any]] = {}
    for n in sizes:
        for kind in peers.ALL:
            if not kind.expires or issubclass(kind, peers.TrioScope) or n > min(kind.largest, 1_000_000):
                continue
            note(f"{n:,} connections, {kind.name}")
            results.setdefault(kind.name, {})[str(n)] = of_peer(kind, n)
    n, minutes = by_scale(scale, (200, 2), (5_000, 10), (50_000, 60))
    return {"results": results, "hour": hour(n, minutes, note), "unit": "bytes a connection"}


def of_peer(kind: type[peers.Peer], n: int) -> dict[str, float]:
    """Fresh, and after a minute in which each spoke every ten seconds."""
    keys = names(n)
    shuffled = random.Random(5).sample(range(n), n)
    gc.collect()
    tracemalloc.start()
    base = tracemalloc.get_traced_memory()[0]
    peer = kind(keys, TIMEOUT)
    try:
        peer.register(n, 0.0)
        held = sys.getsizeof(peer.leases) if isinstance(peer, peers.LeaseTouch) else 0
        if isinstance(peer, peers.AsyncioTimer):
            held = sys.getsizeof(peer.protocols)
        fresh = (tracemalloc.get_traced_memory()[0] - base - held) / n
        found = {"bytes_fresh": fresh}
        if n <= kind.steady_largest and n <= 100_000:
            for second in range(60):
                peer.touch_all(peer.handles(shuffled[second % 10 :: 10]), float(second))
                peer.tick(second + 1.0)
            gc.collect()
            found["bytes_traffic"] = (tracemalloc.get_traced_memory()[0] - base - held) / n
        return found
    finally:
        peer.close()
        tracemalloc.stop()


def hour(n: int, minutes: int, note: Note) -> dict[str, Any]:
    """`reaper.IdleReaper` after so many minutes in which *n* connections each speak every ten seconds, by chance."""
    rng = numpy.random.default_rng(2)
    keys = names(n)
    gc.collect()
    tracemalloc.start()
    try:
        base = tracemalloc.get_traced_memory()[0]
        core = reaper.IdleReaper(tick=1.0)
        for second in range(30):  # evenly over one timeout, as they come to a server
            for key in keys[second * n // 30 : (second + 1) * n // 30]:
                core.register(key, TIMEOUT, float(second))
            core.advance(second + 1.0)
        fresh = (tracemalloc.get_traced_memory()[0] - base) / n
        uid_map = sys.getsizeof(core._leases) / n
        series = []
        now = 30.0
        for minute in range(minutes):
            note(f"{n:,} connections, minute {minute + 1} of {minutes} (virtual)")
            for _ in range(60):
                touch = core.touch
                for number in rng.integers(0, n, n // 10).tolist():
                    touch(keys[number])
                now += 1.0
                for expiry in core.advance(now):
                    core.register(expiry.uid, TIMEOUT, now)
            gc.collect()
            series.append((tracemalloc.get_traced_memory()[0] - base) / n)
        uid_map_after = sys.getsizeof(core._leases) / n
    finally:
        tracemalloc.stop()
    return {
        "n": n,
        "minutes": minutes,
        "fresh": fresh,
        "uid_map": uid_map,
        "lease": fresh - uid_map,
        "after": series[-1],
        "growth": series[-1] / fresh,
        "uid_map_after": uid_map_after,
        "lease_after": series[-1] - uid_map_after,
        "lease_growth": (series[-1] - uid_map_after) / (fresh - uid_map),
        "by_minute": series,
    }


def table(found: dict[str, Any]) -> str:
    """Fresh, and after a minute of traffic; then the hour."""
    results = {kind: found["results"][kind.name] for kind in peers.ALL if kind.name in found["results"]}
    sizes = list(results[peers.LeaseTouch])

    def cell(figures: dict[str, float] | None) -> str:
        if figures is None:
            return "-"
        after = f", then {figure(figures['bytes_traffic'])}" if "bytes_traffic" in figures else ""
        return figure(figures["bytes_fresh"]) + after

    rows = []
    for kind, by_size in results.items():
        if kind is not peers.UidTouch:
            name = "**reaper: lease and map**" if kind is peers.LeaseTouch else kind.name
            rows.append([name, *(cell(by_size.get(size)) for size in sizes)])
    hour = found["hour"]
    return markdown(["bytes, fresh, then after a minute", *(f"{short(size)} open" for size in sizes)], rows) + (
        f"\n\nBy `tracemalloc`, keys not counted. {short(hour['n'])} connections that come evenly: "
        f"{figure(hour['lease'])} bytes for a lease and {figure(hour['uid_map'])} for the map from uids; after "
        f"{hour['minutes']} minutes of traffic {figure(hour['after'])} together: churn makes a dict grow."
    )
