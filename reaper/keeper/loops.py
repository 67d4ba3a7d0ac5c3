"""The keeper of an event loop. What is decided is the law's; here is who waits for
what, the same on trio and on asyncio, which differ in a `World`.

The rule of this module: *nothing is awaited between a decision of the law and what
follows from it*. So no other task sees one without the other.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, Protocol, TypeVar

from ..core.lease import Explanation
from ..core.ticks import check_count
from ..driver.reaper import Reaper
from ..metrics import Family
from .kept import ABANDONED, FAILED, KEPT, MAKING, NEW, OVER, Kept
from .law import Law
from .options import Settings
from .statistics import KeeperStatistics, families

Key = TypeVar("Key", bound=Hashable)
Thing = TypeVar("Thing")

AT_A_TIME = 0.00025
"""Seconds of ends, about, that one of `ends_at_once` may run before the loop does."""

LAST_TURNS = 64
"""Ends that may run at once, beside `ends_at_once`, in the last stage of closing."""

NAMED = 5
"""Keys that a line of the log names at most."""


class Task(Protocol):
    """What a `World` has started."""

    def cancel(self) -> object:
        """Cancel it."""


class World(Protocol):
    """What the loops differ in."""

    @property
    def reaper(self) -> Reaper:
        """The reaper of the loop, which runs."""

    def event(self) -> Any:
        """An event of the loop: `set()` and `await wait()`."""

    def task(self) -> object:
        """The task that runs."""

    def spawn(self, function: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> Task:
        """Run *function* as a task that nobody's cancellation reaches but its own."""

    async def within(self, seconds: float, event: Any) -> None:
        """Wait for *event*, for *seconds* at the most."""

    async def settle(self) -> None:
        """Wait until the tasks that were cancelled have ended."""


