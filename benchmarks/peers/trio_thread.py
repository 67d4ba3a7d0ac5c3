"""A trio loop in a thread of its own, on a clock that is told the time, driven from outside a call at a time.

One rule: trio's cancel scopes work only inside a running loop; while the loop works, the caller waits.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import trio
import trio.testing

Job = Callable[[], Awaitable[None]]


class TrioThread:
    """Start with the first call, end with `close`. Time stands still but for `tick` and `spawn`."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._clock = trio.testing.MockClock()
        self._origin: float | None = None
        self._thread = threading.Thread(target=trio.run, args=(self._main,), kwargs={"clock": self._clock})
        self._thread.start()

    async def _main(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            # The loop stands still in get(): only the caller has anything for it to do.
            while (job := self._jobs.get()) is not None:
                error = None
                try:
                    await job()
                except BaseException as caught:
                    error = caught
                self._done.put(error)
            nursery.cancel_scope.cancel()

    def _run(self, job: Job) -> None:
        self._jobs.put(job)
        error = self._done.get()
        if error is not None:
            raise error

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Run a plain function inside the loop."""

        async def job() -> None:
            function(*args)

        self._run(job)

    def spawn(self, function: Callable[..., Awaitable[None]], each: Iterable[Any], now: float) -> None:
        """Start a task with each argument at *now*, and let them all come to rest."""

        async def job() -> None:
            self._move(now)
            for argument in each:
                self._nursery.start_soon(function, argument)
            await self._rest()

        self._run(job)

    def wake(self, tasks: list[trio.lowlevel.Task], now: float) -> None:
        """Let each of these parked tasks run once, at *now*."""

        async def job() -> None:
            self._move(now)
            for task in tasks:
                trio.lowlevel.reschedule(task)
            # Twice: within one scheduling pass the caller may have its turn before they have theirs.
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()

        self._run(job)

    def tick(self, now: float) -> None:
        """Move the clock to *now* and let everything that is due happen."""

        async def job() -> None:
            self._move(now)
            await self._rest()

        self._run(job)

    def _move(self, now: float) -> None:
        if now > self._clock.current_time():
            self._clock.jump(now - self._clock.current_time())

    async def _rest(self) -> None:
        for _ in range(4):
            await trio.lowlevel.checkpoint()

    def close(self) -> None:
        """End every task and the loop."""
        self._jobs.put(None)
        self._thread.join()
