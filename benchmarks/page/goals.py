"""The goals: what was promised, how it is read from the results, and what explains it where it is missed.

One rule: a goal is set before it is measured, and stays in the table when it is missed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .results import CONTROL, EMPTY, LEASE, STORE, UID, Results, middle


@dataclass(frozen=True)
class Measured:
    """What was found for a goal."""

    value: float
    text: str
    """The figure with its spread, as the table has it."""
    peer: str
    """Compared with what."""


@dataclass(frozen=True)
class Goal:
    """One row of the table: `measure(results)` is met when its value is at most `limit`."""

    key: str
    text: str
    limit: float
    measure: Callable[[Results], Measured | None]


def quantity(value: float) -> str:
    """A figure with three digits that mean something."""
    if value != 0 and abs(value) < 0.001:
        return f"{value:.1e}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def people(n: int) -> str:
    """A number of connections: 1k, 100k, 1M."""
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if n >= size:
            return f"{n / size:g}{unit}"
    return str(n)


def _times(ratio: dict[str, float], inverse: bool = False) -> str:
    if inverse:
        return f"1/{quantity(1 / ratio['median'])} (1/{quantity(1 / ratio['p90'])} to 1/{quantity(1 / ratio['p10'])})"
    return f"{ratio['median']:.2f}x ({ratio['p10']:.2f}-{ratio['p90']:.2f})"


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
        peer = f"empty call {_ns(results, EMPTY, at, metric)}; the same again: {_times(control)}"
        return Measured(ratio["median"], f"{_ns(results, LEASE, at, metric)} = {_times(ratio)} at {people(at)}", peer)

    return measure


def uid_to_store(n: int) -> Callable[[Results], Measured | None]:
    """core.touch(uid) against a bare dict store."""

    def measure(results: Results) -> Measured | None:
        at = _size(results, n)
        if at is None:
            return None
        ratio = results.get("touch", "results", UID, str(at), "to_store")
        text = f"{_ns(results, UID, at)} = {_times(ratio)} at {people(at)}"
        return Measured(ratio["median"], text, f"dict store {_ns(results, STORE, at)}")

    return measure


def lease_to_peer(peer: str, n: int) -> Callable[[Results], Measured | None]:
    """lease.touch() against one of the loops' timers."""

    def measure(results: Results) -> Measured | None:
        at = results.largest("touch", "results", peer, most=n)
        ratio = None if at is None else results.get("touch", "results", peer, str(at), "lease_to_it")
        if at is None or ratio is None:
            return None
        text = f"{_ns(results, LEASE, at)} = {_times(ratio, inverse=True)} at {people(at)}"
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
        text = f"{quantity(ours or 0)} ns = {_times(ratio, inverse=True)} at {people(at or 0)}"
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


def echo(kind: str) -> Callable[[Results], Measured | None]:
    """Server CPU of a round trip with reaper, compared with none."""

    def measure(results: Results) -> Measured | None:
        found = results.get("echo", "results", kind)
        if found is None:
            return None
        control = results.get("echo", "results", "plain, again", "cpu_to_plain")
        rival = results.get("echo", "results", "move_on_after per read", "cpu_to_plain")
        text = f"{_times(found['cpu_to_plain'])} CPU, {_times(found['wall_to_plain'])} on the wall"
        peer = f"the plain server again: {_times(control)}; move_on_after per read: {_times(rival)}"
        return Measured(found["cpu_to_plain"]["median"], text, peer)

    return measure


def hot_among_many(results: Results) -> Measured | None:
    """Busy connections among millions of silent ones."""
    found = results.get("touch", "hot_subset")
    if found is None:
        return None
    text = f"{_times(found['ratio'])}: {quantity(found['among_many']['median'])} ns among {people(found['many'])}"
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
            ratio["median"], f"{quantity(ours or 0)} us = {_times(ratio)}", f"{theirs} {quantity(other or 0)} us"
        )

    return measure


