"""The program that callgrind counts, see `instructions.py`. It imports as little as it can: all of that is counted too.

python benchmarks/instructions_program.py PART EXTRA      every part a little, PART so much more often
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable

import reaper

WARM = 20
"""Calls before a part counts: the interpreter has then specialised its code."""

SMALL, LARGE = 100, 3_000
"""Leases: what must not depend on their number is counted with both."""

BEATING = 512
"""Leases of `beat`: two whole chunks of a slot."""


def parts() -> dict[str, Callable[[int], None]]:
    """Each part: given n, it does its thing n times."""

    class Empty:
        __slots__ = ("a", "b", "c", "d")

        def touch(self) -> None:
            pass

    def filled(count: int, timeout: float) -> reaper.IdleReaper:
        core = reaper.IdleReaper(tick=1.0)
        for uid in range(count):
            core.register(uid, timeout, now=0.0)
        core.close_epoch(1.0)
        return core

    core, crowd, beating = filled(SMALL, 3600.0), filled(LARGE, 3600.0), filled(BEATING, 1.0)
    quiet = {"small": filled(SMALL, 1e6), "large": filled(LARGE, 1e6)}
    clock = {"small": 1.0, "large": 1.0, "beat": 1.0}
    empty = Empty()
    lease, one_of_many = core._leases[5], crowd._leases[5]
    beaters = list(beating._leases.values())
    plain = dict.fromkeys(range(SMALL))
    ring = reaper.IdleRing(timeout_ticks=30)
    ring.add(5)

    def loop(n: int) -> None:
        for _ in range(n):
            pass

    def empty_call(n: int) -> None:
        for _ in range(n):
            empty.touch()

    def lease_touch(n: int) -> None:
        for _ in range(n):
            lease.touch()

    def lease_touch_of_many(n: int) -> None:
        for _ in range(n):
            one_of_many.touch()

    def dict_store(n: int) -> None:
        for _ in range(n):
            plain[5] = None

    def uid_touch(n: int) -> None:
        for _ in range(n):
            core.touch(5)

    def ring_touch(n: int) -> None:
        for _ in range(n):
            ring.touch(5)

    def register_release(n: int) -> None:
        for _ in range(n):
            crowd.register("new", 30.0, 1.0).release()

    def idle_tick(size: str) -> Callable[[int], None]:
        def tick(n: int) -> None:
            for _ in range(n):
                clock[size] += 1.0
                quiet[size].advance(clock[size])

        return tick

    def beat(n: int) -> None:
        for _ in range(n):
            for beater in beaters:
                beater.touch()
            clock["beat"] += 1.0
            beating.advance(clock["beat"])

    return {
        "loop": loop,
        "empty call": empty_call,
        "lease.touch()": lease_touch,
        "lease.touch() of many": lease_touch_of_many,
        "dict store": dict_store,
        "core.touch(uid)": uid_touch,
        "ring.touch(uid)": ring_touch,
        "register and release": register_release,
        "idle tick small": idle_tick("small"),
        "idle tick large": idle_tick("large"),
        "beat": beat,
    }


def main(more: str, extra: int) -> None:
    """Every part a little, *more* as often again as *extra* says."""
    gc.disable()
    for name, part in parts().items():
        for _ in range(WARM):
            part(2)
        part(100 + extra if name == more else 100)


if __name__ == "__main__":
    main(sys.argv[1].strip(), int(sys.argv[2]))
