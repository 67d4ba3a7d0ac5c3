"""The floors below every touch, and ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import reaper

from .peer import Peer


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
