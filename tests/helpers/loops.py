"""The event loops that adapters are tested on, behind one face: virtual time on trio
and asyncio.

The rule of this module: *time passes only while nothing is left to do*, so that a test
of an hour takes a moment and depends on no machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import selectors
import time
from collections.abc import Awaitable, Callable, Coroutine
from types import ModuleType
from typing import Any

import trio
import trio.testing

import reaper.asyncio
import reaper.trio

Body = Callable[[], Coroutine[Any, Any, Any]]


RESOLUTION = time.get_clock_info("monotonic").resolution
"""Seconds by which asyncio may call a timer early."""


class _Jumping(selectors.DefaultSelector):
    """Instead of waiting it lets the loop's clock jump."""

    loop: VirtualLoop
    grace = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if self.grace and not ready and timeout is not None and timeout > 0:
            ready = super().select(self.grace)
        if ready or timeout is None or timeout <= 0:
            return ready if timeout is not None else super().select(None)
        # asyncio calls the timers of the next nanosecond, too. Time passes then: who
        # waits until then would else wait for ever.
        soon = self.loop.now + timeout + RESOLUTION
        timers = (each.when() for each in self.loop._scheduled)  # type: ignore[attr-defined]
        self.loop.now = max((when for when in timers if when < soon), default=soon - RESOLUTION)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """asyncio's loop with a clock that jumps. *grace*: real seconds before a jump, in
    which what is on its way in the kernel arrives.
    """

    def __init__(self, grace: float = 0.0) -> None:
        selector = _Jumping()
        selector.loop, selector.grace = self, grace
        self.now = 0.0
        super().__init__(selector)

    def time(self) -> float:
        return self.now

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        # From CPython 3.12 on `asyncio.run` gives it 300 s, and this clock jumps.
        await super().shutdown_default_executor()


STEP = 1e-4
"""Virtual seconds between two readings of the moving clock."""


def autojump(kind: str) -> trio.testing.MockClock:
    """A clock that jumps to the next deadline when every task waits; *kind*: "still" or
    "moving".
    """
    clock = trio.testing.MockClock(autojump_threshold=0)
    if kind == "moving":
        readings = itertools.count()
        clock._real_clock = lambda: next(readings) * STEP
        clock.rate = 1.0
    return clock


class Trio:
    """trio with an autojump clock."""

    adapter: ModuleType = reaper.trio
    Cancelled = trio.Cancelled
    now = staticmethod(trio.current_time)
    sleep = staticmethod(trio.sleep)
    forever = staticmethod(trio.sleep_forever)

    def run(self, body: Body) -> Any:
        self.clock = autojump("still")
        return trio.run(body, clock=self.clock)

    def stall(self, seconds: float) -> None:
        """What a handler that blocks the loop does to its clock."""
        self.clock.jump(seconds)

    async def limited(self, seconds: float, waiting: Awaitable[Any]) -> None:
        with trio.move_on_after(seconds):
            await waiting

    async def together(self, *bodies: Body) -> None:
        async with trio.open_nursery() as nursery:
            for body in bodies:
                nursery.start_soon(body)


class Asyncio:
    """asyncio on a loop whose clock jumps."""

    adapter: ModuleType = reaper.asyncio
    Cancelled = asyncio.CancelledError
    sleep = staticmethod(asyncio.sleep)
    eager = False

    def run(self, body: Body) -> Any:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            loop = runner.get_loop()
            if self.eager:
                loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
            return runner.run(body())

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def stall(self, seconds: float) -> None:
        """What a handler that blocks the loop does to its clock."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.now += seconds

    async def forever(self) -> None:
        await asyncio.get_running_loop().create_future()

    async def limited(self, seconds: float, waiting: Awaitable[Any]) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await waiting

    async def together(self, *bodies: Body) -> None:
        async with asyncio.TaskGroup() as group:
            for body in bodies:
                group.create_task(body())


class AsyncioEager(Asyncio):
    """The same with eager tasks (Python 3.12 and later)."""

    eager = True


LOOPS: dict[str, type[Trio] | type[Asyncio]] = {"trio": Trio, "asyncio": Asyncio}
if hasattr(asyncio, "eager_task_factory"):
    LOOPS["asyncio-eager"] = AsyncioEager
