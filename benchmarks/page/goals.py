"""The goals: what was promised, and what explains it where it is missed.

One rule: a goal is set before it is measured, and stays in the table when it is missed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .readings import (
    Measured,
    after_an_hour,
    echo,
    exchange,
    hot_among_many,
    idle_memory,
    idle_tick,
    late,
    lease_to_empty,
    lease_to_jvm,
    lease_to_peer,
    memory_of,
    never_early,
    request_cost,
    slices,
    steady,
    uid_to_store,
)
from .results import Results


@dataclass(frozen=True)
class Goal:
    """One row of the table: `measure(results)` is met when its value is at most `limit`."""

    key: str
    text: str
    limit: float
    measure: Callable[[Results], Measured | None]


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
    Goal("exchange-serve", "An exchange under `serve_tcp` takes at most 1.02x the instructions", 1.02, exchange),
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
    "echo-serve": "Compare with the control before believing a hundredth, and with what was counted.",
    "echo-watch": "One method call and one store per packet; compare with the control before believing a hundredth.",
    "http-memory": "At this number of connections the parked server's fixed parts are not yet spread thin.",
    "http-memory-uvicorn": "At this number of connections the parked server's fixed parts are not yet spread thin.",
}
"""What was tried, by goal: printed only where the goal is missed."""

UNEXPLAINED = "Nothing has been tried yet; the figure is what it is."


def judge(results: Results) -> list[tuple[Goal, Measured | None]]:
    """Every goal with what was found."""
    return [(goal, goal.measure(results)) for goal in GOALS]
