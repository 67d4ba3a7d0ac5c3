"""The peers: every way to know who has fallen silent, behind one interface.

One rule: *a peer that expires nobody is no peer*. Each is tried by tests/test_benchmarks.py: it must name the silent,
all of them, and nobody else. The floors say that they are none: they note activity and cannot expire.

Where a peer needs the time at a touch it is given the loop's coarse `now` for nothing; a clock read would cost it more.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import importlib.util
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy
import sortedcontainers  # type: ignore[import-untyped]

import reaper

from .common import loop_only


class Peer:
    """Connections by number: 0 to len(keys) - 1. Instants are seconds of virtual time unless `real`.

    Args:
        keys: The name of each connection, as a server knows it.
        timeout: Seconds of silence allowed, the same for all.
    """

    name: ClassVar[str]
    how: ClassVar[str]
    """What a touch does."""
    largest: ClassVar[int] = 1_000_000
    """More connections than that it is not asked to hold: it would take minutes or gigabytes."""
    steady_largest: ClassVar[int] = 1_000_000
    """The same for rounds of ticks under traffic."""
    expires: ClassVar[bool] = True
    real: ClassVar[bool] = False
    """It runs on the real clock and cannot be told another."""

    def __init__(self, keys: Sequence[str], timeout: float) -> None:
        self.keys = keys
        self.timeout = timeout

    def register(self, count: int, now: float) -> None:
        """Watch connections 0 to *count* - 1 from *now* on."""
        raise NotImplementedError

    def handles(self, order: Sequence[int]) -> list[Any]:
        """What `touch_all` is given to touch these connections in this order."""
        return [self.keys[i] for i in order]

    def touch_all(self, handles: list[Any], now: float) -> None:
        """Touch each once. What is timed."""
        raise NotImplementedError

    def baseline(self, handles: list[Any]) -> None:
        """What of `touch_all` is not the touch: taken off."""
        loop_only(handles)

    def tick(self, now: float) -> list[Any]:
        """Move to *now*; who has been silent for the timeout, as keys or numbers, in any order."""
        raise NotImplementedError

    def release(self, handles: list[Any]) -> None:
        """The connections end by themselves."""
        raise NotImplementedError

    def close(self) -> None:
        """Leave nothing behind."""


class EmptyCall(Peer):
    """The floor of anything that is called: a method that does nothing, on an object as wide as a lease."""

    name, how = "empty method call", "nothing"
    largest, expires = 10_000_000, False

    class Thing:
        __slots__ = ("a", "b", "c", "d")

        def __init__(self) -> None:
            self.a = self.b = self.c = self.d = None

        def touch(self) -> None:
            pass

    def register(self, count: int, now: float) -> None:
        self.things = [self.Thing() for _ in range(count)]

    def handles(self, order: Sequence[int]) -> list[Any]:
        return [self.things[i] for i in order]

    def touch_all(self, handles: list[Any], now: float) -> None:
        for thing in handles:
            thing.touch()


class EmptyAgain(EmptyCall):
    """The same once more: how far from 1.00 its ratio lies is how far any ratio here is to be trusted."""

    name = "empty method call, again (control)"

    class Thing(EmptyCall.Thing):
        __slots__ = ()

        def touch(self) -> None:
            pass

    def touch_all(self, handles: list[Any], now: float) -> None:  # its own: code is specialised by what it has seen
        for thing in handles:
            thing.touch()


class AttributeStore(EmptyCall):
    """The floor of anything that remembers: one store, written out in the caller's loop."""

    name, how = "bare attribute store", "`thing.stamp = now`, inline"

    def touch_all(self, handles: list[Any], now: float) -> None:
        for thing in handles:
            thing.a = now


class DictStore(Peer):
    """The floor of anything that is touched by its key."""

    name, how = "bare dict store", "`stamps[key] = now`, inline"
    largest, expires = 10_000_000, False

    def register(self, count: int, now: float) -> None:
        self.stamps: dict[str, float] = dict.fromkeys(self.keys[:count], now)

    def touch_all(self, handles: list[Any], now: float) -> None:
        stamps = self.stamps
        for key in handles:
            stamps[key] = now


# ---- ours ------------------------------------------------------------------------------------------------------------


