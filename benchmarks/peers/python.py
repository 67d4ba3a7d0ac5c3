"""What a touch and a tick are compared with: every other way to know which connection
has fallen silent.

*A peer that expires nothing is no peer*: tests/benchmarks/test_benchmarks.py holds each
to its task, to name the silent, all of them, and no other. The floors cannot: they note
activity alone. Where a peer needs the time of a touch it is given the loop's coarse
`now` for nothing; a clock read would cost it more.
"""

from __future__ import annotations

import asyncio
import heapq
import queue
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import trio
import trio.testing

import reaper

from ..common import loop_only


class Peer:
    """Connections by number: 0 to len(keys) - 1. Instants are seconds of virtual time.

    Args:
        keys: The name of each connection, as a server knows it.
        timeout: Seconds of silence allowed, the same for all.
    """

    name: ClassVar[str]
    largest: ClassVar[int] = 1_000_000
    """More connections than that it is not asked to hold: it would take minutes or
    gigabytes.
    """
    expires: ClassVar[bool] = True

    held: Sequence[Any]
    """What a server keeps of each connection, to touch it by: its key, unless
    `register` made something better.
    """

    def __init__(self, keys: Sequence[str], timeout: float) -> None:
        self.keys = self.held = keys
        self.timeout = timeout

    def register(self, count: int, now: float) -> None:
        """Watch connections 0 to *count* - 1 from *now* on."""
        raise NotImplementedError

    def handles(self, order: Sequence[int]) -> list[Any]:
        """What `touch_all` is given to touch these connections in this order."""
        return [self.held[i] for i in order]

    def touch_all(self, handles: list[Any], now: float) -> None:
        """Touch each once. What is timed."""
        raise NotImplementedError

    def baseline(self, handles: list[Any]) -> None:
        """What of `touch_all` is not the touch: taken off."""
        loop_only(handles)

    def tick(self, now: float) -> list[Any]:
        """Move to *now*; who has been silent for the timeout, as keys or numbers, in
        any order.
        """
        raise NotImplementedError

    def release(self, handles: list[Any]) -> None:
        """The connections end by themselves."""
        raise NotImplementedError

    def close(self) -> None:
        """Leave nothing behind."""


class EmptyCall(Peer):
    """The floor of anything that is called: a method that does nothing, on an object as
    wide as a lease.
    """

    name = "empty method call"
    expires = False

    class Thing:
        __slots__ = ("a", "b", "c", "d")

        def __init__(self) -> None:
            self.a = self.b = self.c = self.d = None

        def touch(self) -> None:
            pass

    def register(self, count: int, now: float) -> None:
        self.held = [self.Thing() for _ in range(count)]

    def touch_all(self, handles: list[Any], now: float) -> None:
        for thing in handles:
            thing.touch()


class EmptyAgain(EmptyCall):
    """The same once more: how far from 1.00 its ratio lies is how far any ratio here is
    to be trusted.
    """

    name = "empty method call, again (control)"

    class Thing(EmptyCall.Thing):
        __slots__ = ()

        def touch(self) -> None:
            pass

    def touch_all(
        self, handles: list[Any], now: float
    ) -> None:  # its own: code is specialised by what it has seen
        for thing in handles:
            thing.touch()


class DictStore(Peer):
    """The floor of anything that is touched by its key."""

    name = "bare dict store"
    expires = False

    def register(self, count: int, now: float) -> None:
        self.stamps: dict[str, float] = dict.fromkeys(self.keys[:count], now)

    def touch_all(self, handles: list[Any], now: float) -> None:
        stamps = self.stamps
        for key in handles:
            stamps[key] = now


# ---- ours


class LeaseTouch(Peer):
    """`reaper.IdleReaper`, touched by the lease."""

    name = "lease.touch()"

    def __init__(self, keys: Sequence[str], timeout: float) -> None:
        super().__init__(keys, timeout)
        self.core = reaper.IdleReaper(tick=1.0)

    def register(self, count: int, now: float) -> None:
        register, timeout = self.core.register, self.timeout
        self.held = [register(key, timeout, now) for key in self.keys[:count]]

    def touch_all(self, handles: list[Any], now: float) -> None:
        for lease in handles:
            lease.touch()

    def tick(self, now: float) -> list[Any]:
        return [expiry.uid for expiry in self.core.advance(now)]

    def release(self, handles: list[Any]) -> None:
        for lease in handles:
            lease.release()