GOALS = [
    Goal("touch-1k", "A packet costs at most 1.1 empty method calls: 1k connections", 1.1, lease_to_empty(1_000)),
    Goal("touch-100k", "A packet costs at most 1.1 empty method calls: 100k", 1.1, lease_to_empty(100_000)),
    Goal(
        "touch-cold",
        "A packet costs at most 1.1 empty method calls: 100k, caches cold",
        1.1,
        lease_to_empty(100_000, "cold_"),
    ),
    Goal("touch-1m", "A packet costs at most 1.1 empty method calls: 1M, caches cold", 1.1, lease_to_empty(1_000_000)),
    Goal("jvm-1k", "A packet costs at most 1/8 of re-arming any JVM timer: 1k", 1 / 8, lease_to_jvm(1_000)),
    Goal("jvm-100k", "A packet costs at most 1/8 of re-arming any JVM timer: 100k", 1 / 8, lease_to_jvm(100_000)),
    Goal("jvm-1m", "A packet costs at most 1/8 of re-arming any JVM timer: 1M", 1 / 8, lease_to_jvm(1_000_000)),
    Goal(
        "jvm-whole-100k",
        "The same with ticks included, compared with the JVM's whole process: 100k",
        1 / 8,
        lease_to_jvm(100_000, whole=True),
    ),
    Goal(
        "jvm-whole-1m",
        "The same with ticks included, compared with the JVM's whole process: 1M",
        1 / 8,
        lease_to_jvm(1_000_000, whole=True),
    ),
    Goal(
        "touch-asyncio",
        "A packet costs at most 1/40 of re-arming an asyncio timer",
        1 / 40,
        lease_to_peer("asyncio call_later + cancel", 100_000),
    ),
    Goal(
        "touch-trio",
        "A packet costs at most 1/40 of setting a trio scope's deadline",
        1 / 40,
        lease_to_peer("trio scope, deadline set anew", 100_000),
    ),
    Goal("uid-1k", "A packet by key costs at most 2 dict stores: 1k", 2, uid_to_store(1_000)),
    Goal("uid-100k", "A packet by key costs at most 2 dict stores: 100k", 2, uid_to_store(100_000)),
    Goal("uid-1m", "A packet by key costs at most 2 dict stores: 1M, caches cold", 2, uid_to_store(1_000_000)),
    Goal("hot-10m", "Busy connections among 10M cost at most twice what they cost among 100k", 2, hot_among_many),
    Goal("idle-tick", "A tick with nothing due takes at most 10 us: 1M", 10, idle_tick),
    Goal(
        "steady-mean",
        "A tick takes at most 3 ms on average: 1M, a heartbeat every 10 s",
        3,
        steady("periodic", worst=False),
    ),
    Goal(
        "steady-worst",
        "A tick takes at most 5 ms at worst: 1M, a heartbeat every 10 s",
        5,
        steady("periodic", worst=True),
    ),
    Goal(
        "poisson-mean",
        "A tick takes at most 3 ms on average: 1M, packets at random every 10 s",
        3,
        steady("poisson", worst=False),
    ),
    Goal(
        "poisson-worst",
        "A tick takes at most 5 ms at worst: 1M, packets at random every 10 s",
        5,
        steady("poisson", worst=True),
    ),
    Goal(
        "slices-p999",
        "1M due at once hold the loop for at most 2 ms in 99.9 % of slices (CPU)",
        2,
        slices("p99.9", "cpu"),
    ),
    Goal("slices-worst", "1M due at once never hold the loop for more than 5 ms (CPU)", 5, slices("worst", "cpu")),
    Goal(
        "slices-p999-wall",
        "1M due at once hold the loop for at most 2 ms in 99.9 % of slices (wall)",
        2,
        slices("p99.9", "wall"),
    ),
    Goal(
        "slices-worst-wall", "1M due at once never hold the loop for more than 5 ms (wall)", 5, slices("worst", "wall")
    ),
    Goal("memory-lease", "A connection takes at most 80 bytes, keys not counted", 80, memory_of("lease")),
    Goal("memory-map", "A connection takes at most 120 bytes with the map from uids", 120, memory_of("map")),
    Goal("memory-hour", "An hour of traffic adds at most 5 % to that", 1.05, after_an_hour("lease")),
    Goal(
        "memory-hour-map",
        "An hour of traffic adds at most 5 % to that with the map from uids",
        1.05,
        after_an_hour("map"),
    ),
    Goal("echo-serve", "An echo server under `serve_tcp` uses at most 1.03x the CPU", 1.03, echo("serve_tcp(idle=30)")),
    Goal(
        "echo-watch",
        "An echo server with `watch()` and `touch()` uses at most 1.03x the CPU",
        1.03,
        echo("watch() and touch()"),
    ),
    Goal("early", "No connection is closed early, and no live one at all", 0, never_early),
    Goal("late", "Closes are at most one tick late, plus 2 x 3 ms of jitter, where nothing stalls", 1.0061, late),
    Goal(
        "http-memory",
        "An idle parked HTTP connection takes at most 1/10 of hypercorn's memory",
        0.1,
        idle_memory("hypercorn"),
    ),
    Goal(
        "http-memory-uvicorn",
        "An idle parked HTTP connection takes no more memory than uvicorn's",
        1,
        idle_memory("uvicorn"),
    ),
    Goal("http-cpu", "A request takes no more CPU than hypercorn's", 1, request_cost("hypercorn")),
]

