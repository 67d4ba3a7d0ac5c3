"""What was found for a goal, read from the results.

One rule: a reading says with which spread, and compared with what; None is "not measured".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .results import CONTROL, EMPTY, LEASE, STORE, UID, Results, middle
from .words import people, quantity, times


@dataclass(frozen=True)
class Measured:
    """What was found for a goal."""

    value: float
    text: str
    """The figure with its spread, as the table has it."""
    peer: str
    """Compared with what."""


def _ns(results: Results, peer: str, n: int, metric: str = "touch_ns") -> str:
    found = middle(results.get("touch", "results", peer, str(n), metric))
    return "not measured" if found is None else f"{quantity(found)} ns"


def _size(results: Results, n: int) -> int | None:
    """*n*, or the largest there is below it in a smaller run."""
    return results.largest("touch", "results", LEASE, most=n)


def lease_to_empty(n: int, prefix: str = "") -> Callable[[Results], Measured | None]:
    """lease.touch() against the empty call, and how far the control is off; *prefix* `cold_`: nothing in the caches."""
    metric = "cold_ns" if prefix else "touch_ns"

    def measure(results: Results) -> Measured | None:
        at = _size(results, n)
        if at is None:
            return None
        ratio = results.get("touch", "results", LEASE, str(at), f"{prefix}to_empty")
        control = results.get("touch", "results", CONTROL, str(at), f"{prefix}to_empty")
        if ratio is None:
            return None
        peer = f"empty call {_ns(results, EMPTY, at, metric)}; the same again: {times(control)}"
        return Measured(ratio["median"], f"{_ns(results, LEASE, at, metric)} = {times(ratio)} at {people(at)}", peer)

    return measure


def uid_to_store(n: int) -> Callable[[Results], Measured | None]:
    """core.touch(uid) against a bare dict store."""

    def measure(results: Results) -> Measured | None:
        at = _size(results, n)
        if at is None:
            return None
        ratio = results.get("touch", "results", UID, str(at), "to_store")
        text = f"{_ns(results, UID, at)} = {times(ratio)} at {people(at)}"
        return Measured(ratio["median"], text, f"dict store {_ns(results, STORE, at)}")

    return measure


def lease_to_peer(peer: str, n: int) -> Callable[[Results], Measured | None]:
    """lease.touch() against one of the loops' timers."""

    def measure(results: Results) -> Measured | None:
        at = results.largest("touch", "results", peer, most=n)
        ratio = None if at is None else results.get("touch", "results", peer, str(at), "lease_to_it")
        if at is None or ratio is None:
            return None
        text = f"{_ns(results, LEASE, at)} = {times(ratio, inverse=True)} at {people(at)}"
        return Measured(ratio["median"], text, f"{peer} {_ns(results, peer, at)}")

    return measure


def lease_to_jvm(n: int, *, whole: bool = False) -> Callable[[Results], Measured | None]:
    """The JVM timer that comes nearest, of those that move something at every packet."""

    def measure(results: Results) -> Measured | None:
        nearest = None
        for peer in results.get("jvm", "rearmed") or ():
            at = results.largest("jvm", "ratios", peer, most=n)
            ratio = None if at is None else results.get("jvm", "ratios", peer, str(at), "all_in" if whole else "touch")
            if ratio is not None and (nearest is None or ratio["median"] > nearest[0]["median"]):
                nearest = (ratio, peer, at)
        if nearest is None:
            return None
        ratio, peer, at = nearest
        ours = middle(results.get("jvm", "results", "lease.touch", str(at), "process_cpu_ns" if whole else "touch_ns"))
        theirs = middle(results.get("jvm", "results", peer, str(at), "process_cpu_ns" if whole else "touch_ns"))
        text = f"{quantity(ours or 0)} ns = {times(ratio, inverse=True)} at {people(at or 0)}"
        return Measured(ratio["median"], text, f"the nearest: {peer} {quantity(theirs or 0)} ns")

    return measure


