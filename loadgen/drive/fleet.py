"""The parent of a run: it starts the processes, ends the run, and gathers what they
saw.

One rule: the parent touches no connection. It may be slow, redraw a screen or be
interrupted without disturbing any of them. And no process can hold up the others: one
that dies or falls silent is ended and named, and what the others saw still counts.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from time import monotonic
from types import FrameType
from typing import Any, TextIO

from ..judge.observation import Counters, Observation, Outcome, summed
from ..plan.capacity import plan_shares
from ..units import seconds
from .client import Order
from .watchdog import Watchdog
from .worker import main

HEAD_START = 0.05
REFRESH = 0.25
PLAIN_INTERVAL = 1.0
"""Seconds between two lines of progress where there is no terminal."""
CLEAR = "\r\x1b[K"
"""What clears the line of a terminal."""
START_LIMIT = 60.0
"""Seconds in which every process must have come up."""
SILENCE = 30.0
"""Seconds without a heartbeat after which a process counts as lost: it was stopped, or
hangs.
"""
OWN_STALL = 2.0
"""Seconds between two looks of the parent from which on the silence is held to be its
own.
"""


def progress(elapsed: float, left: float | None, counters: Sequence[Counters]) -> str:
    """Say in one line how far a run is, from the latest heartbeats of its processes.

    *left*: seconds to the end of the run; None while connections are being opened.
    """
    total = summed(counters)
    phase = "connect" if left is None else "hold" if left > 0 else "drain"
    rest = "" if left is None else f", {seconds(max(left, 0.0))} left"
    counts = f"{total.open:>7,} open, {total.established:,} established, {total.closed:,} closed"
    return f"{max(elapsed, 0.0):6.1f}s {phase:<7} {counts}{rest}"


class Display:
    """Draws lines of progress on *stream*.

    A terminal gets every line, anything else one per second; nothing is drawn if
    *quiet*.
    """

    def __init__(self, stream: TextIO, quiet: bool = False) -> None:
        self.stream = stream
        self.live = stream.isatty() and not quiet
        self.next = float("inf") if quiet else 0.0

    def show(self, line: str) -> None:
        """Draw *line*, unless it is too soon after the one before."""
        now = monotonic()
        if now < self.next:
            return
        self.next = now if self.live else now + PLAIN_INTERVAL
        begin, end = (CLEAR, "") if self.live else ("", "\n")
        print(begin + line, end=end, file=self.stream, flush=True)

    def close(self) -> None:
        """Clear the terminal's line, so that what is printed next stands in its
        place.
        """
        if self.live:
            print(CLEAR, end="", file=self.stream, flush=True)


class WorkerDied(RuntimeError):
    """A process did not come up: its standard error says why."""


@dataclass(eq=False)
class Process:
    """One process of a run; `lost` says why its outcome will never come."""

    order: Order
    child: Any
    pipe: Any
    counters: Counters = field(default_factory=Counters)
    outcome: Outcome | None = None
    heard: float = 0.0
    lost: str = ""

    @property
    def running(self) -> bool:
        """Whether its outcome is still to come."""
        return self.outcome is None and not self.lost

    def lose(self, why: str) -> None:
        """Give the process up. SIGKILL ends one that is stopped, too."""
        share = self.order.share
        name = f"process {share.number + 1} of {self.order.processes}"
        self.lost = f"{name} {why}: its {share.connections:,} connections were not judged"
        self.child.kill()

    def result(self) -> Outcome:
        """What the process saw; of a lost one that is its last counters, and no
        record.
        """
        return self.outcome or Outcome(counters=self.counters)


class Processes:
    """All processes of a run, in the order of their shares."""

    def __init__(self, orders: Sequence[Order]) -> None:
        # All are forked from one process that has imported what they need (and nothing
        # of this one's state).
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([main.__module__])
        self.all: list[Process] = []
        self.looked = monotonic()
        try:
            for order in orders:
                ours, theirs = context.Pipe()
                child = context.Process(target=main, args=(order, theirs), daemon=True)
                child.start()
                theirs.close()
                self.all.append(Process(order, child, ours))
            until = monotonic() + START_LIMIT
            for process in self.all:
                if not process.pipe.poll(max(until - monotonic(), 0.0)):
                    raise WorkerDied(
                        "a process of the load generator did not come up "
                        f"within {START_LIMIT:.0f} s"
                    )
                try:
                    process.pipe.recv()
                except EOFError:
                    words = (
                        "a process of the load generator ended before it began; its error is above"
                    )
                    raise WorkerDied(words) from None
        except BaseException:
            self.close()
            raise

    @property
    def running(self) -> list[Process]:
        """The processes whose outcomes are still to come."""
        return [process for process in self.all if process.running]

    @property
    def ramped(self) -> bool:
        """Whether each process that is not lost has tried all its connections."""
        return all(process.counters.ramped or process.lost for process in self.all)

    def tell(self, instant: float) -> None:
        """Send *instant* to all: first that of the start, then that of the end (-inf:
        now).
        """
        for process in self.running:
            with suppress(OSError):  # it may just have ended; its outcome is in the pipe
                process.pipe.send(instant)

    def listen(self, timeout: float) -> None:
        """Wait for news, at most *timeout* seconds."""
        pipes: dict[Any, Process] = {process.pipe: process for process in self.running}
        ready = wait(pipes, timeout)
        now = monotonic()
        if now - self.looked > OWN_STALL + timeout:  # we were stopped, perhaps with all of them
            for process in self.all:
                process.heard = now
        self.looked = now
        for process in map(pipes.__getitem__, ready):
            process.heard = now
            try:
                message = process.pipe.recv()
            except (EOFError, OSError):
                process.lose("ended by itself")
                continue
            process.outcome = message if isinstance(message, Outcome) else None
            process.counters = message.counters if isinstance(message, Outcome) else message
        for process in self.running:
            if process.heard and now - process.heard > SILENCE:
                process.lose(f"said nothing for {SILENCE:.0f} s and was ended")

    def close(self) -> None:
        """End the processes that still run."""
        for process in self.all:
            process.pipe.close()
        for process in self.all:
            process.child.join(5)
            if process.child.is_alive():
                process.child.kill()
                process.child.join(5)


def drive(
    order: Order,
    processes: int | None = None,
    on_progress: Callable[[str], None] = lambda line: None,
    at_phase: Callable[[str], None] = lambda phase: None,
) -> Observation:
    """Carry *order* out.

    Args:
        processes: How many to use; None for as few as do.
        on_progress: Given a line about the progress, now and then.
        at_phase: Called with "before" (nothing is connected), "open" (all are) and
            "after".

    Returns:
        What was seen; `interrupted` when Ctrl-C or SIGTERM cut it short (the signal is
        not raised again), `because` when the server gave reason to end it early, `lost`
        with a line per process that died or fell silent.

    Raises:
        BadArgument: it cannot fit on this machine.
        WorkerDied: a process did not come up.
    """
    shares = plan_shares(order.target, order.plan.connections, processes)
    watchdog = Watchdog(order.target, order.protocol)
    orders = [replace(order, share=share, processes=len(shares)) for share in shares]
    with closing(Processes(orders)) as running, interruption() as interrupted:
        at_phase("before")
        started = next_draw = monotonic() + HEAD_START
        running.tell(started)
        ramped = ends = because = None
        stopped = False
        while running.running:
            running.listen(REFRESH)
            now = monotonic()
            counters = [process.counters for process in running.all]
            if ramped is None and running.ramped:
                ramped, ends = now, now + order.plan.duration
                at_phase("open")
                running.tell(ends)
            if not stopped:
                because = watchdog.look(now, counters)
                if interrupted or because:
                    stopped = True
                    running.tell(float("-inf"))
            if now >= next_draw:
                next_draw = now + REFRESH
                on_progress(progress(now - started, None if ends is None else ends - now, counters))
        at_phase("after")
        lost = [process.lost for process in running.all if process.lost]
        seen = [process.result() for process in running.all]
        return Observation(started, ramped, monotonic(), seen, bool(interrupted), because, lost)


@contextmanager
def interruption() -> Iterator[list[int]]:
    """Note SIGINT or SIGTERM for the length of the block, in the list that this yields.

    A second signal acts as it would without this.
    """
    came: list[int] = []
    before: dict[int, Any] = {}

    def restore() -> None:
        for number in list(before):
            signal.signal(number, before.pop(number))

    def note(number: int, _: FrameType | None) -> None:
        came.append(number)
        restore()

    if threading.current_thread() is threading.main_thread():
        before |= {
            number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)
        }
    try:
        yield came
    finally:
        restore()
