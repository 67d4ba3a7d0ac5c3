"""What a touch costs: ours, the floors, and every peer, in interleaved rounds.

One rule: each measured pass finds the caches as every other does. With up to ten thousand connections all is *hot*: the
pass is repeated. With more it is *warm*: the same pass went before, and the caches hold what they can of so many in
random order. From a million on, which no cache holds, it is *cold*: a block larger than the caches was read. With a
hundred thousand it is both, in turn.
"""

from __future__ import annotations

import gc
import random
import statistics
from typing import Any

from ..common import Note, Scale, by_scale, cool, figure, markdown, names, ns_of, ratios, short, spread, times
from ..peers import python as peers

HOT = 10_000
"""Up to so many connections a pass is repeated and nothing is cooled."""
BUSY = 1_000
"""The busy ones among many silent."""
COLD = 1_000_000
"""From so many on every pass is cold."""
BOTH = 100_000
"""From so many on it is cold as well."""
TOUCHED = 100_000
"""So many at most are touched in a pass, spread over all."""
FAR = 1e7
"""The timeout, seconds: none falls due while touches are timed."""


def run(scale: Scale, note: Note) -> dict[str, Any]:
    """`results[peer][n]`: touch_ns, cold_ns, round by round their ratio to the empty call; and our special cases."""
    sizes = by_scale(scale, [200], [1_000, 10_000, 100_000], [1_000, 10_000, 100_000, 1_000_000])
    gc.disable()
    results: dict[str, dict[str, Any]] = {}
    for n in sizes:
        rounds = by_scale(scale, 2, 15 if n <= BUSY else 3, 61 if n <= BUSY else 9 if n <= 100_000 else 7)
        for peer, figures in compare(n, rounds, note).items():
            results.setdefault(peer, {})[str(n)] = figures
    again = repeated(by_scale(scale, 200, 20_000, 100_000), by_scale(scale, 3, 9, 31), note)
    few, many = by_scale(scale, (100, 500), (10_000, 200_000), (100_000, 10_000_000))
    subset = hot_subset(few, many, note)
    gc.enable()
    return {"results": results, "repeated": again, "hot_subset": subset, "unit": "ns"}


def compare(n: int, rounds: int, note: Note) -> dict[str, dict[str, Any]]:
    """Every peer that can hold *n*, in rounds that begin with another one each time."""
    keys = names(n)
    order = random.Random(1).sample(range(n), min(n, TOUCHED))
    entered: list[tuple[peers.Peer, list[Any]]] = []
    samples: dict[str, list[float]] = {}
    cold: dict[str, list[float]] = {}
    try:
        for kind in peers.ALL:
            if n > kind.largest:
                continue
            note(f"{n:,} connections: {kind.name} gets ready")
            peer = kind(keys, FAR)
            peer.register(n, 0.0)
            entered.append((peer, peer.handles(order)))
            samples[kind.name], cold[kind.name] = [], []
        for turn in range(rounds):
            note(f"{n:,} connections, {len(entered)} peers: round {turn + 1} of {rounds}")
            now = float(turn + 1)
            first = turn % len(entered)
            for peer, handles in entered[first:] + entered[:first]:
                if peer.expires:
                    peer.tick(now)
                if n <= HOT:
                    samples[peer.name].append(hot(peer, handles, now))
                elif n < COLD:
                    peer.touch_all(handles, now)
                    samples[peer.name].append(net(peer, handles, now, cold=False))
                if n >= BOTH:
                    cold[peer.name].append(net(peer, handles, now, cold=True))
    finally:
        for peer, _ in entered:
            peer.close()
    found: dict[str, dict[str, Any]] = {name: {} for name in samples}
    for name_of, taken in (("touch_ns", samples if n < COLD else cold), ("cold_ns", cold)):
        prefix = "" if name_of == "touch_ns" else "cold_"
        for name, each in taken.items():
            if each:
                found[name] |= {
                    name_of: spread(each),
                    f"{prefix}to_empty": ratios(each, taken[peers.EmptyCall.name]),
                    f"{prefix}to_store": ratios(each, taken[peers.DictStore.name]),
                    f"{prefix}lease_to_it": ratios(taken[peers.LeaseTouch.name], each),
                }
    return found