class LeaseTouch(Peer):
    """`reaper.IdleReaper`, touched by the lease."""

    name, how = "lease.touch()", "stores the open epoch in the lease"
    largest = steady_largest = 10_000_000

    def __init__(self, keys: Sequence[str], timeout: float) -> None:
        super().__init__(keys, timeout)
        self.core = reaper.IdleReaper(tick=1.0)

    def register(self, count: int, now: float) -> None:
        register, timeout = self.core.register, self.timeout
        self.leases = [register(key, timeout, now) for key in self.keys[:count]]

    def handles(self, order: Sequence[int]) -> list[Any]:
        return [self.leases[i] for i in order]

    def touch_all(self, handles: list[Any], now: float) -> None:
        for lease in handles:
            lease.touch()

    def tick(self, now: float) -> list[Any]:
        return [expiry.uid for expiry in self.core.advance(now)]

    def release(self, handles: list[Any]) -> None:
        for lease in handles:
            lease.release()

    def retime(self, handles: list[Any], now: float) -> None:
        """Another timeout for each."""
        timeout = self.timeout + 1.0
        for lease in handles:
            lease.retime(timeout, now)


class UidTouch(LeaseTouch):
    """`reaper.IdleReaper`, touched by the key."""

    name, how = "core.touch(uid)", "looks the lease up, stores the open epoch in it"

    def handles(self, order: Sequence[int]) -> list[Any]:
        return [self.keys[i] for i in order]

    def touch_all(self, handles: list[Any], now: float) -> None:
        core = self.core
        for key in handles:
            core.touch(key)

    def release(self, handles: list[Any]) -> None:
        for key in handles:
            self.core.discard(key)


class RingTouch(Peer):
    """`reaper.IdleRing`: the idea in its smallest form, whole ticks, one timeout for all."""

    name, how = "IdleRing.touch(uid)", "looks the tick up, stores the current one"

    def __init__(self, keys: Sequence[str], timeout: float) -> None:
        super().__init__(keys, timeout)
        self.ring = reaper.IdleRing(timeout_ticks=int(timeout))

    def register(self, count: int, now: float) -> None:
        self.ring.advance(int(now))
        for key in self.keys[:count]:
            self.ring.add(key)

    def touch_all(self, handles: list[Any], now: float) -> None:
        ring = self.ring
        for key in handles:
            ring.touch(key)

    def tick(self, now: float) -> list[Any]:
        return self.ring.advance(int(now))

    def release(self, handles: list[Any]) -> None:
        for key in handles:
            self.ring.discard(key)


class DenseTouch(Peer):
    """`reaper.DenseReaper`: connections numbered by descriptor, one byte each."""

    name, how = "DenseReaper.touch(number)", "stores the open epoch's number in a byte"
    largest = steady_largest = 10_000_000

    def __init__(self, keys: Sequence[str], timeout: float) -> None:
        super().__init__(keys, timeout)
        self.core: Any = importlib.import_module("reaper.dense").DenseReaper(tick=1.0)

    def register(self, count: int, now: float) -> None:
        for number in range(count):
            self.core.register(number, self.timeout, now)

    def handles(self, order: Sequence[int]) -> list[Any]:
        return list(order)

    def touch_all(self, handles: list[Any], now: float) -> None:
        core = self.core
        for number in handles:
            core.touch(number)

    def tick(self, now: float) -> list[Any]:
        return [expiry.uid for expiry in self.core.advance(now)]

    def release(self, handles: list[Any]) -> None:
        for number in handles:
            self.core.discard(number)


# ---- structures anybody can build ------------------------------------------------------------------------------------


class HeapPerTouch(Peer):
    """heapq with lazy deletion: a touch pushes, what a later push has overtaken is skipped when it comes up."""

    name, how = "heapq, a push per touch", "pushes (deadline, key); stale entries wait in the heap"
    steady_largest = 100_000

    def register(self, count: int, now: float) -> None:
        due = now + self.timeout
        self.deadlines = dict.fromkeys(self.keys[:count], due)
        self.heap = [(due, key) for key in self.keys[:count]]
        heapq.heapify(self.heap)

    def touch_all(self, handles: list[Any], now: float) -> None:
        deadlines, heap, push = self.deadlines, self.heap, heapq.heappush
        due = now + self.timeout
        for key in handles:
            deadlines[key] = due
            push(heap, (due, key))

    def tick(self, now: float) -> list[Any]:
        deadlines, heap, expired = self.deadlines, self.heap, []
        while heap and heap[0][0] <= now:
            due, key = heapq.heappop(heap)
            if deadlines.get(key) == due:
                del deadlines[key]
                expired.append(key)
        return expired

    def release(self, handles: list[Any]) -> None:
        for key in handles:
            self.deadlines.pop(key, None)