_COLD = (
    "Cold, what counts is the cache misses: the object's line for the peer, the same line for the lease, and the lines "
    "of the epochs whose reference counts change, which are shared and hot. See first how far the control is off."
)
_UID_COLD = (
    "Cold, each memory access that misses is what counts: the peer's dict needs the key and its entry, ours the lease "
    "besides. Tried: stamps kept in the dict itself, which frees "
    "touches of the third miss and makes `lease.touch()`, the way the adapters take, pay a hash."
)
EXPLANATIONS = {
    "touch-1k": (
        "Hot, both are a method call, and a touch is that plus a look-up of the open epoch among the function's "
        "globals, a store, and the two reference counts that a store changes. Tried: a closure over the epoch "
        "(slower), the epoch as an attribute of the core (two more loads), a fifth field in the lease (it then "
        "straddles two cache lines), a class attribute (CPython unlearns the store whenever it changes). What is left "
        "is the reference counts."
    ),
    "touch-100k": _COLD,
    "touch-cold": _COLD,
    "touch-1m": _COLD,
    "jvm-1k": (
        "With everything in the caches, compiled code re-arms a timer in little more time than an interpreter takes to "
        "call a method that does nothing: that call is nearly all of what a touch costs here."
    ),
    "jvm-100k": (
        "A timer of the JVM moves an entry in structures larger than the caches, a touch writes one line; but a line "
        "that is not there is waited for as long in Python as in Java."
    ),
    "jvm-1m": (
        "As with fewer: a line that is not in the caches is waited for as long in Python as in Java, and a timer of "
        "the JVM waits for a few of them, not for eight."
    ),
    "jvm-whole-100k": (
        "What a timer of the JVM puts off for its own thread is counted here, and so are our ticks. The nearest is the "
        "one that leaves cancelled entries lying until their time comes."
    ),
    "jvm-whole-1m": (
        "What a timer of the JVM puts off for its own thread is counted here, and so are our ticks. The nearest is the "
        "one that leaves cancelled entries lying until their time comes."
    ),
    "touch-asyncio": (
        "Both wait for memory when the connections do not fit into the caches; what is left of the distance is what "
        "asyncio does besides."
    ),
    "touch-trio": (
        "The more connections, the deeper trio's heap and the larger the distance: with few, all of it is in the "
        "caches."
    ),
    "uid-1k": (
        "A call of a method, a look-up and a store, where the peer is a store written out in the caller's loop. A "
        "method call alone costs more than that store, so hot the ratio cannot go below the sum of both."
    ),
    "uid-100k": _UID_COLD,
    "uid-1m": _UID_COLD,
    "steady-mean": (
        "Every connection that spoke is moved once per timeout. What a move costs is the cache misses of looking at a "
        "lease that lay untouched for seconds; with a limit it is worked off in steps."
    ),
    "steady-worst": "The moves of one tick in one step; with a limit, as the adapters have it, no step is that long.",
    "poisson-mean": (
        "By chance some connections are silent for three times the mean: they are reaped in each of these ticks and "
        "come back, and reaping is most of the time reported here. With heartbeats none is."
    ),
    "poisson-worst": (
        "As above. With a limit, as the adapters have it, the ordinary step is short; single ones far above the rest "
        "are full collections of the garbage collector, which CPython makes whenever a quarter of what it has kept is "
        "new. They grow with all objects of the program; `server_example/workers.py` keeps them out of a server."
    ),
    "slices-p999": "A slice of reaps costs what making that many records and emptying that many places costs.",
    "slices-worst": "A full collection of the garbage collector fell into a slice; its length grows with all objects.",
    "slices-p999-wall": "See the control: an empty loop in slices of the same length is interrupted as often.",
    "slices-worst-wall": "See the control, and *What slow slices are*: the processor was taken away meanwhile.",
    "memory-lease": "With few connections the fixed parts of the core are not yet spread thin; see the growth below.",
    "memory-map": "A dict is part empty, more so after it has just grown: the figure depends on the count.",
    "memory-hour": (
        "After traffic the leases of one epoch lie in more, and emptier, runs than on arrival; with few connections a "
        "run of its own for each epoch weighs the most."
    ),
    "memory-hour-map": (
        "All of it is the dict: a key that is taken out leaves a hole, and once holes and keys fill it CPython makes "
        "it large enough for three times its keys, which is one size more than the same keys need on arrival. Writing "
        "it anew when half of it is holes would keep its size, at the price of a pause that grows with the number of "
        "connections, again and again: not built, a server feels that more than the bytes."
    ),
    "echo-serve": (
        "Between the handler and the socket lies one more `async` call each way, and that costs more than the touch. "
        "If that is too much, touch by hand inside `watch()`. Compare with the control before believing a "
        "hundredth."
    ),
    "echo-watch": "One method call and one store per packet; compare with the control before believing a hundredth.",
    "http-memory": "At this number of connections the parked server's fixed parts are not yet spread thin.",
    "http-memory-uvicorn": "At this number of connections the parked server's fixed parts are not yet spread thin.",
}
"""What was tried, by goal: printed only where the goal is missed."""

UNEXPLAINED = "Nothing has been tried yet; the figure is what it is."


def judge(results: Results) -> list[tuple[Goal, Measured | None]]:
    """Every goal with what was found."""
    return [(goal, goal.measure(results)) for goal in GOALS]