class UidTouch(LeaseTouch):
    """`reaper.IdleReaper`, touched by the key."""

    name = "core.touch(uid)"

    def handles(self, order: Sequence[int]) -> list[Any]:
        return [self.keys[i] for i in order]

    def touch_all(self, handles: list[Any], now: float) -> None:
        core = self.core
        for key in handles:
            core.touch(key)

    def release(self, handles: list[Any]) -> None:
        for key in handles:
            self.core.discard(key)


class OwnTimeouts(LeaseTouch):
    """The same, where no two connections have the same timeout: they lie between
    *timeout* and a tenth more.
    """

    name = "lease.touch(), a timeout each"

    def register(self, count: int, now: float) -> None:
        # `core.register` is looked up each time: once there are many timeouts it is
        # another method, which rounds them.
        core, least = self.core, self.timeout
        self.held = [
            core.register(key, least + least * number / (10 * count), now)
            for number, key in enumerate(self.keys[:count])
        ]


# ---- others


class HeapRearmed(Peer):
    """heapq with one entry per connection: a touch stores, the entry is pushed again
    when it comes up.
    """

    name = "heapq, re-armed when it comes up"

    def register(self, count: int, now: float) -> None:
        due = now + self.timeout
        self.deadlines = dict.fromkeys(self.keys[:count], due)
        self.heap = [(due, key) for key in self.keys[:count]]
        heapq.heapify(self.heap)

    def touch_all(self, handles: list[Any], now: float) -> None:
        deadlines = self.deadlines
        due = now + self.timeout
        for key in handles:
            deadlines[key] = due

    def tick(self, now: float) -> list[Any]:
        deadlines, heap, expired = self.deadlines, self.heap, []
        while heap and heap[0][0] <= now:
            key = heap[0][1]
            due = deadlines.get(key)
            if due is not None and due > now:
                heapq.heapreplace(heap, (due, key))
                continue
            heapq.heappop(heap)
            if due is not None:
                del deadlines[key]
                expired.append(key)
        return expired

    def release(self, handles: list[Any]) -> None:
        for key in handles:
            self.deadlines.pop(key, None)


class Lru(Peer):
    """OrderedDict by last touch. With one timeout for all, the order of touches is the
    order of deadlines.
    """

    name = "OrderedDict, one timeout only"

    def register(self, count: int, now: float) -> None:
        self.stamps: OrderedDict[str, float] = OrderedDict.fromkeys(self.keys[:count], now)

    def touch_all(self, handles: list[Any], now: float) -> None:
        stamps, move = self.stamps, self.stamps.move_to_end
        for key in handles:
            stamps[key] = now
            move(key)

    def tick(self, now: float) -> list[Any]:
        stamps, expired = self.stamps, []
        limit = now - self.timeout
        while stamps:
            key = next(iter(stamps))
            if stamps[key] > limit:
                break
            del stamps[key]
            expired.append(key)
        return expired

    def release(self, handles: list[Any]) -> None:
        for key in handles:
            del self.stamps[key]


class AsyncioTimer(Peer):
    """asyncio: a timer per connection, cancelled and set again at each packet. As
    aiohttp, hypercorn and others do.
    """

    name = "asyncio call_later + cancel"

    class Protocol:
        __slots__ = ("handle", "key")
        handle: Any

        def __init__(self, key: str) -> None:
            self.key = key

    def __init__(self, keys: Sequence[str], timeout: float) -> None:
        super().__init__(keys, timeout)
        self.expired: list[Any] = []
        self.now = 0.0
        self.loop = asyncio.SelectorEventLoop()
        self.loop.time = lambda: self.now  # type: ignore[method-assign]

    def register(self, count: int, now: float) -> None:
        self.now = now
        self.held = [self.Protocol(key) for key in self.keys[:count]]
        for protocol in self.held:
            protocol.handle = self.loop.call_later(self.timeout, self.expired.append, protocol.key)

    def touch_all(self, handles: list[Any], now: float) -> None:
        self.now = now
        later, timeout, expire = self.loop.call_later, self.timeout, self.expired.append
        for protocol in handles:
            protocol.handle.cancel()
            protocol.handle = later(timeout, expire, protocol.key)

    def tick(self, now: float) -> list[Any]:
        self.now = now
        # The first pass may only move due timers to the ready queue; what they do comes
        # before the second stop.
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


