"""What a touch costs: ours, the floors, and every peer, in interleaved rounds.

One rule: each measured pass finds the caches as every other does. With up to ten
thousand connections a pass is repeated; with more the same pass went before, in random
order. From a million on, which no cache holds, a block larger than the caches is read
before each.
"""

from __future__ import annotations

import gc
import random
import statistics
from contextlib import ExitStack, closing
from typing import Any

from ..common import (
    Note,
    Scale,
    by_scale,
    cool,
    figure,
    markdown,
    names,
    ns_of,
    ratios,
    short,
    spread,
    times,
)
from ..peers import python as peers

HOT = 10_000
"""Up to so many connections a pass is repeated and nothing is cooled."""
COLD = 1_000_000
"""From so many on a block larger than the caches is read before each pass."""
TOUCHED = 100_000
"""So many at most are touched in a pass, spread over all."""
FAR = 1e7
"""The timeout, seconds: none falls due while touches are timed."""


def run(scale: Scale, note: Note) -> dict[str, Any]:
    """`results[peer][n]`: touch_ns, and round by round its ratio to the empty call, and
    that of a lease to it.
    """
    sizes = by_scale(scale, [200], [1_000, 100_000], [1_000, 100_000, 1_000_000])
    gc.disable()
    results: dict[str, dict[str, Any]] = {}
    for n in sizes:
        rounds = by_scale(
            scale, 2, 15 if n < HOT else 3, 61 if n < HOT else 9 if n <= 100_000 else 7
        )
        for peer, figures in compare(n, rounds, note).items():
            results.setdefault(peer, {})[str(n)] = figures
    gc.enable()
    return {"results": results, "unit": "ns"}


def compare(n: int, rounds: int, note: Note) -> dict[str, dict[str, Any]]:
    """Every peer that can hold *n*, in rounds that begin with another one each time."""
    keys = names(n)
    order = random.Random(1).sample(range(n), min(n, TOUCHED))
    entered: list[tuple[peers.Peer, list[Any]]] = []
    samples: dict[str, list[float]] = {}
    with ExitStack() as stack:
        for kind in peers.ALL:
            if n <= kind.largest:
                note(f"{n:,} connections: {kind.name} gets ready")
                peer = stack.enter_context(closing(kind(keys, FAR)))
                peer.register(n, 0.0)
                entered.append((peer, peer.handles(order)))
                samples[kind.name] = []
        for turn in range(rounds):
            note(f"{n:,} connections, {len(entered)} peers: round {turn + 1} of {rounds}")
            now = float(turn + 1)
            first = turn % len(entered)
            for peer, handles in entered[first:] + entered[:first]:
                if peer.expires:
                    peer.tick(now)
                if HOT < n < COLD:
                    peer.touch_all(handles, now)
                samples[peer.name].append(
                    hot(peer, handles, now) if n <= HOT else net(peer, handles, now, n >= COLD)
                )
    empty, lease = samples[peers.EmptyCall.name], samples[peers.LeaseTouch.name]
    return {
        name: {
            "touch_ns": spread(each),
            "to_empty": ratios(each, empty),
            "lease_to_it": ratios(lease, each),
        }
        for name, each in samples.items()
    }


def net(peer: peers.Peer, handles: list[Any], now: float, cold: bool) -> float:
    """CPU nanoseconds a touch, net of the loop around it."""
    if cold:
        cool()
    spent = ns_of(peer.touch_all, handles, now)
    if cold:
        cool()
    # A machine in trouble can make the loop dearer than the loop with touches: no ratio
    # can be made of that.
    return max(1.0, (spent - ns_of(peer.baseline, handles)) / len(handles))


def hot(peer: peers.Peer, handles: list[Any], now: float) -> float:
    """The same, the median of nine passes: each alone is short."""
    return statistics.median(net(peer, handles, now, False) for _ in range(9))


def table(found: dict[str, Any]) -> str:
    """A row per peer, a column per number of connections."""
    results = {
        kind: found["results"][kind.name] for kind in peers.ALL if kind.name in found["results"]
    }
    sizes = list(results[peers.LeaseTouch])

    rows = []
    for kind, by_size in results.items():
        name = f"**{kind.name}**" if kind in peers.OURS else kind.name
        each = (by_size.get(size) for size in sizes)
        cells = (
            one and f"{figure(one['touch_ns']['median'])}, {times(one['to_empty'])}" for one in each
        )
        rows.append([name, *(cell or "-" for cell in cells)])
    text = markdown(
        ["CPU ns per touch, x an empty call", *(f"{short(size)} open" for size in sizes)], rows
    )
    return f"{text}\n\nIn random order; 1M: nothing in the caches."
