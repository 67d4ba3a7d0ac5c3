"""The page of one screen: what a user pays, next to what the usual way costs, and what is known to be bad.

One rule: *a line whose figures were not measured says so, and one that no longer holds is not printed*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .goals import judge
from .results import LEASE, STORE, UID, Results, middle
from .tables import table
from .words import people, quantity, times

ASYNCIO, TRIO = "asyncio call_later + cancel", "trio scope, deadline set anew"
SCAN, ARRAY = "dict, scanned every tick", "numpy array, scanned every tick"
ORDERED, HEAP = "OrderedDict, one timeout only", "heapq, re-armed when it comes up"
MANY = 100_000
UNKNOWN = "not measured"


def pays(results: Results) -> str:
    """One row per kind of cost."""
    rows = [
        ["per packet", *_packet(results)],
        ["per connection, memory", *_memory(results)],
        ["per tick, nothing due", *_idle(results)],
        ["per tick, all talking", *_talking(results)],
        ["longest pause, all due at once", *_pause(results)],
        ["CPU of an echo server, compared with no timeout", *_echo(results)],
        ["an idle HTTP connection, memory", *_http(results)],
        ["accuracy", *_accuracy(results)],
    ]
    return table(["", "reaper", "the usual way"], rows)


def _figure(results: Results, part: str, peer: str, n: int | None, metric: str) -> float | None:
    return None if n is None else middle(results.get(part, "results", peer, str(n), metric))


def _size(results: Results, part: str, *peers: str, most: int = MANY) -> int | None:
    """The largest number of connections, up to *most*, at which all of *peers* were measured."""
    common = set.intersection(*({n for n in results.sizes(part, peer) if n <= most} for peer in peers))
    return max(common, default=None)


def _packet(results: Results) -> tuple[str, str]:
    n = _size(results, "touch", LEASE, ASYNCIO, TRIO)
    ours = _figure(results, "touch", LEASE, n, "touch_ns")
    if n is None or ours is None:
        return UNKNOWN, UNKNOWN
    theirs = []
    for name, peer in (("asyncio", ASYNCIO), ("trio", TRIO)):
        ratio = results.get("touch", "results", peer, str(n), "lease_to_it")
        found = _figure(results, "touch", peer, n, "touch_ns")
        if found is not None and ratio is not None:
            least, most = quantity(1 / ratio["p90"]), quantity(1 / ratio["p10"])
            theirs.append(f"{name} {quantity(found)} ns, {quantity(1 / ratio['median'])}x ({least}-{most})")
    return f"{quantity(ours)} ns ({people(n)} open)", "re-arming a timer: " + "; ".join(theirs)


def _memory(results: Results) -> tuple[str, str]:
    n = _size(results, "memory", LEASE, ASYNCIO)
    ours, timer = (_figure(results, "memory", peer, n, "bytes_fresh") for peer in (LEASE, ASYNCIO))
    if ours is None or timer is None:
        return UNKNOWN, UNKNOWN
    return f"{quantity(ours)} bytes", f"asyncio's timer: {quantity(timer)} bytes, {quantity(timer / ours)}x"


def _idle(results: Results) -> tuple[str, str]:
    n = _size(results, "ticks", LEASE, SCAN, ARRAY, most=1_000_000)
    ours, scan, array = (_figure(results, "ticks", peer, n, "idle_us") for peer in (LEASE, SCAN, ARRAY))
    if n is None or ours is None or scan is None or array is None:
        return UNKNOWN, UNKNOWN
    words = f"scanning a dict: {quantity(scan)} us, {quantity(scan / ours)}x; a numpy array: {quantity(array)} us"
    return f"{quantity(ours)} us ({people(n)} open)", words


def _talking(results: Results) -> tuple[str, str]:
    n = _size(results, "ticks", LEASE, ASYNCIO, HEAP)
    ours, timers, heap = (_figure(results, "ticks", peer, n, "steady_mean_ms") for peer in (LEASE, ASYNCIO, HEAP))
    if n is None or ours is None or timers is None or heap is None:
        return UNKNOWN, UNKNOWN
    words = f"asyncio's timers: {quantity(timers)} ms, {quantity(timers / ours)}x; a lazy heap: {quantity(heap)} ms"
    every = results.get("ticks", "touch_every_s")
    return f"{quantity(ours)} ms ({people(n)}, each every {quantity(every)} s)", words


def _pause(results: Results) -> tuple[str, str]:
    n = results.largest("pauses", "results", most=1_000_000)
    ours = None if n is None else results.get("pauses", "results", str(n), "ours", "wall", "worst")
    timers = _figure(results, "ticks", ASYNCIO, n, "all_due_ms")
    if n is None or ours is None:
        return UNKNOWN, UNKNOWN
    usual = UNKNOWN if timers is None else f"asyncio's timers: {quantity(timers)} ms, in one go"
    return f"{quantity(ours['max'])} ms ({people(n)} due)", usual


def _echo(results: Results) -> tuple[str, str]:
    def share(kind: str) -> str:
        ratio = results.get("echo", "results", kind, "cpu_to_plain")
        return UNKNOWN if ratio is None else times(ratio)

    ours = (
        f"`watch()` {share('watch() and touch()')}; `watched()` {share('watched()')}; "
        f"`serve_tcp` {share('serve_tcp(idle=30)')}"
    )
    counted = results.get("exchanges", "results") or {}
    if {"plain", "serve_tcp(idle=30)"} <= set(counted):
        more = counted["serve_tcp(idle=30)"]["instructions"] / counted["plain"]["instructions"]
        ours += f", {more:.2f}x the instructions"
    return ours, f"`trio.move_on_after` per read: {share('move_on_after per read')}"


def _http(results: Results) -> tuple[str, str]:
    def of(name: str) -> str:
        found = results.get("servers", "results", name, "bytes_per_idle_connection")
        return UNKNOWN if found is None else f"{quantity(found)} bytes"

    n = results.get("servers", "size", "connections")
    size = "" if n is None else f" ({people(n)} open; fewer bytes with more: [scale](scale.md))"
    return (
        f"parked {of('ours-parked')}{size}; not parked {of('ours')}",
        f"uvicorn {of('uvicorn')}; hypercorn {of('hypercorn')}",
    )


def _accuracy(results: Results) -> tuple[str, str]:
    measured = {goal.key: found for goal, found in judge(results)}
    early, late = measured["early"], measured["late"]
    if early is None or late is None:
        return UNKNOWN, UNKNOWN
    return f"closed early: {early.text}; late: {late.text}", "after a stall, closes clients that had sent something"


def machine_short(results: Results) -> str:
    """Where it was measured, in a line."""
    about = next(part["about"] for part in results.parts.values() if "about" in part)
    where = f"{about['cpu']}, {about['cpus']} processors, {about['python']}"
    return f"{where}; commit {about['commit'][:12]}, {about['date']}."


def control(results: Results) -> str:
    """How far the same code is from itself."""
    ratio = results.get("echo", "results", "plain, again", "cpu_to_plain")
    return UNKNOWN if ratio is None else times(ratio)


def ordered(results: Results) -> str:
    """What a plain OrderedDict gives."""
    n = _size(results, "ticks", LEASE, ORDERED)
    ours, theirs = (_figure(results, "ticks", peer, n, "steady_mean_ms") for peer in (LEASE, ORDERED))
    if n is None or ours is None or theirs is None:
        return "an `OrderedDict` moved to the end per packet is enough"
    return (
        f"an `OrderedDict`, each entry moved to its end per packet, has a tick of {quantity(theirs)} ms where this one "
        f"has {quantity(ours)} ({people(n)} open)"
    )


def heap(results: Results) -> str:
    """Where C's heap is better."""
    found = results.get("timers", "timers") or {}
    n = max((int(size) for size in found), default=None)
    ratio = None if n is None else found[str(n)]["wheel/heap"].get("schedule")
    words = "`heapq` is written in C, and scheduling a timer with it is cheaper"
    return words if ratio is None or n is None else f"{words}: the wheel takes {times(ratio)} of it at {people(n)}"


