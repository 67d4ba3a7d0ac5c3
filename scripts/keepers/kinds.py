"""Five keepers such as projects write them, for asyncio. They are written by us, after
fifty that were read: what each does wrong is its docstring.

The rule of this module: *no kind is made worse than it is found*. Each has the door of
`reaper.asyncio.open_keeper`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

Make = Callable[[Any], Awaitable[Any]]
End = Callable[[Any, Any], Awaitable[Any]]


class Kind:
    """What the five have in common: things by key, and a task that scans them."""

    def __init__(self, make: Make, end: End, idle: float, tick: float) -> None:
        self.make, self.end, self.idle, self.tick = make, end, idle, tick
        self.things: dict[Any, Any] = {}
        self.last: dict[Any, float] = {}
        self.lock = asyncio.Lock()

    def now(self) -> float:
        """The clock that it looks at."""
        return asyncio.get_running_loop().time()

    async def get(self, key: Any) -> Any:
        """The thing of *key*, made if there is none."""
        async with self.lock:
            if key not in self.things:
                self.things[key] = await self.make(key)
            self.last[key] = self.now()
            return self.things[key]

    def release(self, key: Any) -> None:
        """The caller has done with *key*."""

    async def scan(self) -> None:
        """Close what has been idle for too long."""
        raise NotImplementedError

    async def close(self, key: Any) -> None:
        """Close one."""
        self.last.pop(key, None)
        with suppress(KeyError):
            await self.end(key, self.things.pop(key))

    async def run(self) -> None:
        """The task of the keeper."""
        while True:
            await asyncio.sleep(self.tick)
            await self.scan()

    @asynccontextmanager
    async def use(self, key: Any) -> AsyncIterator[Any]:
        """Get and release."""
        thing = await self.get(key)
        try:
            yield thing
        finally:
            self.release(key)

    @classmethod
    @asynccontextmanager
    async def open(cls, make: Make, end: End, *, idle: float, tick: float) -> AsyncIterator[Any]:
        """The keeper, for the length of a block."""
        keeper = cls(make, end, idle, tick)
        task = asyncio.create_task(keeper.run())
        try:
            yield keeper
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task
            for key in list(keeper.things):
                with suppress(Exception):
                    await keeper.close(key)


class Stamp(Kind):
    """Stamps the wall clock when a thing is handed out, and never asks whether it is in
    use.
    """

    def now(self) -> float:
        """The wall clock, which an administrator, NTP or a resume may move."""
        return time.time()

    async def scan(self) -> None:
        """Close one after another."""
        for key, last in list(self.last.items()):
            if self.now() - last > self.idle:
                with suppress(Exception):
                    await self.close(key)


class BothEnds(Stamp):
    """Stamps it when a call ends, too; a call longer than the timeout is cut all the
    same. It closes under the lock that every caller needs.
    """

    def release(self, key: Any) -> None:
        """Stamp it, if it is still there."""
        if key in self.last:
            self.last[key] = self.now()

    async def scan(self) -> None:
        """Close one after another, while all callers wait."""
        async with self.lock:
            await super().scan()


class Timers(Kind):
    """Has a timer for each thing, made anew whenever it is handed out; what is in use
    longer than that is cut.
    """

    def __init__(self, make: Make, end: End, idle: float, tick: float) -> None:
        super().__init__(make, end, idle, tick)
        self.timers: dict[Any, asyncio.TimerHandle] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    async def get(self, key: Any) -> Any:
        """Get, and begin anew."""
        thing = await super().get(key)
        if key in self.timers:
            self.timers[key].cancel()
        loop = asyncio.get_running_loop()
        self.timers[key] = loop.call_later(self.idle, self.fire, key)
        return thing

    def fire(self, key: Any) -> None:
        """The timer of *key* has rung."""
        task = asyncio.ensure_future(self.close(key))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def scan(self) -> None:
        """Nothing: it has timers."""


class Dies(Kind):
    """Counts who uses a thing, but the first `end` that raises ends its task: from then
    on nothing is closed. And what is being closed can still be found.
    """

    def __init__(self, make: Make, end: End, idle: float, tick: float) -> None:
        super().__init__(make, end, idle, tick)
        self.users: dict[Any, int] = {}

    async def get(self, key: Any) -> Any:
        """Get and count."""
        thing = await super().get(key)
        self.users[key] = self.users.get(key, 0) + 1
        return thing

    def release(self, key: Any) -> None:
        """Count and stamp."""
        self.users[key] -= 1
        self.last[key] = self.now()

    async def scan(self) -> None:
        """Close what nobody uses, one after another."""
        for key, last in list(self.last.items()):
            if not self.users.get(key) and self.now() - last > self.idle and key in self.things:
                await self.end(key, self.things[key])
                self.things.pop(key, None)
                self.last.pop(key, None)


class Careful(Dies):
    """Counts, looks again, logs what raises. It closes one after another, under the
    lock that every caller needs.
    """

    async def scan(self) -> None:
        """Close what nobody uses, one after another, while all callers wait."""
        async with self.lock:
            for key, last in list(self.last.items()):
                if not self.users.get(key) and self.now() - last > self.idle:
                    with suppress(Exception):
                        await self.close(key)


KINDS: dict[str, type[Kind]] = {
    "stamps when it is handed out": Stamp,
    "stamps at both ends, closes under the lock": BothEnds,
    "a timer for each": Timers,
    "counts, and its task dies": Dies,
    "counts, closes under the lock": Careful,
}
"""By what is characteristic of each."""
