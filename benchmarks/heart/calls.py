"""The longest call of the core, by how the timeouts were drawn.

One rule: each call is timed by itself, in CPU time, and with a limit, as a driver
calls. The collector is off: what its passes cost, `mass` says. What the system takes
from the process in the midst of a call counts as the call's: the figure is the least of
the rounds' longest.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from typing import Any

import reaper
from reaper.policy import lifespan

from ..common import Note, Scale, by_scale, figure, markdown, short

GOAL_MS = 5.0
LIMIT = 128
EPOCH = 0.5
FILLING = {"at once": 1, "over ten minutes": 1200}
"""Epochs in which the connections are opened."""

Draw = Callable[[random.Random], float]
FAMILIES: dict[str, Draw] = {
    "all equal": lambda choose: 900.0,
    "ages of two hours, less 10 %": lambda choose: lifespan(7200.0, 0.1, 1.0, choose.random()),
    "the same, each its own": lambda choose: 7200.0 * (1 - 0.1 * choose.random()),
    "5 to 15 minutes, each its own": lambda choose: choose.uniform(300.0, 900.0),
    "less than a minute, each its own": lambda choose: choose.uniform(1.0, 60.0),
}


class Longest:
    """Calls, and notes how long each kind of call took at most, in milliseconds."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = {}

    def of(self, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        before = time.thread_time_ns()
        found = call(*args, **named)
        spent = (time.thread_time_ns() - before) / 1e6
        name = call.__name__
        self.ms[name] = max(self.ms.get(name, 0.0), spent)
        return found


def one_life(count: int, draw: Draw, epochs: int) -> dict[str, float]:
    """*count* connections that fall silent: opened within *epochs*, half of them
    released, the others reaped. The longest call of each kind, in milliseconds.
    """
    core = reaper.IdleReaper(tick=1.0, epochs_per_tick=2)
    choose, longest, now = random.Random(1), Longest(), 0.0
    leases: list[reaper.Lease] = []

    def wake() -> None:
        longest.of(core.close_epoch, now, at_least=EPOCH / 2)
        while (due := longest.of(core.next_wakeup)) is not None and due <= now:
            longest.of(core.expire, now, LIMIT)

    for epoch in range(epochs):
        for _ in range(count * epoch // epochs, count * (epoch + 1) // epochs):
            leases.append(core.register(len(leases), draw(choose), now=now))
        now += EPOCH
        wake()
    while core and now < 150.0:
        now += EPOCH
        wake()
    for lease in leases[::2]:
        longest.of(lease.release)
    while core:
        # To the next thing that there is to do: empty epochs cost the same in each
        # family.
        ahead = [due for due, _, _ in core._heap[:1]]
        if (start := core._wheel.next_expiry()) is not None:
            ahead.append(core._origin + start * core.tick)
        now = max(now + EPOCH, min(ahead, default=now))
        wake()
    return longest.ms


def run(scale: Scale, note: Note) -> dict[str, Any]:
    """`longest[n][family][filling][call]` in ms."""
    count, rounds = by_scale(scale, (500, 1), (100_000, 1), (1_000_000, 2))
    found: dict[str, dict[str, dict[str, float]]] = {}
    for family, draw in FAMILIES.items():
        for filling, epochs in FILLING.items():
            lives = []
            for turn in range(rounds):
                note(f"{count:,} timeouts, {family}, {filling}, round {turn + 1} of {rounds}")
                gc.collect()
                gc.disable()
                lives.append(one_life(count, draw, by_scale(scale, min(epochs, 4), epochs, epochs)))
                gc.enable()
            found.setdefault(family, {})[filling] = {
                call: min(life.get(call, 0.0) for life in lives) for call in lives[0]
            }
    return {"longest": {str(count): found}, "unit": "ms", "goal_ms": GOAL_MS}


def table(found: dict[str, Any]) -> str:
    """A row per family and filling."""
    [(count, families)] = found["longest"].items()
    calls = list(next(iter(next(iter(families.values())).values())))
    rows = [
        [family, filling, *(figure(ms.get(call, 0.0)) for call in calls)]
        for family, fillings in families.items()
        for filling, ms in fillings.items()
    ]
    text = markdown(["timeouts", f"{short(int(count))} opened", *calls], rows)
    return (
        f"{text}\n\nMilliseconds of CPU, the longest call of each kind; `expire` with a limit of "
        f"{LIMIT}. The goal is {found['goal_ms']:g} at the most."
    )
