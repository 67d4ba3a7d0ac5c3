"""The timers of event loops: asyncio's, uvloop's, trio's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ..common import loop_only
from .peer import Peer


class AsyncioTimer(Peer):
    """asyncio: a timer per connection, cancelled and set again at each packet. As aiohttp, hypercorn and others do."""

    name, how = "asyncio call_later + cancel", "cancels the timer, sets another"
    largest = steady_largest = 1_000_000

    class Protocol:
        __slots__ = ("handle", "key")
        handle: Any

        def __init__(self, key: str) -> None:
            self.key = key

    def __init__(self, keys: Sequence[str], timeout: float) -> None:
        super().__init__(keys, timeout)
        self.expired: list[Any] = []
        self.now = 0.0
        self.loop = self.make_loop()

    def make_loop(self) -> asyncio.AbstractEventLoop:
        """asyncio's own, on virtual time."""
        loop = asyncio.SelectorEventLoop()
        loop.time = lambda: self.now  # type: ignore[method-assign]
        return loop

    def register(self, count: int, now: float) -> None:
        self.now = now
        self.protocols = [self.Protocol(key) for key in self.keys[:count]]
        for protocol in self.protocols:
            protocol.handle = self.loop.call_later(self.timeout, self.expired.append, protocol.key)

    def handles(self, order: Sequence[int]) -> list[Any]:
        return [self.protocols[i] for i in order]

    def touch_all(self, handles: list[Any], now: float) -> None:
        self.now = now
        later, timeout, expire = self.loop.call_later, self.timeout, self.expired.append
        for protocol in handles:
            protocol.handle.cancel()
            protocol.handle = later(timeout, expire, protocol.key)

    def tick(self, now: float) -> list[Any]:
        self.now = now
        # The first pass may only move due timers to the ready queue; what they do comes before the second stop.
        for _ in range(2):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()
        expired = self.expired[:]
        self.expired.clear()
        return expired

    def release(self, handles: list[Any]) -> None:
        for protocol in handles:
            protocol.handle.cancel()

    def close(self) -> None:
        self.loop.close()


class UvloopTimer(AsyncioTimer):
    """uvloop: the same on libuv's heap, in C, and on the real clock only."""

    name, how = "uvloop call_later + cancel", "cancels the timer, sets another"
    real = True
    steady_largest = 0

    def make_loop(self) -> asyncio.AbstractEventLoop:
        import uvloop

        loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        return loop


class TrioScope(Peer):
    """trio: a task per connection in a cancel scope whose deadline each packet sets anew."""

    name, how = "trio scope, deadline set anew", "`scope.deadline = now + timeout`"
    largest, steady_largest = 100_000, 0

    def __init__(self, keys: Sequence[str], timeout: float) -> None:
        super().__init__(keys, timeout)
        from .trio_thread import TrioThread

        self.expired: list[Any] = []
        self.thread = TrioThread()

    def register(self, count: int, now: float) -> None:
        self.scopes: list[Any] = [None] * count
        self.thread.spawn(self.connection, range(count), now)

    async def connection(self, number: int) -> None:
        """One connection's task."""
        import trio

        with trio.move_on_after(self.timeout) as scope:
            self.scopes[number] = scope
            await trio.sleep_forever()
        if self.scopes[number] is not None:
            self.expired.append(self.keys[number])

    def handles(self, order: Sequence[int]) -> list[Any]:
        return [self.scopes[i] for i in order]

    def touch_all(self, handles: list[Any], now: float) -> None:
        self.thread.call(self._touch_all, handles, now)

    def _touch_all(self, handles: list[Any], now: float) -> None:
        due = now + self.timeout
        for scope in handles:
            scope.deadline = due

    def baseline(self, handles: list[Any]) -> None:
        self.thread.call(loop_only, handles)

    def tick(self, now: float) -> list[Any]:
        self.thread.tick(now)
        expired = self.expired[:]
        self.expired.clear()
        return expired

    def release(self, handles: list[Any]) -> None:
        for number, scope in enumerate(self.scopes):
            if scope in handles:
                self.scopes[number] = None
        self.thread.call(lambda: [scope.cancel() for scope in handles])

    def close(self) -> None:
        self.scopes = [None] * len(self.scopes)
        self.thread.close()


class TrioMoveOn(TrioScope):
    """trio: `with move_on_after(...)` around each read, net of waking the same task without it."""

    name, how = "trio move_on_after per read", "leaves one cancel scope, enters another"
    largest = 10_000

    def register(self, count: int, now: float) -> None:
        super().register(count, now)
        self.tasks: list[Any] = [None] * count
        self.bare: list[Any] = [None] * count
        self.thread.spawn(self.reader, range(count), now)
        self.thread.spawn(self.bare_reader, range(count), now)

    async def connection(self, number: int) -> None:
        """Not used here: the two readers are."""

    async def reader(self, number: int) -> None:
        """Reads, with a time limit on each read."""
        import trio

        self.tasks[number] = trio.lowlevel.current_task()
        while True:
            with trio.move_on_after(self.timeout) as scope:
                await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.SUCCEEDED)
            if scope.cancelled_caught:
                self.expired.append(self.keys[number])
                return

    async def bare_reader(self, number: int) -> None:
        """Reads for ever."""
        import trio

        self.bare[number] = trio.lowlevel.current_task()
        while True:
            await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.SUCCEEDED)

    def handles(self, order: Sequence[int]) -> list[Any]:
        return [(self.tasks[i], self.bare[i]) for i in order]

    def touch_all(self, handles: list[Any], now: float) -> None:
        self.now = now
        self.thread.wake([task for task, _ in handles], now)

    def baseline(self, handles: list[Any]) -> None:
        self.thread.wake([task for _, task in handles], self.now)

    def release(self, handles: list[Any]) -> None:
        raise NotImplementedError("a read that ends by itself is a touch")