class HeapRearmed(HeapPerTouch):
    """heapq with one entry a connection: a touch stores, the entry is pushed again when it comes up."""

    name, how = "heapq, re-armed when it comes up", "stores the deadline; the heap is not touched"
    steady_largest = 1_000_000

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


class Sorted(Peer):
    """sortedcontainers.SortedList of (deadline, key): a touch takes out and puts in again."""

    name, how = "SortedList by deadline", "removes (deadline, key), adds it with the new deadline"
    steady_largest = 100_000

    def register(self, count: int, now: float) -> None:
        due = now + self.timeout
        self.deadlines = dict.fromkeys(self.keys[:count], due)
        self.order = sortedcontainers.SortedList([(due, key) for key in self.keys[:count]])

    def touch_all(self, handles: list[Any], now: float) -> None:
        deadlines, order = self.deadlines, self.order
        due = now + self.timeout
        for key in handles:
            order.remove((deadlines[key], key))
            deadlines[key] = due
            order.add((due, key))

    def tick(self, now: float) -> list[Any]:
        expired = [key for _, key in self.order[: self.order.bisect_right((now, "\uffff"))]]
        del self.order[: len(expired)]
        for key in expired:
            del self.deadlines[key]
        return expired

    def release(self, handles: list[Any]) -> None:
        for key in handles:
            self.order.remove((self.deadlines.pop(key), key))


class Lru(Peer):
    """OrderedDict by last touch. With one timeout for all, the order of touches is the order of deadlines."""

    name, how = "OrderedDict, one timeout only", "stores, and `move_to_end`"

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


class DictScan(DictStore):
    """A dict of stamps, all of which every tick looks at."""

    name, how, expires = "dict, scanned every tick", "`stamps[key] = now`", True
    largest = 1_000_000

    def touch_all(self, handles: list[Any], now: float) -> None:
        stamps = self.stamps
        for key in handles:
            stamps[key] = now

    def tick(self, now: float) -> list[Any]:
        limit = now - self.timeout
        expired = [key for key, stamp in self.stamps.items() if stamp <= limit]
        for key in expired:
            del self.stamps[key]
        return expired

    def release(self, handles: list[Any]) -> None:
        for key in handles:
            del self.stamps[key]


class NumpyScan(Peer):
    """An array of stamps by number, all of which every tick compares at once. Needs small whole numbers as keys."""

    name, how = "numpy array, scanned every tick", "`stamps[number] = now`"

    def register(self, count: int, now: float) -> None:
        self.stamps = numpy.full(count, now)

    def handles(self, order: Sequence[int]) -> list[Any]:
        return list(order)

    def touch_all(self, handles: list[Any], now: float) -> None:
        stamps = self.stamps
        for number in handles:
            stamps[number] = now

    def tick(self, now: float) -> list[Any]:
        found = numpy.flatnonzero(self.stamps <= now - self.timeout)
        self.stamps[found] = numpy.inf
        expired: list[Any] = found.tolist()
        return expired

    def release(self, handles: list[Any]) -> None:
        for number in handles:
            self.stamps[number] = numpy.inf


# ---- the timers of event loops ---------------------------------------------------------------------------------------


class AsyncioTimer(Peer):
    """asyncio: a timer a connection, cancelled and set again at each packet. As aiohttp, hypercorn and others do."""

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
    """trio: a task a connection in a cancel scope whose deadline each packet sets anew."""

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


FLOORS: list[type[Peer]] = [EmptyCall, EmptyAgain, AttributeStore, DictStore]
OURS: list[type[Peer]] = [LeaseTouch, UidTouch, RingTouch]
with contextlib.suppress(ImportError):
    if hasattr(importlib.import_module("reaper.dense"), "DenseReaper"):
        OURS.append(DenseTouch)
THEIRS: list[type[Peer]] = [
    HeapPerTouch, HeapRearmed, Sorted, Lru, DictScan, NumpyScan, AsyncioTimer, UvloopTimer, TrioScope, TrioMoveOn,
]  # fmt: skip
ALL: list[type[Peer]] = [*FLOORS, *OURS, *THEIRS]
OUR_NAMES = frozenset(peer.name for peer in [LeaseTouch, UidTouch, RingTouch, DenseTouch])
CONTROLS = frozenset({EmptyAgain.name})

Act = Callable[[Peer], object]
