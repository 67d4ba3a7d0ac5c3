"""Structures that are quickly built: heaps, sorted lists, an ordered dict, scans."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy
import sortedcontainers  # type: ignore[import-untyped]

from .ours import DictStore
from .peer import Peer


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
    """heapq with one entry per connection: a touch stores, the entry is pushed again when it comes up."""

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