class TrioThread:
    """A trio loop in a thread of its own, on a clock that is told the time: cancel
    scopes work inside a loop alone.

    While it works, the caller waits; `close` ends it.
    """

    def __init__(self) -> None:
        self._clock = trio.testing.MockClock()
        ready: queue.SimpleQueue[trio.lowlevel.TrioToken] = queue.SimpleQueue()
        self._thread = threading.Thread(
            target=trio.run, args=(self._main, ready.put), kwargs={"clock": self._clock}
        )
        self._thread.start()
        self._token = ready.get()

    async def _main(self, ready: Callable[[trio.lowlevel.TrioToken], None]) -> None:
        async with trio.open_nursery() as self._nursery:
            ready(trio.lowlevel.current_trio_token())
            await trio.sleep_forever()

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Run a plain function inside the loop."""
        trio.from_thread.run_sync(function, *args, trio_token=self._token)

    def move(self, now: float, spawn: Sequence[Callable[[], Awaitable[None]]] = ()) -> None:
        """Move the clock to *now*, start these tasks, and let everything that is due
        happen.
        """

        async def job() -> None:
            if now > self._clock.current_time():
                self._clock.jump(now - self._clock.current_time())
            for task in spawn:
                self._nursery.start_soon(task)
            for _ in range(4):
                await trio.lowlevel.checkpoint()

        trio.from_thread.run(job, trio_token=self._token)

    def close(self) -> None:
        self.call(self._nursery.cancel_scope.cancel)
        self._thread.join()


class TrioScope(Peer):
    """trio: a task per connection in a cancel scope whose deadline each packet sets
    anew.
    """

    name = "trio scope, deadline set anew"
    largest = 100_000

    def __init__(self, keys: Sequence[str], timeout: float) -> None:
        super().__init__(keys, timeout)
        self.expired: list[Any] = []
        self.thread = TrioThread()

    def register(self, count: int, now: float) -> None:
        self.held: list[Any] = [None] * count
        self.thread.move(now, [partial(self.connection, number) for number in range(count)])

    async def connection(self, number: int) -> None:
        """One connection's task."""
        with trio.move_on_after(self.timeout) as scope:
            self.held[number] = scope
            await trio.sleep_forever()
        if self.held[number] is not None:
            self.expired.append(self.keys[number])

    def touch_all(self, handles: list[Any], now: float) -> None:
        self.thread.call(self._touch_all, handles, now)

    def _touch_all(self, handles: list[Any], now: float) -> None:
        due = now + self.timeout
        for scope in handles:
            scope.deadline = due

    def baseline(self, handles: list[Any]) -> None:
        self.thread.call(loop_only, handles)

    def tick(self, now: float) -> list[Any]:
        self.thread.move(now)
        expired = self.expired[:]
        self.expired.clear()
        return expired

    def release(self, handles: list[Any]) -> None:
        for number, scope in enumerate(self.held):
            if scope in handles:
                self.held[number] = None
        self.thread.call(lambda: [scope.cancel() for scope in handles])

    def close(self) -> None:
        self.held = [None] * len(self.held)
        self.thread.close()


FLOORS: list[type[Peer]] = [EmptyCall, EmptyAgain, DictStore]
OURS: list[type[Peer]] = [LeaseTouch, UidTouch, OwnTimeouts]
THEIRS: list[type[Peer]] = [HeapRearmed, Lru, AsyncioTimer, TrioScope]
ALL: list[type[Peer]] = [*FLOORS, *OURS, *THEIRS]
