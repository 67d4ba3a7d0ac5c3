"""When which connection is looked at next: slots in the hierarchical wheel, ten per tick.

One rule: *rounded up, once*. A row lies in the first slot that does not begin before its instant, so it is never looked
at too soon, and less than a tenth of a tick late.

One timer per slot, not per connection. A row knows the number of its slot; one that was removed, or armed anew, knows
another, and is dropped when the slot comes due.
"""

from __future__ import annotations

from ..core.ticks import check_timeout, deadline_to_tick, ms_to_seconds, seconds_to_ms_deadline, seconds_to_ms_now
from ..core.wheel import TimingWheel
from .judge import Memory

SLOTS_PER_TICK = 10
FURTHEST = 30 * 86400.0
"""Seconds; what is due later is looked at then, and armed again."""


class Row:
    """One watched connection."""

    __slots__ = ("ident", "inode", "known", "mark", "slot", "told")

    def __init__(self, ident: bytes, inode: int, known: Memory, mark: int) -> None:
        self.ident: bytes = ident
        self.inode: int = inode
        self.known: Memory = known
        self.mark: int = mark
        """The dump that showed it last."""
        self.slot: int = 0
        """Where it waits for its next look; below 1: nowhere in the schedule."""
        self.told: int = 0
        """Flags of the watch."""


class Schedule:
    """Rows by the instant of their next look. Instants are seconds on the caller's monotonic clock.

    Args:
        tick: Seconds, > 0: the precision.
        now: The first instant.
    """

    def __init__(self, tick: float, now: float) -> None:
        self._grid = max(1, seconds_to_ms_now(check_timeout("tick", tick)) // SLOTS_PER_TICK)
        self._wheel: TimingWheel[int] = TimingWheel(self._grid, 64, seconds_to_ms_now(now))
        self._slots: dict[int, list[Row]] = {}

    def arm(self, row: Row, at: float) -> None:
        """Have *row* handed out at *at*, unless it is armed anew or put elsewhere before. O(1)."""
        at = min(at, ms_to_seconds(self._wheel.now) + FURTHEST)
        number = max(deadline_to_tick(seconds_to_ms_deadline(at), self._grid), self._wheel.now // self._grid + 1)
        slot = self._slots.get(number)
        if slot is None:
            self._slots[number] = slot = []
            self._wheel.schedule(number * self._grid, number)
        row.slot = number
        slot.append(row)

    def due(self, now: float) -> list[Row]:
        """The rows whose instant has come, in order."""
        found: list[Row] = []
        for timer in self._wheel.advance(max(seconds_to_ms_now(now), self._wheel.now)):
            found += self._of(timer.item, self._slots.pop(timer.item))
        return found

    def soonest(self, count: int) -> list[Row]:
        """The first *count* rows by their instants, which stay. Cost: O(slots), some hundreds."""
        found: list[Row] = []
        for number in sorted(self._slots):
            found += self._of(number, self._slots[number])
            if len(found) >= count:
                break
        return found[:count]

    def next_wakeup(self) -> float | None:
        """When `due` next has something to do; None: nothing is armed."""
        at = self._wheel.next_expiry()
        return None if at is None else ms_to_seconds(at)

    @staticmethod
    def _of(number: int, slot: list[Row]) -> list[Row]:
        return [row for row in slot if row.slot == number]