def net(peer: peers.Peer, handles: list[Any], now: float, *, cold: bool) -> float:
    """CPU nanoseconds a touch, net of the loop around it."""
    if cold:
        cool()
    spent = ns_of(peer.touch_all, handles, now)
    if cold:
        cool()
    # A machine in trouble can make the loop dearer than the loop with touches: no ratio can be made of that.
    return max(1.0, (spent - ns_of(peer.baseline, handles)) / len(handles))


def hot(peer: peers.Peer, handles: list[Any], now: float) -> float:
    """The same, the median of nine passes: each alone is short."""
    return statistics.median(net(peer, handles, now, cold=False) for _ in range(9))


def repeated(n: int, rounds: int, note: Note) -> dict[str, Any]:
    """The first touch of a lease in an epoch, which stores another epoch than is there, and the one after it."""
    peer = peers.LeaseTouch(names(n), FAR)
    peer.register(n, 0.0)
    handles = peer.handles(random.Random(1).sample(range(n), n))
    first, second = [], []
    for turn in range(rounds):
        note(f"first and repeated touch, {n:,} connections: round {turn + 1} of {rounds}")
        now = float(turn + 1)
        peer.tick(now)
        first.append(net(peer, handles, now, cold=True))
        second.append(net(peer, handles, now, cold=True))
    return {"n": n, "first": spread(first), "second": spread(second), "second_to_first": ratios(second, first)}


def hot_subset(few: int, many: int, note: Note) -> dict[str, Any]:
    """The same 1,000 busy connections among *few* and among *many*: what the silent ones cost the busy."""
    busy = min(BUSY, few)
    entered = {}
    for n in (few, many):
        note(f"hot subset: {n:,} connections get ready")
        peer = peers.LeaseTouch(range(n), FAR)  # type: ignore[arg-type]  # numbers as keys: ten million strings are a GB
        peer.register(n, 0.0)
        entered[n] = (peer, peer.handles(random.Random(2).sample(range(n), busy)))
    samples: dict[int, list[float]] = {few: [], many: []}
    for turn in range(101):
        note(f"hot subset of {busy:,}: round {turn + 1} of 101")
        for n in (few, many) if turn % 2 else (many, few):
            peer, handles = entered[n]
            peer.tick(float(turn + 1))
            samples[n].append(hot(peer, handles, float(turn + 1)))
    return {
        "few": few,
        "many": many,
        "busy": busy,
        "among_few": spread(samples[few]),
        "among_many": spread(samples[many]),
        "ratio": ratios(samples[many], samples[few]),
    }


def table(found: dict[str, Any]) -> str:
    """A row per peer, a column per number of connections."""
    results = {kind: found["results"][kind.name] for kind in peers.ALL if kind.name in found["results"]}
    sizes = list(results[peers.LeaseTouch])

    def cell(figures: dict[str, Any] | None) -> str:
        if figures is None:
            return "-"
        shown = f"{figure(figures['touch_ns']['median'])}, {times(figures['to_empty'])}"
        if "cold_to_empty" in figures and figures["cold_ns"] != figures["touch_ns"]:
            shown += f"<br>cold {figure(figures['cold_ns']['median'])}, {times(figures['cold_to_empty'])}"
        return shown

    rows = []
    for kind, by_size in results.items():
        name = f"**{kind.name}**" if kind in peers.OURS else kind.name
        rows.append([f"{name}: {kind.how}", *(cell(by_size.get(size)) for size in sizes)])
    text = markdown(["CPU ns per touch, x an empty call", *(f"{short(size)} open" for size in sizes)], rows)
    again, subset = found["repeated"], found["hot_subset"]
    return (
        f"{text}\n\nConnections are touched in random order. *Cold*: a block larger than the caches was read before, "
        f"from 1M on always. The control row is the same code twice.\n\nThe first touch in an epoch takes "
        f"{figure(again['first']['median'])} ns, the next {times(again['second_to_first'])} of it ({short(again['n'])} "
        f"open). {short(subset['busy'])} busy connections among {short(subset['many'])} cost {times(subset['ratio'])} "
        f"of what they cost among {short(subset['few'])}."
    )