def idle_tick(results: Results) -> Measured | None:
    """A tick with nothing due, of the largest core measured."""
    n = results.largest("ticks", "results", LEASE)
    if n is None:
        return None
    found = results.get("ticks", "results", LEASE, str(n), "idle_us")
    text = f"{quantity(found['median'])} us ({quantity(found['p10'])}-{quantity(found['p90'])}) at {people(n)}"
    scan = middle(results.get("ticks", "results", "numpy array, scanned every tick", str(n), "idle_us"))
    return Measured(found["median"], text, f"numpy scan {quantity(scan)} us" if scan else "")


def steady(pattern: str, worst: bool) -> Callable[[Results], Measured | None]:
    """The mean or the worst `advance()` without a limit under traffic."""

    def measure(results: Results) -> Measured | None:
        n = results.largest("steady", "results", pattern)
        found = None if n is None else results.get("steady", "results", pattern, str(n), "whole")
        if n is None or not found:
            return None
        cpu = found["cpu_ms"]["max"] if worst else found["cpu_mean_ms"]
        wall = found["tick_ms"]["max"] if worst else found["tick_mean_ms"]
        sliced = results.get("steady", "results", pattern, str(n), "sliced", "slice_cpu_ms", "max")
        mean = results.get("steady", "results", pattern, str(n), "sliced", "cpu_mean_ms")
        peer = (
            f"in the adapter's slices: mean {quantity(mean)} ms, longest step {quantity(sliced)} ms" if sliced else ""
        )
        return Measured(cpu, f"{quantity(cpu)} ms CPU ({quantity(wall)} ms on the wall) at {people(n)}", peer)

    return measure


def slices(which: str, clock: str) -> Callable[[Results], Measured | None]:
    """The slices of a mass expiry: their 99.9th percentile, or the worst of all runs."""

    def measure(results: Results) -> Measured | None:
        n = results.largest("pauses", "results", most=1_000_000)
        if n is None:
            return None
        ours = results.get("pauses", "results", str(n), "ours", clock, which)
        control = results.get("pauses", "results", str(n), "control", clock, which)
        end = "max" if which == "worst" else "median"
        text = f"{quantity(ours[end])} ms at {people(n)}, {results.get('pauses', 'results', str(n), 'rounds')} runs"
        return Measured(ours[end], text, f"empty loop in such slices {quantity(control[end])} ms")

    return measure


def memory_of(which: str) -> Callable[[Results], Measured | None]:
    """Bytes per lease, from the largest size measured."""

    def measure(results: Results) -> Measured | None:
        hour = results.get("memory", "hour")
        if hour is None:
            return None
        lru = middle(results.get("memory", "results", "OrderedDict, one timeout only", "100000", "bytes_fresh"))
        timer = middle(results.get("memory", "results", "asyncio call_later + cancel", "100000", "bytes_fresh"))
        peer = "" if not lru or not timer else f"OrderedDict {quantity(lru)} B, asyncio timer {quantity(timer)} B"
        value = hour["lease"] if which == "lease" else hour["fresh"]
        return Measured(value, f"{quantity(value)} B at {people(hour['n'])}", peer)

    return measure


def after_an_hour(which: str) -> Callable[[Results], Measured | None]:
    """What traffic adds to the memory: of the leases alone, or with the map from uids."""

    def measure(results: Results) -> Measured | None:
        hour = results.get("memory", "hour")
        if hour is None or "lease_growth" not in hour:
            return None
        prefix = "lease_" if which == "lease" else ""
        growth, after = hour[f"{prefix}growth"], hour[f"{prefix}after"]
        text = f"{(growth - 1) * 100:+.1f} % after {hour['minutes']} min: {quantity(after)} B"
        return Measured(growth, text, f"fresh {quantity(hour['lease' if which == 'lease' else 'fresh'])} B")

    return measure


