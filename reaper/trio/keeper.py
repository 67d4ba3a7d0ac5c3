"""The keeper of a trio program: what `reaper.keeper` asks of trio.

The rule of this module: *a keeper is closed by its own clock*. What cancels the
program reaches no make and no end of it; the keeper cancels those itself, after
`drain`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Unpack

import trio

from ..keeper.loops import Keeper, Key, Thing
from ..keeper.options import KeeperOptions, Settings, settings_of
from .reaper import TrioReaper


class TrioWorld:
    """The nursery in which the makes and ends of one keeper run."""

    def __init__(self, reaper: TrioReaper, nursery: trio.Nursery) -> None:
        self.reaper: TrioReaper = reaper
        self.event: type[trio.Event] = trio.Event
        self.task: Callable[[], object] = trio.lowlevel.current_task
        self._nursery = nursery
        self._scopes: set[trio.CancelScope] = set()

    def spawn(
        self, function: Callable[..., Coroutine[Any, Any, None]], *arguments: Any
    ) -> trio.CancelScope:
        """Run *function* as a task."""
        scope = trio.CancelScope(shield=True)

        async def run() -> None:
            with scope:
                await function(*arguments)
            self._scopes.discard(scope)

        self._scopes.add(scope)
        self._nursery.start_soon(run)
        return scope

    async def within(self, seconds: float, event: trio.Event) -> None:
        """Wait for *event*, for *seconds* at the most."""
        with trio.move_on_after(seconds):
            await event.wait()

    async def settle(self) -> None:
        """Cancel what runs; its nursery waits for it."""
        for scope in self._scopes:
            scope.cancel()


def open_keeper(
    make: Callable[[Key], Coroutine[Any, Any, Thing] | Thing],
    end: Callable[[Key, Thing, str], object],
    *,
    ask: Callable[[Key, Thing], object] | None = None,
    **options: Unpack[KeeperOptions],
) -> AbstractAsyncContextManager[Keeper[Key, Thing]]:
    """A keeper for the length of an `async with` block, as
    `reaper.asyncio.open_keeper`.

    The makes and ends run in a nursery of the keeper's, and cancellations from outside
    do not reach them: where the block is cancelled, it is left when the keeper is
    closed, after three times `drain` at the latest. An exception of the block comes out
    as it is, in no group.
    """
    return _opened(make, end, ask, settings_of(make, end, ask, options))


@asynccontextmanager
async def _opened(make: Any, end: Any, ask: Any, settings: Settings) -> AsyncIterator[Any]:
    raised: BaseException | None = None
    async with trio.open_nursery() as nursery:
        reaper = TrioReaper(**settings.reaper)
        reaping = trio.CancelScope(shield=True)

        async def reap(task_status: trio.TaskStatus[TrioReaper] = trio.TASK_STATUS_IGNORED) -> None:
            with reaping:
                await reaper.run(task_status=task_status)

        await nursery.start(reap)
        keeper: Keeper[Any, Any] = Keeper(TrioWorld(reaper, nursery), make, end, ask, settings)
        try:
            keeper.open()
            yield keeper
        except BaseException as error:
            raised = error
        finally:
            with trio.CancelScope(shield=True):
                await keeper.close()
            reaping.cancel()
    if raised is not None:
        raise raised