def jvm(results: Results) -> str:
    """The ratio to the nearest JVM timer."""
    measured = {goal.key: found for goal, found in judge(results)}["jvm-100k"]
    return f"({UNKNOWN} here)" if measured is None else f"per packet ({measured.text}; {measured.peer})"


def bad(results: Results) -> str:
    """What is known to be bad, a line each."""
    lines = [line for find in KNOWN_BAD for line in find(results)]
    return "\n".join(f"- {line}" for line in lines) or "Nothing in this run."


def _by_uid(results: Results) -> Iterator[str]:
    n = _size(results, "touch", UID, STORE)
    ratio = None if n is None else results.get("touch", "results", UID, str(n), "to_store")
    if n is not None and ratio and ratio["median"] > 1:
        yield f"`core.touch(uid)` costs {times(ratio)} of a dict store at {people(n)}: keep the lease and touch that."


def _growth(results: Results) -> Iterator[str]:
    hour: dict[str, Any] = results.get("memory", "hour") or {}
    if hour.get("growth", 1.0) > 1.05:
        grown = f"{(hour['growth'] - 1) * 100:.0f} % more per connection after {hour['minutes']} minutes"
        yield f"The map from uids is a dict, and churn makes it grow: {grown}."


def _by_chance(results: Results) -> Iterator[str]:
    n = results.largest("steady", "results", "poisson")
    longest = (
        None if n is None else results.get("steady", "results", "poisson", str(n), "sliced", "slice_cpu_ms", "max")
    )
    if n is not None and longest is not None and longest > 10:
        yield (
            f"A full garbage collection stops the loop as long as ever: {quantity(longest)} ms with {people(n)} leases "
            "that come and go. `gc.freeze()` and a higher threshold, as in `server_example`, keep it out of a server."
        )


