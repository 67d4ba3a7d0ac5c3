"""The processes of a run, as the parent sees them: started, heard, lost, ended.

One rule: no process can hold up the others. One that dies or falls silent is ended and named, and what the others saw
still counts.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from time import monotonic
from typing import Any, TypeAlias

from ..judge.observation import Counters, Outcome
from .client import Order
from .worker import main

Pipe: TypeAlias = "Connection[Any, Any]"

START_LIMIT = 60.0
"""Seconds in which every process must have come up."""
SILENCE = 30.0
"""Seconds without a heartbeat after which a process counts as lost: it was stopped, or hangs."""
OWN_STALL = 2.0
"""Seconds between two looks from which on the silence meanwhile is the parent's own."""


class WorkerDied(RuntimeError):
    """A process did not come up: its standard error says why."""


class Process:
    """One of them."""

    def __init__(self, order: Order, child: Any, pipe: Pipe) -> None:
        self.order = order
        self.child = child
        self.pipe = pipe
        self.counters = Counters()
        self.outcome: Outcome | None = None
        self.heard = 0.0
        self.lost = ""

    @property
    def running(self) -> bool:
        """Whether there is still something to be heard from it."""
        return self.outcome is None and not self.lost

    def lose(self, why: str) -> None:
        """Give it up; SIGKILL ends a stopped process too."""
        share = self.order.share
        self.lost = (
            f"process {share.number + 1} of {self.order.processes} {why}: "
            f"its {share.connections:,} connections were not judged"
        )
        self.child.kill()

    def result(self) -> Outcome:
        """What it saw; of a lost one its last counters, and no record."""
        return self.outcome or Outcome(counters=self.counters)


class Processes:
    """All of them, in the order of their shares."""

    def __init__(self, orders: Sequence[Order]) -> None:
        # All are forked from one process that has imported what they need (and nothing of this one's state).
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
                    raise WorkerDied(f"a process of the load generator did not come up within {START_LIMIT:.0f} s")
                try:
                    process.pipe.recv()
                except EOFError:
                    raise WorkerDied(
                        "a process of the load generator ended before it began; its error is above"
                    ) from None
        except BaseException:
            self.close()
            raise

    @property
    def running(self) -> list[Process]:
        """Those from which there is still something to be heard."""
        return [process for process in self.all if process.running]

    @property
    def ramped(self) -> bool:
        """Whether each that was not lost has tried all its connections."""
        return all(process.counters.ramped or process.lost for process in self.all)

    def tell(self, instant: float) -> None:
        """Send *instant* to all: first that of the start, later that of the end (-inf: now)."""
        for process in self.running:
            with suppress(OSError):  # it may just have ended; its outcome is in the pipe
                process.pipe.send(instant)

    def listen(self, timeout: float) -> None:
        """Wait for news, at most *timeout* seconds."""
        pipes = {process.pipe: process for process in self.running}
        ready = wait(list(pipes), timeout=timeout)
        now = monotonic()
        if now - self.looked > OWN_STALL + timeout:  # we were stopped, perhaps with all of them
            for process in self.all:
                process.heard = now
        self.looked = now
        for pipe in ready:
            process = pipes[pipe]  # type: ignore[index]
            process.heard = now
            try:
                message = process.pipe.recv()
            except (EOFError, OSError):
                process.lose("ended by itself")
                continue
            if isinstance(message, Outcome):
                process.outcome = message
                process.counters = message.counters
            else:
                process.counters = message
        for process in self.running:
            if process.heard and now - process.heard > SILENCE:
                process.lose(f"said nothing for {SILENCE:.0f} s and was ended")

    def close(self) -> None:
        """End whatever still runs."""
        for process in self.all:
            process.pipe.close()
        for process in self.all:
            process.child.join(5)
            if process.child.is_alive():
                process.child.kill()
                process.child.join(5)
