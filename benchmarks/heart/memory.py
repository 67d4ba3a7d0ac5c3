"""Bytes a connection: fresh, and after traffic. Keys not counted; tracemalloc, so every
allocation is.

One rule: what is compared is the same connections, still there: a connection that is
reaped comes back at once.
"""

from __future__ import annotations

import gc
import random
import sys
import tracemalloc
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from ..common import Note, Scale, by_scale, figure, markdown, names, short
from ..peers import python as peers

TIMEOUT = 30.0
BY_NUMBER = "the same, uids are numbers, as in a driver"
"""A dict that has only texts for keys keeps no hashes: it is smaller."""


def run(scale: Scale, note: Note) -> dict[str, Any]:
    """`results[peer][n]`: bytes_fresh, bytes_traffic (a minute)."""
    sizes = by_scale(scale, [200], [1_000, 10_000], [1_000, 100_000, 1_000_000])
    results: dict[str, dict[str, Any]] = {}
    for n in sizes:
        for kind in peers.ALL:
            if not kind.expires or issubclass(kind, peers.TrioScope):
                continue
            note(f"{n:,} connections, {kind.name}")
            results.setdefault(kind.name, {})[str(n)] = of_peer(kind, n)
        note(f"{n:,} connections, by number")
        results.setdefault(BY_NUMBER, {})[str(n)] = of_peer(peers.LeaseTouch, n, range(n))
    return {"results": results, "unit": "bytes a connection"}


def of_peer(kind: type[peers.Peer], n: int, uids: Sequence[int] | None = None) -> dict[str, float]:
    """Fresh, and after a minute in which each spoke every ten seconds. The keys are
    texts, or *uids*.
    """
    keys: Sequence[Any] = names(n) if uids is None else list(uids)
    shuffled = random.Random(5).sample(range(n), n)
    gc.collect()
    tracemalloc.start()
    base = tracemalloc.get_traced_memory()[0]
    with closing(kind(keys, TIMEOUT)) as peer:
        peer.register(n, 0.0)
        held = 0 if peer.held is keys else sys.getsizeof(peer.held)
        fresh = (tracemalloc.get_traced_memory()[0] - base - held) / n
        found = {"bytes_fresh": fresh}
        if n <= 100_000:
            for second in range(60):
                peer.touch_all(peer.handles(shuffled[second % 10 :: 10]), float(second))
                peer.tick(second + 1.0)
            gc.collect()
            found["bytes_traffic"] = (tracemalloc.get_traced_memory()[0] - base - held) / n
    tracemalloc.stop()
    return found


def table(found: dict[str, Any]) -> str:
    """Fresh, and after a minute of traffic."""
    results = {
        kind: found["results"][kind.name] for kind in peers.ALL if kind.name in found["results"]
    }
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
    if by_number := found["results"].get(BY_NUMBER):
        rows.insert(1, [BY_NUMBER, *(cell(by_number.get(size)) for size in sizes)])
    head = ["bytes, fresh, then after a minute", *(f"{short(size)} open" for size in sizes)]
    return markdown(head, rows) + "\n\nBy `tracemalloc`, keys not counted."
