"""IdleRing: the single-layer ring, in its smallest complete form.

One timeout for all, time in whole ticks, two structures:

    slots   a ring of timeout_ticks + 1 lists: where a uid physically lies
    index   uid -> tick of its last touch: where it *should* lie

A touch changes only the index. When a slot comes due, a uid whose index has moved on is
moved on, and the rest has expired; so a uid moves at most once per timeout, however
often it is touched.

Why one slot more than the timeout: a touch in tick e may have come at the very end of
e. With n slots it would be reaped up to one tick early; with n + 1 it is reaped zero to
one tick late, never early.

`reaper.core.reaper.IdleReaper` is this idea with real instants, any number of timeouts,
and a handle to touch by.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from ..errors import ClockWentBackwards, InvalidArgument, InvariantViolated, shown
from .ticks import check_count

MOST_TICKS = 1 << 24
"""Each of them is a list: 16 million take a gigabyte."""

_GONE = None  # index of a uid that was discarded but still lies in its slot


class IdleRing:
    """Tracks uids that must be touched at least once every *timeout_ticks* ticks.

    Not thread-safe. `len(ring)` and `uid in ring` count what is tracked now.

    Args:
        timeout_ticks: Whole ticks of silence allowed, 1 to `MOST_TICKS`.
        start: The current tick at the beginning.
    Raises:
        InvalidArgument: timeout_ticks is no such integer, or start is not an integer.
    Timing: a uid last touched in tick e is returned by the first `advance(tick)` with
    tick > e + timeout_ticks.
    """

    __slots__ = ("_index", "_len", "_slots", "tick", "timeout_ticks")

    def __init__(self, timeout_ticks: int = 30, start: int = 0) -> None:
        self.timeout_ticks: int = check_count("timeout_ticks", timeout_ticks, 1, MOST_TICKS)
        self.tick: int = _check_tick("start", start)
        self._slots: list[list[Any]] = [[] for _ in range(timeout_ticks + 1)]
        self._index: dict[Any, int | None] = {}
        self._len = 0

    def __len__(self) -> int:
        return self._len

    def __repr__(self) -> str:
        return f"<IdleRing timeout_ticks={self.timeout_ticks} tick={self.tick} uids={self._len}>"

    def __contains__(self, uid: Hashable) -> bool:
        return self._index.get(uid, _GONE) is not _GONE

    def add(self, uid: Hashable) -> bool:
        """Track *uid*, touched in the current tick. True if it is new; one already
        there is touched: False. O(1).
        """
        new = uid not in self
        # A discarded uid still lies in its slot: it must not get a second place.
        if uid not in self._index:
            self._slots[self.tick % len(self._slots)].append(uid)
        self._index[uid] = self.tick
        self._len += new
        return new

    def touch(self, uid: Hashable) -> bool:
        """Note activity of *uid* in the current tick. False if it is unknown, discarded
        or expired. O(1), no move.
        """
        index = self._index
        if index.get(uid, _GONE) is _GONE:
            return False
        index[uid] = self.tick
        return True

    def discard(self, uid: Hashable) -> bool:
        """Stop tracking *uid*. False if it was not tracked. O(1).

        The ring keeps a reference to it until its slot comes round, at most
        timeout_ticks + 1 ticks later.
        """
        if uid not in self:
            return False
        self._index[uid] = _GONE
        self._len -= 1
        return True

    def slot_of(self, uid: Hashable) -> int | None:
        """The slot, 0 to timeout_ticks, that *uid* belongs to by its last touch; None
        if it is not tracked. O(1).
        """
        tick = self._index.get(uid, _GONE)
        return None if tick is _GONE else tick % len(self._slots)

    def advance(self, tick: int) -> list[Any]:
        """Move the clock to *tick* and hand back what has expired; it is no longer
        tracked.

        Args:
            tick: The new current tick; any jump forward. The same tick again does
                nothing.
        Returns:
            A new list of uids, longest silent first, ties in the order they came into
            their slot; may be empty.
        Raises:
            InvalidArgument: tick is not an integer. State unchanged.
            ClockWentBackwards: tick is less than the current one. State unchanged.
        Cost: O(expired + moved + min(ticks passed, timeout_ticks)).
        """
        _check_tick("tick", tick)
        if tick < self.tick:
            raise ClockWentBackwards(f"tick must not decrease: got {tick} after {self.tick}")
        slots, index = self._slots, self._index
        size = len(slots)
        expired: list[Any] = []
        # The slots hold touches of the ticks self.tick - timeout_ticks to self.tick;
        # due are those before tick - timeout_ticks. Oldest first: a uid that has moved
        # on lands in a slot that this loop reaches later, or not at all.
        for touched in range(
            self.tick - self.timeout_ticks, min(tick - self.timeout_ticks, self.tick + 1)
        ):
            due, slots[touched % size] = slots[touched % size], []
            for uid in due:
                last = index.get(uid, _GONE)
                if last is _GONE:
                    index.pop(uid, None)  # it may have gone before, if its hash has changed
                elif last == touched:
                    del index[uid]
                    expired.append(uid)
                else:
                    slots[last % size].append(uid)
        self._len -= len(expired)
        self.tick = tick
        return expired

    def check(self) -> None:
        """Verify every invariant, O(n).

        Raises:
            InvariantViolated: the first one that does not hold.
        """
        lying = [uid for slot in self._slots for uid in slot]
        if len(lying) != len(set(lying)) or set(lying) != set(self._index):
            raise InvariantViolated("a uid lies in two slots, or in none")
        if self._len != sum(tick is not _GONE for tick in self._index.values()):
            raise InvariantViolated(f"len is {self._len}, index disagrees")
        for tick in self._index.values():
            if tick is not _GONE and not self.tick - self.timeout_ticks <= tick <= self.tick:
                raise InvariantViolated(
                    f"a uid last touched in tick {tick} outlived its timeout at {self.tick}"
                )


def _check_tick(name: str, value: int) -> int:
    if type(value) is not int:
        raise InvalidArgument(f"{name} must be an integer number of ticks, got {shown(value)}")
    return value
