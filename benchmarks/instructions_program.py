"""The program that callgrind counts, see `instructions.py`.

It imports as little as it can, because an import is counted too.
`instructions_program.py PART EXTRA` does every part a little, and PART so much more
often.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from heapq import heappush
from typing import Any

import reaper

WARM = 20
"""Calls before a part counts: the interpreter has then specialised its code."""

SMALL, LARGE = 100, 3_000
"""Leases: what must not depend on their number is counted with both."""

BEATING = 512
"""Leases of `beat`: two whole chunks of a slot."""


TEMPLATE = """
def part(n, it=it):
    for _ in range(n):
        {what}
"""


class Empty:
    """As wide as a lease."""

    __slots__ = ("a", "b", "c", "d")
    a: Any
    b: Any
    c: Any
    d: Any

    def touch(self) -> None:
        pass


class Beat:
    """A reaper whose leases are all touched, and moved on by the next tick."""

    def __init__(self, count: int, timeout: float) -> None:
        self.now = 1.0
        self.core = reaper.IdleReaper(tick=1.0)
        self.leases = [self.core.register(uid, timeout, now=0.0) for uid in range(count)]
        self.core.close_epoch(1.0)

    def tick(self) -> None:
        self.now += 1.0
        self.core.advance(self.now)

    def beat(self) -> None:
        for lease in self.leases:
            lease.touch()
        self.tick()


def crowd() -> reaper.IdleReaper:
    """A reaper of half a chunk of leases that came in the open epoch, as in a server
    whose clients come together. A lone one has a chunk made for it each time.
    """
    core = reaper.IdleReaper(tick=1.0)
    for uid in range(SMALL):
        core.register(uid, 30.0, now=1.0)
    return core


def own_timeouts() -> reaper.IdleReaper:
    """The same, of leases with a timeout each: between 30 and 50 s, as those that the
    part registers.
    """
    core = reaper.IdleReaper(tick=1.0)
    for uid in range(LARGE):
        core.register(uid, 30.0 + 20.0 * uid / LARGE, now=1.0)
    return core


class Floor:
    """What must be done in Python to keep an object by its key and in order, and to let
    it go: one object of four slots, a dict and a list. No argument is checked, no time
    is kept, nothing can come due.
    """

    def __init__(self, count: int) -> None:
        self.kept: dict[object, Empty] = {}
        self.order: list[Empty | None] = []
        for key in range(count):
            self.register(key, 30.0, 0.0)

    def register(self, key: object, timeout: float, now: float) -> Empty:
        one = Empty()
        one.a, one.b, one.c = key, now, self
        one.d = len(self.order)
        self.kept[key] = one
        self.order.append(one)
        return one

    def release(self, one: Empty) -> None:
        self.order[one.d] = None
        if one.d == len(self.order) - 1:
            self.order.pop()
        del self.kept[one.a]


class Heap:
    """What a server does that keeps deadlines in a heap, and leaves the entry of a
    connection that has ended until it comes up.
    """

    def __init__(self, count: int) -> None:
        self.deadlines: dict[object, float] = {}
        self.heap: list[tuple[float, object]] = []
        for key in range(count):
            self.register(key, 30.0, 0.0)

    def register(self, key: object, timeout: float, now: float) -> None:
        self.deadlines[key] = due = now + timeout
        heappush(self.heap, (due, key))

    def release(self, key: object) -> None:
        del self.deadlines[key]


def parts() -> dict[str, Callable[[int], None]]:
    """Each part: given n, it does its thing n times. What it needs is a local name, as
    in a loop that a user writes.
    """
    few, many = Beat(SMALL, 3600.0), Beat(LARGE, 3600.0)
    ring = reaper.IdleRing(timeout_ticks=30)
    ring.add(5)
    found: dict[str, Callable[[int], None]] = {}
    for name, what, thing in (
        ("loop", "pass", None),
        ("empty call", "it.touch()", Empty()),
        ("lease.touch()", "it.touch()", few.leases[5]),
        ("lease.touch() of many", "it.touch()", many.leases[5]),
        ("dict store", "it[5] = None", dict.fromkeys(range(SMALL))),
        ("core.touch(uid)", "it.touch(5)", few.core),
        ("ring.touch(uid)", "it.touch(5)", ring),
        ("register and release", "it.register('new', 30.0, 1.0).release()", many.core),
        ("the same, among others", "it.register('new', 30.0, 1.0).release()", crowd()),
        (
            "the same, a timeout each",
            "it.register('new', 30.0 + n % 20000 / 1000, 1.0).release()",
            own_timeouts(),
        ),
        (
            "the same, the least in Python",
            "it.release(it.register('new', 30.0, 1.0))",
            Floor(LARGE),
        ),
        ("the same, a heap", "it.register(n, 30.0, 1.0); it.release(n)", Heap(LARGE)),
        ("idle tick small", "it.tick()", Beat(SMALL, 1e6)),
        ("idle tick large", "it.tick()", Beat(LARGE, 1e6)),
        ("beat", "it.beat()", Beat(BEATING, 1.0)),
    ):
        # A function each: the interpreter specialises it by what it has seen.
        exec(TEMPLATE.format(what=what), {"it": thing}, found)
        found[name] = found.pop("part")
    return found


def main(more: str, extra: int) -> None:
    """Every part a little, *more* as often again as *extra* says."""
    gc.disable()
    for name, part in parts().items():
        for _ in range(WARM):
            part(2)
        part(100 + extra if name == more else 100)


if __name__ == "__main__":
    main(sys.argv[1].strip(), int(sys.argv[2]))
