"""The parent: starts the processes, lets them go together, ends the run, gathers what they saw.

One rule: the parent touches no connection. It may be slow, redraw a screen or be interrupted without anybody's timing
suffering.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any, TypeAlias, cast

from ..judge.histogram import merged
from ..judge.records import RecordTable
from ..judge.stalls import Stalls
from ..plan.capacity import plan_shares
from ..plan.plan import Plan
from ..units import Target
from .messages import Counters, Order, Outcome
from .worker import main

START_LIMIT = 60.0
"""Seconds in which every process must have come up."""
Pipe: TypeAlias = "Connection[Any, Any]"

HEAD_START = 0.05
REFRESH = 0.25


class WorkerDied(RuntimeError):
    """A child process ended without its outcome: its standard error says why."""


@dataclass
class Progress:
    """How far the run is: what dashboards draw.

    Attributes:
        phase: "connect", "hold" or "drain".
        ends: monotonic instant at which the run ends; None while connections are being opened.
        counters: the processes' latest heartbeats.
        lateness: lateness of the closes seen since the last call, seconds.
    """

    started: float
    now: float
    phase: str
    ends: float | None
    plan: Plan
    counters: list[Counters]
    lateness: list[float]

    def total(self, name: str) -> int:
        """The sum over all processes of the counter *name*."""
        return sum(getattr(counters, name) for counters in self.counters)

    def category(self, name: str) -> int:
        """Provisional count of closes in a verdict's category."""
        return sum(counters.categories.get(name, 0) for counters in self.counters)


@dataclass
class Observation:
    """What the whole run saw."""

    started: float
    ramped: float | None
    ended: float
    partial: bool
    outcomes: list[Outcome]
    records: RecordTable = field(default_factory=RecordTable)
    server_stalls: Stalls = field(default_factory=Stalls)

    def __post_init__(self) -> None:
        for outcome in self.outcomes:
            self.records.extend(outcome.records)
            self.server_stalls.merge(outcome.server_stalls)
        # One per process, in the order of their shares: connection i belongs to process i modulo their number.
        self.own_stalls = [outcome.stalls for outcome in self.outcomes]
        self.lag = merged(outcome.lag for outcome in self.outcomes)
        self.latency = merged(outcome.latency for outcome in self.outcomes)


@dataclass
class Hooks:
    """What the caller wants to hear of. *at_phase* is called with "before" (nothing is connected), "open" (all are) and
    "after"."""

    on_progress: Callable[[Progress], None] = lambda progress: None
    at_phase: Callable[[str], None] = lambda phase: None


def drive(
    plan: Plan,
    target: Target,
    protocol: str,
    patience: float,
    path: str = "/",
    processes: int | None = None,
    journal: Path | None = None,
    hooks: Hooks | None = None,
) -> Observation:
    """Run *plan* against *target*.

    Returns:
        What was seen; `partial` when Ctrl-C or SIGTERM cut it short (the signal is not raised again).

    Raises:
        BadArgument: it cannot fit on this machine.
        WorkerDied: a process ended by itself; the others have been ended too.
    """
    shares = plan_shares(target, plan.connections, processes)
    hooks = hooks or Hooks()
    context = multiprocessing.get_context("spawn")
    pipes: list[Pipe] = []
    children = []
    interrupted = _Interruption()
    try:
        for share in shares:
            ours, theirs = context.Pipe()
            order = Order(plan, target, protocol, share, len(shares), patience, path, journal)
            child = context.Process(target=main, args=(order, theirs), daemon=True)
            child.start()
            theirs.close()
            pipes.append(ours)
            children.append(child)
        for pipe in pipes:
            if not pipe.poll(START_LIMIT):
                raise WorkerDied(f"a process of the load generator did not come up within {START_LIMIT:.0f} s")
            _receive(pipe)
        hooks.at_phase("before")
        with interrupted:
            return _conduct(plan, patience, pipes, hooks, interrupted)
    finally:
        for pipe in pipes:
            pipe.close()
        for child in children:
            child.join(5)
            if child.is_alive():
                child.terminate()


def _conduct(plan: Plan, patience: float, pipes: list[Pipe], hooks: Hooks, interrupted: _Interruption) -> Observation:
    started = monotonic() + HEAD_START
    for pipe in pipes:
        pipe.send(started)
    counters = {pipe: Counters() for pipe in pipes}
    outcomes: dict[Pipe, Outcome] = {}
    ramped: float | None = None
    ends: float | None = None
    stopped = False
    next_draw = started
    lateness: list[float] = []
    while len(outcomes) < len(pipes):
        for ready in wait([pipe for pipe in pipes if pipe not in outcomes], timeout=REFRESH):
            pipe = cast("Pipe", ready)
            message = _receive(pipe)
            if isinstance(message, Outcome):
                outcomes[pipe] = message
                counters[pipe] = message.counters
            elif isinstance(message, Counters):
                counters[pipe] = message
                lateness += message.lateness
        now = monotonic()
        if ramped is None and all(counter.ramped for counter in counters.values()):
            ramped = now
            ends = now + plan.duration
            hooks.at_phase("open")
            _tell(pipes, ends)
        if interrupted and not stopped:
            stopped = True
            _tell(pipes, float("-inf"))
        if now >= next_draw:
            next_draw = now + REFRESH
            phase = "connect" if ends is None else "hold" if now < ends else "drain"
            hooks.on_progress(Progress(started, now, phase, ends, plan, list(counters.values()), lateness))
            lateness = []
    hooks.at_phase("after")
    return Observation(started, ramped, monotonic(), bool(interrupted), [outcomes[pipe] for pipe in pipes])


def _receive(pipe: Pipe) -> object:
    try:
        message: object = pipe.recv()
    except EOFError:
        raise WorkerDied("a process of the load generator ended by itself; its error is above") from None
    return message


def _tell(pipes: list[Pipe], end: float) -> None:
    for pipe in pipes:
        with suppress(OSError):  # it may just have ended; its outcome is in the pipe
            pipe.send(end)


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
