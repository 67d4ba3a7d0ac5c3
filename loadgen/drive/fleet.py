"""The parent: starts the processes, lets them go together, ends the run, gathers what they saw.

One rule: the parent touches no connection. It may be slow, redraw a screen or be interrupted without
disturbing the timing of any.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic
from types import FrameType

from ..judge.observation import Counters, Observation
from ..plan.capacity import plan_shares
from ..plan.plan import Plan
from .client import Order
from .processes import Processes
from .watchdog import Watchdog

HEAD_START = 0.05
REFRESH = 0.25


@dataclass
class Progress:
    """How far the run is: what dashboards draw.

    Attributes:
        phase: "connect", "hold" or "drain".
        ends: monotonic instant at which the run ends; None while connections are being opened.
        counters: the processes' latest heartbeats.
    """

    started: float
    now: float
    phase: str
    ends: float | None
    plan: Plan
    counters: list[Counters]

    def total(self, name: str) -> int:
        """The sum over all processes of the counter *name*."""
        return sum(getattr(counters, name) for counters in self.counters)

    def category(self, name: str) -> int:
        """Provisional count of closes in a verdict's category."""
        return sum(counters.categories.get(name, 0) for counters in self.counters)


@dataclass
class Hooks:
    """What the caller wants to hear of. *at_phase* is called with "before" (nothing is connected), "open" (all are) and
    "after"."""

    on_progress: Callable[[Progress], None] = lambda progress: None
    at_phase: Callable[[str], None] = lambda phase: None


def drive(order: Order, processes: int | None = None, hooks: Hooks | None = None) -> Observation:
    """Carry *order* out, in so many *processes*; None: as few as do.

    Returns:
        What was seen; `interrupted` when Ctrl-C or SIGTERM cut it short (the signal is not raised again), `because`
        when the server gave reason to end it early, `lost` with a line per process that died or fell silent.

    Raises:
        BadArgument: it cannot fit on this machine.
        WorkerDied: a process did not come up.
    """
    shares = plan_shares(order.target, order.plan.connections, processes)
    hooks = hooks or Hooks()
    interrupted = _Interruption()
    running = Processes([replace(order, share=share, processes=len(shares)) for share in shares])
    try:
        hooks.at_phase("before")
        with interrupted:
            return _conduct(order.plan, running, hooks, interrupted, Watchdog(order.target, order.protocol))
    finally:
        running.close()


def _conduct(
    plan: Plan, processes: Processes, hooks: Hooks, interrupted: _Interruption, watchdog: Watchdog
) -> Observation:
    started = monotonic() + HEAD_START
    processes.tell(started)
    ramped: float | None = None
    ends: float | None = None
    because: str | None = None
    stopped = False
    next_draw = started
    while processes.running:
        processes.listen(REFRESH)
        now = monotonic()
        counters = [process.counters for process in processes.all]
        if ramped is None and processes.ramped:
            ramped = now
            ends = now + plan.duration
            hooks.at_phase("open")
            processes.tell(ends)
        if not stopped:
            because = watchdog.look(now, counters)
            if interrupted or because:
                stopped = True
                processes.tell(float("-inf"))
        if now >= next_draw:
            next_draw = now + REFRESH
            phase = "connect" if ends is None else "hold" if now < ends else "drain"
            hooks.on_progress(Progress(started, now, phase, ends, plan, counters))
    hooks.at_phase("after")
    return Observation(
        started,
        ramped,
        monotonic(),
        [process.result() for process in processes.all],
        interrupted=bool(interrupted),
        because=because,
        lost=[process.lost for process in processes.all if process.lost],
    )


class _Interruption:
    """True once SIGINT or SIGTERM has come, while used as a context; a second one acts as it always would."""

    def __init__(self) -> None:
        self.came = False
        self.before: dict[int, object] = {}

    def __bool__(self) -> bool:
        return self.came

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.before[number] = signal.signal(number, self._note)

    def __exit__(self, *exc: object) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self.before.clear()