def exchange(results: Results) -> Measured | None:
    """Instructions of an exchange with `serve_tcp(idle=30)`, compared with none."""
    found = results.get("exchanges", "results") or {}
    kinds = ("serve_tcp(idle=30)", "plain", "plain, again")
    if any(kind not in found for kind in kinds):
        return None
    ours, plain, again = (found[kind]["instructions"] for kind in kinds)
    return Measured(ours / plain, f"{ours / plain:.2f}x: {ours:,}", f"plain {plain:,}, and once more {again:,}")


def echo(kind: str) -> Callable[[Results], Measured | None]:
    """Server CPU of a round trip with reaper, compared with none."""

    def measure(results: Results) -> Measured | None:
        found = results.get("echo", "results", kind)
        if found is None:
            return None
        control = results.get("echo", "results", "plain, again", "cpu_to_plain")
        rival = results.get("echo", "results", "move_on_after per read", "cpu_to_plain")
        text = f"{times(found['cpu_to_plain'])} CPU, {times(found['wall_to_plain'])} on the wall"
        peer = f"the plain server again: {times(control)}; move_on_after per read: {times(rival)}"
        return Measured(found["cpu_to_plain"]["median"], text, peer)

    return measure


def hot_among_many(results: Results) -> Measured | None:
    """Busy connections among millions of silent ones."""
    found = results.get("touch", "hot_subset")
    if found is None:
        return None
    text = f"{times(found['ratio'])}: {quantity(found['among_many']['median'])} ns among {people(found['many'])}"
    return Measured(
        found["ratio"]["median"], text, f"{quantity(found['among_few']['median'])} ns among {people(found['few'])}"
    )


def never_early(results: Results) -> Measured | None:
    """Closes before the timeout, of all that were judged, in virtual time and over real sockets."""
    if not results.get("accuracy"):
        return None
    cases = results.get("accuracy", "core")
    early = sum(case["early"] for case in cases.values())
    reaps = sum(case["reaps"] for case in cases.values())
    for name in ("simulated", "real"):
        early += results.get("accuracy", name, "reaps", "early")
        early += results.get("accuracy", name, "reaps", "false")
        reaps += results.get("accuracy", name, "reaps", "observed")
    return Measured(early, f"{early} of {reaps:,}", "")


def late(results: Results) -> Measured | None:
    """Lateness beyond one tick where nothing stalls, as a share of a tick."""
    found = results.get("accuracy", "core", "steady wakes")
    if found is None:
        return None
    tick = results.get("accuracy", "tick_s")
    worst = found["lateness_s"]["max"] / tick
    jitter = results.get("accuracy", "jitter_s")
    return Measured(
        worst, f"{worst:.4f} ticks at worst", f"the loop itself wakes up to {jitter * 1e3:g} ms late, twice"
    )


def idle_memory(theirs: str) -> Callable[[Results], Measured | None]:
    """A parked HTTP connection compared with another server's."""

    def measure(results: Results) -> Measured | None:
        ratio = results.get("servers", "ratios", theirs, "ours-parked", "bytes")
        if ratio is None:
            return None
        ours = results.get("servers", "results", "ours-parked", "bytes_per_idle_connection")
        other = results.get("servers", "results", theirs, "bytes_per_idle_connection")
        n = results.get("servers", "size", "connections")
        return Measured(ratio, f"{quantity(ours)} B = {ratio:.2f}x at {people(n)}", f"{theirs} {quantity(other)} B")

    return measure


def request_cost(theirs: str) -> Callable[[Results], Measured | None]:
    """A request to the example HTTP server compared with another server's, in CPU time of the server."""

    def measure(results: Results) -> Measured | None:
        ratio = results.get("servers", "ratios", theirs, "ours", "cpu")
        if ratio is None:
            return None
        ours, other = (middle(results.get("servers", "results", name, "cpu_us")) for name in ("ours", theirs))
        return Measured(
            ratio["median"], f"{quantity(ours or 0)} us = {times(ratio)}", f"{theirs} {quantity(other or 0)} us"
        )

    return measure