class Keeper(Generic[Key, Thing]):
    """Things by their keys, made when they are asked for, and ended when nobody has
    used them for a while. Made by `open_keeper` of `reaper.asyncio` or `reaper.trio`.

    Not for several threads: all is called in the loop.

    Attributes:
        reaper: Watches the things. `serve_status` shows it, and so does `reaper top`.
    """

    def __init__(
        self,
        world: World,
        make: Callable[[Key], Any],
        end: Callable[[Key, Thing, str], Any],
        ask: Callable[[Key, Thing], Any] | None,
        settings: Settings,
    ) -> None:
        self._world = world
        self.reaper: Reaper = world.reaper
        self._make, self._end, self._ask = make, end, ask
        self._settings = settings
        self._workers = 0
        self._makes: dict[Kept, Task] = {}
        self._turns = settings.ends_at_once
        self._running: dict[Kept, Task] = {}  # whose end runs, and where
        self.law: Law = Law(
            self.reaper.driver,
            settings,
            event=world.event,
            work=self._see_to_work,
            give_up=self._give_up,
        )
        self.reaper.count = self.law.__len__
        self.reaper.told = self.families

    def open(self) -> None:
        """Begin, once the reaper runs."""
        if self._settings.pressure is not None:
            self.law.relieve(self.reaper, self._settings.pressure)

    def __repr__(self) -> str:
        return f"<Keeper {self._settings.name!r}, {len(self)} kept>"

    # ---- using -----------------------------------------------------------------------
    def use(self, key: Key) -> AbstractAsyncContextManager[Thing]:
        """An `async with` block in which the thing of *key* is in use, and so is never
        due. It is made by `make(key)` if there is none.

        It is in use from the moment the block is entered. Several may use one thing at
        once. Who asks for a thing that is being made waits for it; who asks for one
        that is being ended waits for that end, and gets a new one (at once with
        `overlap`). Nobody waits for another key's make or end. A caller who is
        cancelled while it waits lets go; when nobody waits any more, the make is
        cancelled.

        Raises:
            KeeperClosed: on entering: the keeper closes, or is closed.
            RuntimeError: the block was entered before.
            Exception: what `make` raised; all who waited for it hear it, and nothing is
                kept.
        Cost: no task, and on trio no checkpoint, if the thing is there. A `make` that
        is a coroutine runs in a task of its own.
        """
        return Use(self, key)

    async def _let_in(self, kept: Kept, use: Use[Any, Any]) -> Kept:
        """Return what *use* is in, at last."""
        law = self.law
        while True:
            state = kept.state
            if state is KEPT and use in kept.users:  # type: ignore[operator]
                return kept
            if state is NEW:
                self._begin_make(kept)
            elif state is MAKING:
                try:
                    await law.signal(kept).wait()
                except BaseException:
                    law.leave(kept, use)
                    raise
            elif state is FAILED:
                if kept.why is not None:
                    raise kept.why
                kept = law.enter(use.key, use)
            else:
                if kept.users and use in kept.users:  # cut by the keeper's end
                    law.leave(kept, use)
                if state is not OVER:
                    await law.signal(kept).wait()
                kept = law.enter(use.key, use)

    def _begin_make(self, kept: Kept) -> None:
        law = self.law
        law.begin(kept)
        try:
            made = self._make(kept.key)
        except Exception as error:
            law.failed(kept, error)
            return
        except BaseException:  # of this caller's alone: who else waits makes it anew
            kept.why = ABANDONED
            law.failed(kept, None)
            raise
        if isinstance(made, Coroutine):
            self._makes[kept] = self._world.spawn(self._await_make, kept, made)
        else:
            law.made(kept, made)

    async def _await_make(self, kept: Kept, making: Awaitable[Any]) -> None:
        try:
            thing = await making
        except Exception as error:
            if not kept.users:
                self._settings.went_wrong("the cancelled make", kept.key, error)
            self.law.failed(kept, error)
        except BaseException:
            self.law.failed(kept, None)
            raise
        else:
            self.law.made(kept, thing)
        finally:
            self._makes.pop(kept, None)

    def _give_up(self, kept: Kept) -> None:
        if kept in self._makes:
            self._makes[kept].cancel()

    def touch(self, key: Key) -> bool:
        """Note activity of *key* without a use. False: nothing is kept for it."""
        return self.law.touch(key)

    # ---- ends ------------------------------------------------------------------------
    async def end(self, key: Key) -> bool:
        """End what is kept for *key*, with the reason `ended`, and return when its end
        has run.

        What is in use is ended when the last one leaves it; until then nobody is let in
        any more. If the caller's own task uses it, this returns at once: it would wait
        for itself. A caller who is cancelled takes nothing back.

        Returns:
            True if it was kept; False if nothing was, or it was being ended already:
            that end is waited for, too.
        """
        law = self.law
        kept = law.dismiss(key)
        ending = law.ending(key) if kept is None else kept
        if ending is not None:
            task = self._world.task()
            if not any(use.task is task for use in ending.users or ()):
                await law.signal(ending).wait()
        return kept is not None

    def _see_to_work(self) -> None:
        if self._workers < self._turns:
            self._workers += 1
            worker: list[Task] = []
            worker.append(self._world.spawn(self._work, worker))

    async def _work(self, worker: list[Task]) -> None:
        """Ask and end what is due, one by one, until there is nothing left."""
        rests = time.monotonic() + AT_A_TIME
        try:
            while (found := self.law.next_work()) is not None:
                kept, question = found
                if question is None:
                    await self._run_end(kept, worker[0])
                else:
                    await self._run_ask(kept, question)
                if time.monotonic() > rests:  # functions that are no coroutines held the loop
                    await self.reaper.sleep(0)
                    rests = time.monotonic() + AT_A_TIME
        finally:
            self._workers -= 1

    async def _run_ask(self, kept: Kept, question: Any) -> None:
        may_end = False
        try:
            answer: Any = self._ask(kept.key, kept.thing)  # type: ignore[misc]
            may_end = bool(await answer if isinstance(answer, Coroutine) else answer)
        except Exception as error:
            self.law.went_wrong()
            self._settings.went_wrong("ask", kept.key, error)
        finally:
            self.law.answered(kept, question, may_end)

    async def _run_end(self, kept: Kept, worker: Task) -> None:
        began = time.monotonic()
        wrong = False
        self._running[kept] = worker
        try:
            ended: Any = self._end(kept.key, kept.thing, kept.why)
            if isinstance(ended, Coroutine):
                await ended
        except Exception as error:
            wrong = True
            self._settings.went_wrong("end", kept.key, error)
        finally:
            del self._running[kept]
            self.law.over(kept, time.monotonic() - began, error=wrong)

    async def close(self) -> None:
        """Let nobody in, end what is idle, wait for what is in use, and end that too,
        all within three times `drain`.
        """
        law, world, drain = self.law, self._world, self._settings.drain
        try:
            for _ in law.close():
                await self.reaper.sleep(0)
            await world.within(drain, law.idle_now)
        finally:
            for kept in law.cut():
                self._give_up(kept)
            await world.within(drain, law.all_over)
            if not law.all_over.is_set():
                await self._hurry()
            left = law.statistics().ending
            if left:
                names = ", ".join(str(kept) for kept in list(self._running)[:NAMED])
                self._settings.say_what_is_left(left, names)
            await world.settle()

    async def _hurry(self) -> None:
        """Ends have run for too long: cancel those, and give each of the others its own
        turn, so that nothing is left whose end was never begun.
        """
        self._turns += LAST_TURNS
        for task in list(self._running.values()):
            task.cancel()
        for _ in range(self.law.waiting):
            self._see_to_work()
        await self._world.within(self._settings.drain, self.law.all_over)

    # ---- looking in ------------------------------------------------------------------
    def __len__(self) -> int:
        """How many things are kept: made, and not being ended."""
        return len(self.law)

    def __contains__(self, key: object) -> bool:
        return key in self.law

    def keys(self) -> list[Key]:
        """The keys of what is kept, in the order in which they were first asked for: a
        new list.
        """
        return self.law.keys()

    def oldest(self, n: int) -> list[Key]:
        """Up to *n* keys, longest idle first; none that is in use.

        Cost: as `IdleReaper.oldest`.
        Raises:
            InvalidArgument: n is no integer >= 0.
        """
        check_count("n", n, 0)
        return self.law.oldest(n)

    def explain(self, key: Key) -> Explanation:
        """Why what is kept for *key* is still here, and until when. O(1).

        Raises:
            UnknownUid: nothing is kept for it.
        """
        return self.law.explain(key)

    def statistics(self) -> KeeperStatistics:
        """A snapshot; O(1)."""
        return self.law.statistics()

    def families(self) -> list[Family]:
        """The metrics of a keeper, beside those of its `reaper`: for `ReaperCollector`
        and `exposition`.
        """
        return list(families(self.statistics()))


class Use(Generic[Key, Thing]):
    """One use of a thing: enter it once."""

    __slots__ = ("_keeper", "_kept", "key", "task")

    def __init__(self, keeper: Keeper[Key, Thing], key: Key) -> None:
        self._keeper = keeper
        self._kept: Kept | None = None
        self.key: Key = key
        self.task: object = None

    async def __aenter__(self) -> Thing:
        if self.task is not None:
            raise RuntimeError(f"this use of {self.key!r} was entered before: ask for another one")
        keeper = self._keeper
        self.task = keeper._world.task()
        kept = keeper.law.enter(self.key, self)
        if kept.state is not KEPT:
            kept = await keeper._let_in(kept, self)
        self._kept = kept
        thing: Thing = kept.thing
        return thing

    async def __aexit__(self, *error: object) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            self._keeper.law.leave(kept, self)
