"""The longest call of the core, by how the timeouts were drawn.

One rule: each call is timed by itself, in CPU time, and with a limit, as a driver
calls. A life is the same each time, call for call: of each call the least of the rounds
counts, which no neighbour has disturbed, and the longest of those is shown. The
collector is off: what its passes cost, `mass` says.
"""

from __future__ import annotations

import gc
import random
import time
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy

import reaper
from reaper.policy import lifespan

from ..common import Note, Scale, by_scale, figure, markdown, short

GOAL_MS = 5.0
LIMIT = 128
EPOCH = 0.5
FILLING = {"at once": 1, "over ten minutes": 1200}
"""Epochs in which the connections are opened."""

SPEAKING = "at once, each speaks once"
"""Each at an instant of its own, within an hour."""

Draw = Callable[[random.Random], float]
FAMILIES: dict[str, Draw] = {
    "all equal": lambda choose: 7200.0,
    "ages of two hours, less 10 %": lambda choose: lifespan(7200.0, 0.1, 1.0, choose.random()),
    "the same, each its own": lambda choose: 7200.0 * (1 - 0.1 * choose.random()),
    "5 to 15 minutes, each its own": lambda choose: choose.uniform(300.0, 900.0),
    "less than a minute, each its own": lambda choose: choose.uniform(1.0, 60.0),
}


class Clock:
    """Calls, and notes how long each call took, by its name, in nanoseconds."""

    def __init__(self) -> None:
        self.ns: dict[str, array[int]] = {}

    def of(self, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        before = time.thread_time_ns()
        found = call(*args, **named)
        spent = time.thread_time_ns() - before
        self.ns.setdefault(call.__name__, array("q")).append(spent)
        return found


def one_life(clock: Clock, count: int, draw: Draw, epochs: int, speaking: int = 0) -> None:
    """*count* connections that fall silent: opened within *epochs*, half of them
    released, the others reaped.

    Args:
        speaking: Epochs in which each speaks once, after that.
    """
    core = reaper.IdleReaper(tick=1.0, epochs_per_tick=2)
    choose, now = random.Random(1), 0.0
    leases: list[reaper.Lease] = []

    def wake() -> None:
        clock.of(core.close_epoch, now, at_least=EPOCH / 2)
        while (due := clock.of(core.next_wakeup)) is not None and due <= now:
            clock.of(core.expire, now, LIMIT)

    for epoch in range(epochs):
        for _ in range(count * epoch // epochs, count * (epoch + 1) // epochs):
            leases.append(clock.of(core.register, len(leases), draw(choose), now=now))
        now += EPOCH
        wake()
    speakers = [choose.randrange(speaking) for _ in leases] if speaking else []
    order = sorted(range(len(speakers)), key=speakers.__getitem__, reverse=True)
    for epoch in range(speaking):
        while order and speakers[order[-1]] == epoch:
            leases[order.pop()].touch()
        now += EPOCH
        wake()
    while core and now < 150.0:
        now += EPOCH
        wake()
    for lease in leases[::2]:
        clock.of(lease.release)
    while core:
        # To the next thing that there is to do: empty epochs cost the same in each
        # family.
        ahead = [due for due, _, _ in core._agenda.near[:1]]
        if (start := core._agenda.far.next_expiry()) is not None:
            ahead.append(core._agenda.origin + start * core.tick)
        now = max(now + EPOCH, min(ahead, default=now))
        wake()


def bare_dict(clock: Clock, count: int) -> None:
    """The least that `register` must do in Python, and what a dict's growth takes."""
    kept: dict[int, object] = {}

    def register(uid: int) -> None:
        kept[uid] = clock

    for uid in range(count):
        clock.of(register, uid)


def longest(rounds: int, live: Callable[[Clock], object]) -> dict[str, float]:
    """The longest call of each kind, in milliseconds; each call counts with the least
    of *rounds*.
    """
    least: dict[str, Any] = {}
    for _ in range(rounds):
        clock = Clock()
        gc.collect()
        gc.disable()
        try:
            live(clock)
        finally:
            gc.enable()
        for name, spent in clock.ns.items():
            found = numpy.frombuffer(spent, dtype=numpy.int64)
            least[name] = numpy.minimum(least.get(name, found), found)
    return {name: float(found.max()) / 1e6 for name, found in least.items()}


def run(scale: Scale, note: Note) -> dict[str, Any]:
    """`longest[n][family][filling][call]` in ms."""
    count, rounds = by_scale(scale, (500, 1), (100_000, 2), (1_000_000, 3))
    found: dict[str, dict[str, dict[str, float]]] = {}
    for family, draw in FAMILIES.items():
        for filling, epochs in FILLING.items():
            note(f"{count:,} timeouts, {family}, {filling}, {rounds} rounds")
            some = by_scale(scale, min(epochs, 4), epochs, epochs)
            found.setdefault(family, {})[filling] = longest(
                rounds, partial(one_life, count=count, draw=draw, epochs=some)
            )
    for family in "all equal", "the same, each its own":
        note(f"{count:,} timeouts, {family}, {SPEAKING}, {rounds} rounds")
        draw, speaking = FAMILIES[family], by_scale(scale, 10, 7200, 7200)
        found[family][SPEAKING] = longest(
            rounds, partial(one_life, count=count, draw=draw, epochs=1, speaking=speaking)
        )
    found["a bare dict (control)"] = {"at once": longest(rounds, partial(bare_dict, count=count))}
    return {"longest": {str(count): found}, "unit": "ms", "goal_ms": GOAL_MS}


def table(found: dict[str, Any]) -> str:
    """A row per family and filling."""
    [(count, families)] = found["longest"].items()
    calls = list(next(iter(next(iter(families.values())).values())))
    rows = [
        [family, filling, *(figure(ms[call]) if call in ms else "-" for call in calls)]
        for family, fillings in families.items()
        for filling, ms in fillings.items()
    ]
    text = markdown(["timeouts", f"{short(int(count))} opened", *calls], rows)
    return (
        f"{text}\n\nMilliseconds of CPU, the longest call of each kind; `expire` with a limit of "
        f"{LIMIT}. The goal is {found['goal_ms']:g} at the most. What a `register` takes beyond "
        "that is the growth of one dict, from uids to leases, which takes as long where there is "
        "nothing else."
    )
