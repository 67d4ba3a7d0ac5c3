"""The obvious timer queue, right by inspection: the yardstick in tests and benchmarks,
so it does nothing clever.
"""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

from ..errors import ClockWentBackwards

T = TypeVar("T")


class HeapTimerQueue(Generic[T]):
    """The obvious `TimerQueue`: a heap whose dead entries are skipped when they come
    up. Exact to the unit, no ticks.

    O(log n) to schedule, O(1) to cancel; a dead entry keeps its memory until it comes
    up.
    """

    def __init__(self, start: int = 0) -> None:
        self._now = start
        self._heap: list[tuple[int, int, HeapTimer[T]]] = []
        self._live = 0
        self._scheduled = 0

    def __len__(self) -> int:
        return self._live

    def schedule(self, deadline: int, item: T) -> HeapTimer[T]:
        """As `TimingWheel.schedule`."""
        timer = HeapTimer(self, deadline, item)
        self._push(timer)
        return timer

    def advance(self, now: int) -> list[HeapTimer[T]]:
        """As `TimingWheel.advance`."""
        if now < self._now:
            raise ClockWentBackwards(
                f"now must not precede {self._now}, the queue's clock, got {now}"
            )
        self._now = now
        expired = []
        while self._heap and self._heap[0][0] <= now:
            _, order, timer = heapq.heappop(self._heap)
            if order == timer._order:
                timer._order = 0
                self._live -= 1
                expired.append(timer)
        return expired

    def next_expiry(self) -> int | None:
        """As `TimingWheel.next_expiry`."""
        while self._heap:
            deadline, order, timer = self._heap[0]
            if order == timer._order:
                return max(deadline, self._now)
            heapq.heappop(self._heap)
        return None

    def _push(self, timer: HeapTimer[T]) -> None:
        self._live += 1
        self._scheduled = timer._order = self._scheduled + 1
        heapq.heappush(self._heap, (timer.deadline, timer._order, timer))


class HeapTimer(Generic[T]):
    """The handle of a `HeapTimerQueue`: as `Timer`."""

    __slots__ = ("_order", "_queue", "cancelled", "deadline", "item")

    def __init__(self, queue: HeapTimerQueue[T], deadline: int, item: T) -> None:
        self._queue = queue
        self._order = 0  # that of its valid heap entry; 0 once dead
        self.deadline: int = deadline
        self.item: T = item
        self.cancelled: bool = False

    def cancel(self) -> bool:
        """As `Timer.cancel`."""
        if not self._order:
            return False
        self._order = 0
        self._queue._live -= 1
        self.cancelled = True
        return True

    def reschedule(self, deadline: int) -> bool:
        """As `Timer.reschedule`."""
        if not self._order:
            return False
        self._queue._live -= 1
        self.deadline = deadline
        self._queue._push(self)
        return True