def _wrapped(results: Results) -> Iterator[str]:
    ratio = results.get("echo", "results", "watched()", "cpu_to_plain")
    if ratio and ratio["median"] > 1.03:
        yield (
            f"`watched()` wraps every receive in one more `async` call: {times(ratio)} of the plain server's CPU. "
            "`serve_tcp` does not."
        )


def _requests(results: Results) -> Iterator[str]:
    ratios = results.get("servers", "ratios") or {}
    slower = {
        name: ratio["ours"]["cpu"]
        for name, ratio in ratios.items()
        if name in ("uvicorn", "aiohttp") and "ours" in ratio
    }
    slower = {name: ratio for name, ratio in slower.items() if ratio["median"] > 1}
    if slower:
        words = ", ".join(f"{times(ratio)} of {name}'s" for name, ratio in slower.items())
        yield f"The example HTTP server is no fast server: its CPU per request is {words}."


def _registering(results: Results) -> Iterator[str]:
    n = _size(results, "ticks", LEASE, HEAP)
    ours, theirs = (_figure(results, "ticks", peer, n, "register_ns") for peer in (LEASE, HEAP))
    if ours is not None and theirs is not None and ours > theirs:
        yield f"Opening a connection costs more than with a heap: {quantity(ours)} ns to {quantity(theirs)}."


KNOWN_BAD: tuple[Callable[[Results], Iterator[str]], ...] = (
    _wrapped,
    _by_uid,
    _registering,
    _growth,
    _by_chance,
    _requests,
)


def counted(results: Results) -> str:
    """How many goals were met."""
    judged = judge(results)
    known = [(goal, found) for goal, found in judged if found is not None]
    met = sum(found.value <= goal.limit for goal, found in known)
    return f"Of {len(judged)} goals {met} were met, {len(known) - met} missed, {len(judged) - len(known)} not measured."


FILLERS: dict[str, Callable[[Results], str]] = {
    function.__name__: function for function in (pays, machine_short, control, ordered, heap, jvm, bad, counted)
}
