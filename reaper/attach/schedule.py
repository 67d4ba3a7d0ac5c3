"""When which row is looked at next: slots of rows in the hierarchical wheel, ten per tick.

One rule: *rounded up, once*. A row lies in the first slot that does not begin before its instant, so it is never looked
at too soon, and less than a tenth of a tick late.

One timer per slot, not per connection: a row costs its slot five bytes. A row that was removed, or armed anew, stays
where it lies; it then has another generation, and is dropped when the slot comes due.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable

from ..core.ticks import check_timeout, deadline_to_tick, ms_to_seconds, seconds_to_ms_deadline, seconds_to_ms_now
from ..core.wheel import TimingWheel

SLOTS_PER_TICK = 10
FURTHEST = 30 * 86400.0
"""Seconds; what is due later is looked at then, and armed again."""


class _Slot:
    __slots__ = ("generations", "rows")

    def __init__(self) -> None:
        self.rows: array[int] = array("I")
        self.generations = bytearray()


class Schedule:
    """Rows by the instant of their next look. Instants are seconds on the caller's monotonic clock.

    Args:
        tick: Seconds, > 0: the precision.
        now: The first instant.
    """

    def __init__(self, tick: float, now: float) -> None:
        self._grid = max(1, seconds_to_ms_now(check_timeout("tick", tick)) // SLOTS_PER_TICK)
        self._wheel: TimingWheel[int] = TimingWheel(self._grid, 64, seconds_to_ms_now(now))
        self._slots: dict[int, _Slot] = {}

    def arm(self, row: int, generation: int, at: float) -> None:
        """Have *row* handed out at *at*, unless it has another *generation* by then. O(1)."""
        at = min(at, ms_to_seconds(self._wheel.now) + FURTHEST)
        number = max(deadline_to_tick(seconds_to_ms_deadline(at), self._grid), self._wheel.now // self._grid + 1)
        slot = self._slots.get(number)
        if slot is None:
            self._slots[number] = slot = _Slot()
            self._wheel.schedule(number * self._grid, number)
        slot.rows.append(row)
        slot.generations.append(generation)

    def due(self, now: float, alive: Callable[[int, int], bool]) -> list[int]:
        """The rows whose instant has come, in order; without those of which *alive* (row, generation) is False."""
        found: list[int] = []
        for timer in self._wheel.advance(max(seconds_to_ms_now(now), self._wheel.now)):
            slot = self._slots.pop(timer.item)
            found += [row for row, gen in zip(slot.rows, slot.generations, strict=True) if alive(row, gen)]
        return found

    def soonest(self, count: int, alive: Callable[[int, int], bool]) -> list[int]:
        """The first *count* rows by their instants, which stay. Cost: O(slots), some hundreds."""
        found: list[int] = []
        for number in sorted(self._slots):
            slot = self._slots[number]
            found += [row for row, gen in zip(slot.rows, slot.generations, strict=True) if alive(row, gen)]
            if len(found) >= count:
                break
        return found[:count]

    def next_wakeup(self) -> float | None:
        """When `due` next has something to do; None: nothing is armed."""
        at = self._wheel.next_expiry()
        return None if at is None else ms_to_seconds(at)
