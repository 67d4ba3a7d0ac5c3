"""The parent: starts the processes, lets them go together, ends the run, gathers what they saw; draws the progress.

One rule: the parent touches no connection. It may be slow, redraw a screen or be interrupted without
disturbing the timing of any.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic
from types import FrameType
from typing import Any, TextIO

from ..judge.observation import Counters, Observation, summed
from ..plan.capacity import plan_shares
from ..plan.plan import Plan
from ..units import seconds
from .client import Order
from .processes import Processes
from .watchdog import Watchdog

HEAD_START = 0.05
REFRESH = 0.25
PLAIN_INTERVAL = 1.0
"""Seconds between two lines of progress where there is no terminal."""
CLEAR = "\r\x1b[K"
"""What takes a terminal's line away."""


def progress(elapsed: float, left: float | None, counters: Sequence[Counters]) -> str:
    """The state of a run, for people, from its processes' latest heartbeats. *left*: seconds to the end of it; None
    while connections are being opened."""
    total = summed(counters)
    phase = "connect" if left is None else "hold" if left > 0 else "drain"
    rest = "" if left is None else f", {seconds(max(left, 0.0))} left"
    counts = f"{total.open:>7,} open, {total.established:,} established, {total.closed:,} closed"
    return f"{max(elapsed, 0.0):6.1f}s {phase:<7} {counts}{rest}"


class Display:
    """Draws lines on *stream*: as often as it gets one on a terminal, one per second elsewhere, none if *quiet*."""

    def __init__(self, stream: TextIO, quiet: bool = False) -> None:
        self.stream = stream
        self.live = stream.isatty() and not quiet
        self.next = float("inf") if quiet else 0.0

    def show(self, line: str) -> None:
        """Draw it, or not, if it is too soon."""
        now = monotonic()
        if now < self.next:
            return
        self.next = now if self.live else now + PLAIN_INTERVAL
        begin, end = (CLEAR, "") if self.live else ("", "\n")
        print(begin + line, end=end, file=self.stream, flush=True)

    def close(self) -> None:
        """Leave the terminal as it was; what is printed next stands where the line stood."""
        if self.live:
            print(CLEAR, end="", file=self.stream, flush=True)


def drive(
    order: Order,
    processes: int | None = None,
    on_progress: Callable[[str], None] = lambda line: None,
    at_phase: Callable[[str], None] = lambda phase: None,
) -> Observation:
    """Carry *order* out, in so many *processes*; None: as few as do. *on_progress* is given a line now and then.

    *at_phase* is called with "before" (nothing is connected), "open" (all are) and "after".

    Returns:
        What was seen; `interrupted` when Ctrl-C or SIGTERM cut it short (the signal is not raised again), `because`
        when the server gave reason to end it early, `lost` with a line per process that died or fell silent.

    Raises:
        BadArgument: it cannot fit on this machine.
        WorkerDied: a process did not come up.
    """
    shares = plan_shares(order.target, order.plan.connections, processes)
    plan, watchdog = order.plan, Watchdog(order.target, order.protocol)
    running = Processes([replace(order, share=share, processes=len(shares)) for share in shares])
    try:
        at_phase("before")
        with interruption() as interrupted:
            return _conduct(plan, running, watchdog, interrupted, on_progress, at_phase)
    finally:
        running.close()


def _conduct(
    plan: Plan,
    processes: Processes,
    watchdog: Watchdog,
    interrupted: list[int],
    on_progress: Callable[[str], None],
    at_phase: Callable[[str], None],
) -> Observation:
    started = monotonic() + HEAD_START
    processes.tell(started)
    ramped: float | None = None
    ends: float | None = None
    because: str | None = None
    stopped, next_draw = False, started
    while processes.running:
        processes.listen(REFRESH)
        now = monotonic()
        counters = [process.counters for process in processes.all]
        if ramped is None and processes.ramped:
            ramped = now
            ends = now + plan.duration
            at_phase("open")
            processes.tell(ends)
        if not stopped:
            because = watchdog.look(now, counters)
            if interrupted or because:
                stopped = True
                processes.tell(float("-inf"))
        if now >= next_draw:
            next_draw = now + REFRESH
            on_progress(progress(now - started, None if ends is None else ends - now, counters))
    at_phase("after")
    return Observation(
        started,
        ramped,
        monotonic(),
        [process.result() for process in processes.all],
        interrupted=bool(interrupted),
        because=because,
        lost=[process.lost for process in processes.all if process.lost],
    )


@contextmanager
def interruption() -> Iterator[list[int]]:
    """The signal, once SIGINT or SIGTERM has come; a second one acts as it always would."""
    came: list[int] = []
    before: dict[int, Any] = {}

    def restore() -> None:
        for number in list(before):
            signal.signal(number, before.pop(number))

    def note(number: int, _: FrameType | None) -> None:
        came.append(number)
        restore()

    if threading.current_thread() is threading.main_thread():
        before |= {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        restore()
