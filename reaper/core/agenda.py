"""Agenda: where slots wait for the instant at which they are due. *What is due is never
behind what is due later, and no step of it is long.*

A slot goes this way:

    the open epoch --it ends--> unfiled --file--> near: a heap of (due, slot)
                                             or   far: a hierarchical timing wheel, in
                                                  whole ticks
    far --its tick, a whole span before it is due--> near --due--> `take_due`

What is due within `span` ticks is near. The wheel counts ticks and rounds; the heap
does not. Because a slot leaves the wheel long before it is due, the wheel's coarser
time never delays a close.

A slot costs many times what a lease does that moves with others, and with a timeout of
its own each lease has a slot. So work is counted in steps, and a call takes at most as
many as it is given. What is left is carried over to the next call, and `behind` says
so:

    slots of ended epochs are left     any of them may be due: nothing is taken
    slots are left in the wheel        they come down a span before they are due: what
                                       is due before the first of them is taken
                                       meanwhile
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from .lease import MOST_KEYS, OPEN, Epoch, IdleSlot, Key, Lease, Never, Row, drop
from .sweep import STEPS_PER_SLOT, sweep
from .ticks import seconds_to_tick
from .wheel import TimingWheel

STEPS_PER_CALL = 4096
"""Steps of work that one `close_epoch`, or one `expire` with a limit, may take beside
what it reaps: a lease that is moved is one, and a slot that is put where it waits, or
looked at, `STEPS_PER_SLOT`. About 1 ms.
"""

ALL = float("inf")
"""More steps than there can be: stands for no bound."""

MOST_EXACT = 32
"""Keys that an epoch may have before `crowded` is called. A server has a key for each
of its limits and phases, less than these.
"""

SLOTS_PER_CALL = STEPS_PER_CALL // STEPS_PER_SLOT
"""Slots that one call at most puts where they wait, or drops because they are empty."""


class Due(NamedTuple):
    """Leases that fell silent in one epoch, with one timeout and one reason."""

    epoch: Epoch
    key: Key
    leases: list[Lease]


class Agenda:
    """The slots of one core, in the order in which they come due.

    Args:
        tick: Seconds a tick of the wheel.
        span: Ticks before its due instant at which a slot is near, and slots a level of
            the wheel.
        crowded: Called once, when an epoch has come to have `MOST_EXACT` keys.
    """

    __slots__ = (
        "_crowded", "_most_keys", "_order", "behind", "ended", "far", "moved", "near", "now",
        "origin", "postponed", "slots", "span", "tick", "unfiled",
    )  # fmt: skip

    def __init__(self, tick: float, span: int, crowded: Callable[[], object]) -> None:
        self.tick: float = tick
        self.span: int = span
        self.now: float = 0.0  # as of which slots are near
        self.origin: float = 0.0  # the wheel counts ticks since then
        self._crowded: Callable[[], object] | None = crowded
        self._most_keys: int = MOST_EXACT
        # Every slot but those of suspended leases and of postponed limits, in order of
        # creation.
        self.slots: Row = Row()
        # Limits that the final check spared lie in this one's slots until the open
        # epoch is closed. There is another one then.
        self.postponed: Epoch = Epoch(OPEN, -1)
        # Those made in the open epoch, or since it was closed, and not put where they
        # wait yet; of which the first `ended` were made in epochs that have ended.
        self.unfiled: deque[IdleSlot] = deque()
        self.ended: int = 0
        self.behind: bool = False  # the last call that caught up has left work
        self.moved: int = 0  # leases that were found in a due slot and had spoken, so far
        self.near: list[tuple[float, int, IdleSlot]] = []  # (due, order of scheduling, slot)
        self._order = count()
        self.far: TimingWheel[IdleSlot] = TimingWheel(tick=1, wheel_size=span)

    def slot_of(self, epoch: Epoch, key: Key) -> IdleSlot:
        """The slot of *epoch* and *key*; it is made where there is none."""
        slot = epoch.slots.get(key)
        if slot is not None:
            return slot
        if len(epoch.slots) >= self._most_keys:
            self._relieve(epoch)
        slot = epoch.slots[key] = IdleSlot(epoch, key)
        if type(epoch) is Never:
            epoch.row.add(slot)
            return slot
        if epoch is not self.postponed:
            self.slots.add(slot)
        if epoch.closed == OPEN:
            self.unfiled.append(slot)
        else:
            self._schedule(slot)
        return slot

    def _relieve(self, epoch: Epoch) -> None:
        """*epoch* has come to have many keys."""
        crowded, self._crowded, self._most_keys = self._crowded, None, MOST_KEYS
        if crowded is not None:
            crowded()
        if len(epoch.slots) >= MOST_KEYS:
            epoch.slots = {}
            epoch.forgot = True

    def epoch_ended(self, now: float) -> None:
        """Note that the open epoch was closed at *now*."""
        self.now = now
        self.ended = len(self.unfiled)
        if self.postponed.slots:
            self.postponed = Epoch(OPEN, -1)

    def _schedule(self, slot: IdleSlot) -> None:
        """Put *slot*, whose epoch is closed, where it waits for its due instant;
        nowhere if it has no timeout.
        """
        if slot.key[0] is None:
            return
        due = slot.due
        lowered = self._lowered_at(due)
        if lowered <= seconds_to_tick(self.now, self.origin, self.tick):
            heappush(self.near, (due, next(self._order), slot))
        else:
            slot.timer = self.far.schedule(lowered, slot)

    def _lowered_at(self, due: float) -> int:
        """The tick at which a slot that is due then leaves the wheel: a whole span
        before, so the wheel's coarser time never delays a reap.
        """
        return seconds_to_tick(due, self.origin, self.tick) - self.span

    def catch_up(self, now: float, steps: float) -> float:
        """Put the slots of ended epochs where they wait, and bring those down out of
        the wheel that are near as of *now*. Returns what is left of *steps*.
        """
        self.now = now
        if self.ended:
            steps = self._file(steps)
        self.behind = self.ended > 0
        far = self.far
        if not len(far):
            return steps
        tick = seconds_to_tick(now, self.origin, self.tick)
        if steps == ALL:
            timers, left = far.advance(tick), 1
        elif steps >= STEPS_PER_SLOT:
            most = int(steps) // STEPS_PER_SLOT
            timers, left = far.advance(tick, most), far.left
            steps -= (most - left) * STEPS_PER_SLOT
        else:
            timers, left = [], 0
        for timer in timers:
            slot = timer.item
            slot.timer = None
            heappush(self.near, (slot.due, next(self._order), slot))
        if left <= 0:
            start = far.next_expiry()
            self.behind = self.behind or (start is not None and start <= tick)
        return steps

    def _file(self, steps: float) -> float:
        """Put slots of ended epochs where they wait; returns as `catch_up`."""
        while self.ended and steps > 0:
            slot = self.unfiled[0]
            steps -= STEPS_PER_SLOT
            if slot.epoch.serial >= 0:
                if slot.chunks:
                    self._schedule(slot)
                elif slot.before is not None:  # not dropped when its last lease left
                    drop(slot)
            else:  # limits that were postponed: from here on they are due again
                steps = sweep(slot, self.slot_of, None, steps)[2]
                if slot.chunks:
                    continue
                slot.epoch.slots.pop(slot.key, None)
            self.unfiled.popleft()
            self.ended -= 1
        return steps

    def next_due(self) -> float | None:
        """The earliest instant in the heap, less than one at which something is due
        while there are many empty slots before it. None: nothing is near.
        """
        near = self.near
        for _ in range(SLOTS_PER_CALL):
            if not near or near[0][2].chunks:
                break
            drop(heappop(near)[2])
        return near[0][0] if near else None

    def take_due(self, now: float, limit: int | None, steps: float) -> list[Due]:
        """Take out the silent leases of what is due at *now*, earliest first, and move
        on those that were touched.

        Args:
            limit: Most leases to take; None for all.
            steps: Stop once so many steps are spent.
        Returns:
            The leases taken, which lie in no slot any more.
        """
        taken: list[Due] = []
        near, room = self.near, limit
        # What is left in the wheel may be due, but not before this tick.
        start = self.far.next_expiry() if self.behind else None
        while near and near[0][0] <= now and steps > 0 and not self.ended:
            if start is not None and self._lowered_at(near[0][0]) >= start:
                break
            entry = heappop(near)
            slot = entry[2]
            steps -= STEPS_PER_SLOT
            silent, moved, steps = sweep(slot, self.slot_of, room, steps)
            self.moved += moved
            if silent:
                taken.append(Due(slot.epoch, slot.key, silent))
            if slot.chunks:
                heappush(near, entry)
            else:
                drop(slot)
            if room is not None:
                room -= len(silent)
                if room == 0:
                    break
        return taken

    def emptied(self, slot: IdleSlot) -> None:
        """The last lease has left *slot* by itself: take it out where nothing else
        soon would.
        """
        if slot.timer is not None:
            # Near, an empty slot may wait for its turn: that is soon. In the wheel it
            # could be a month.
            slot.timer.cancel()
            slot.timer = None
            drop(slot)
        elif slot.key[0] is None and slot.epoch.closed != OPEN:
            drop(slot)  # nothing else would: it waits nowhere
