"""The keeper of an asyncio loop: what `reaper.keeper` asks of asyncio.

The rule of this module: *a task is held while it runs*. asyncio itself refers to tasks
weakly.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Unpack

from ..keeper.loops import Keeper, Key, Thing
from ..keeper.options import KeeperOptions, Settings, settings_of
from .reaper import AsyncioReaper

LAST_STEPS = 1.0
"""Seconds that tasks have, once they were cancelled, until nobody waits for them."""


class AsyncioWorld:
    """The loop that runs."""

    def __init__(self, reaper: AsyncioReaper) -> None:
        self.reaper: AsyncioReaper = reaper
        self.event: type[asyncio.Event] = asyncio.Event
        self.task: Callable[[], object] = asyncio.current_task
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(
        self, function: Callable[..., Coroutine[Any, Any, None]], *arguments: Any
    ) -> asyncio.Task[None]:
        """Run *function* as a task."""
        # Never an eager one: the law, which asks for it, has not come to its end.
        task = asyncio.Task(function(*arguments), loop=self.reaper.loop)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def within(self, seconds: float, event: asyncio.Event) -> None:
        """Wait for *event*, for *seconds* at the most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()

    async def settle(self) -> None:
        """Cancel what runs, and wait for that."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=LAST_STEPS)


def open_keeper(
    make: Callable[[Key], Coroutine[Any, Any, Thing] | Thing],
    end: Callable[[Key, Thing, str], object],
    *,
    ask: Callable[[Key, Thing], object] | None = None,
    **options: Unpack[KeeperOptions],
) -> AbstractAsyncContextManager[Keeper[Key, Thing]]:
    """A keeper for the length of an `async with` block.

    `async with keeper.use(key) as thing:` makes the thing when it is first asked for.
    When nobody has used it for `idle` seconds it is ended: never while it is in use,
    never early, at most one `tick` late, exactly once. Time in which the loop stalled,
    or the process was stopped, is charged to no thing.

    Args:
        make: Called as `make(key)`; a coroutine that it returns is awaited, in a task
            of its own.
        end: Called as `end(key, thing, reason)`, once for each thing, `ends_at_once` of
            them at a time; a coroutine that it returns is awaited. `reason` is `idle`,
            `max_age`, `most`, `pressure`, `ended`, or `drain` and `drain_deadline`
            while the keeper is closed.
        ask: Called as `ask(key, thing)` before something is ended that is due, too old
            or too many; may be a coroutine. What it returns says whether it may be
            ended. If not, the thing works, and is asked again after a timeout. Who
            comes to use it meanwhile is let in, and then the answer does not count.
        options: See `reaper.keeper.KeeperOptions`.
    Raises:
        InvalidArgument, TypeError: at the call, by name and value.
    At the end of the block nobody is let in any more. What is idle is ended, and what
    is in use when it is left; after `drain` seconds it is ended in use. Ends have as
    long again; what then runs is cancelled, and what waits for its turn gets one and
    `drain` seconds more. So everything is ended, and the block is left in time.
    """
    return _opened(make, end, ask, settings_of(make, end, ask, options))


@asynccontextmanager
async def _opened(make: Any, end: Any, ask: Any, settings: Settings) -> AsyncIterator[Any]:
    reaper = AsyncioReaper(**settings.reaper)
    reaper.start()
    keeper: Keeper[Any, Any] = Keeper(AsyncioWorld(reaper), make, end, ask, settings)
    try:
        keeper.open()
        yield keeper
    finally:
        try:
            await keeper.close()
        finally:
            reaper.stop()
