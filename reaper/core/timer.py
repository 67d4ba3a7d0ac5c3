"""One scheduled thing, and what any queue of such things promises.

One rule: *a dead timer stays dead*. A timer waits until it is handed out by `advance` or cancelled, whichever comes
first; after that nothing brings it back, so the holder of the handle may call anything on it at any moment.

`TimerQueue` and `TimerEntry` are the contract that `reaper.testing.check_timer_queue` tests; `TimingWheel` and `Timer`
are the implementation this library uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from ..errors import InvalidArgument, shown

if TYPE_CHECKING:
    from .wheel import TimingWheel

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class TimerEntry(Protocol[T_co]):
    """The handle `TimerQueue.schedule` returns. `Timer` says what each member means."""

    @property
    def deadline(self) -> int: ...
    @property
    def item(self) -> T_co: ...
    @property
    def cancelled(self) -> bool: ...
    def cancel(self) -> bool: ...
    def reschedule(self, deadline: int) -> bool: ...


class TimerQueue(Protocol[T]):
    """A facility that keeps timers and hands them out when due. `TimingWheel` says what each member means.

    Instants are integers in one unit; a queue has a tick, a whole number of those units. A timer is due once the clock,
    rounded down to the tick, has reached its deadline, rounded up to the tick: never early, less than one tick late.
    """

    def schedule(self, deadline: int, item: T) -> TimerEntry[T]: ...
    def advance(self, now: int) -> Sequence[TimerEntry[T]]: ...
    def next_expiry(self) -> int | None: ...
    def __len__(self) -> int: ...


class Timer(Generic[T]):
    """A timer of one `TimingWheel`: waiting, then either expired (`advance` returned it) or cancelled, for good.

    Made by `TimingWheel.schedule` only. `item` is whatever was scheduled; the timer never looks at it.
    """

    __slots__ = ("_chunk", "_deadline", "_order", "_pos", "item")

    _chunk: Any  # where it lies, an affair of reaper.slots; None once expired or cancelled
    _pos: int  # its place in the chunk; -1 once cancelled
    item: T

    def __init__(self, deadline: int, item: T, order: int) -> None:
        self._deadline = deadline
        self._order = order
        self.item = item

    @property
    def deadline(self) -> int:
        """The absolute instant it is due, in the wheel's unit, as last scheduled; due when deadline <= now."""
        return self._deadline

    @property
    def cancelled(self) -> bool:
        """True once `cancel` has returned True; an expired timer is not cancelled."""
        return self._pos < 0

    def cancel(self) -> bool:
        """Take the timer out of its wheel, which forgets it at once: `len` is one less and nothing refers to it.

        Returns:
            True if this call ended it; False if it was already expired or cancelled. A timer that `advance` has
            returned is expired, also while the caller still works through that list.

        Cost: O(1) amortised, whatever the number of timers; see benchmarks/heart/timers.py.
        """
        if self._chunk is None:
            return False
        wheel: TimingWheel[T] = self._chunk.slot.wheel
        wheel._forget(self)
        self._pos = -1
        return True

    def reschedule(self, deadline: int) -> bool:
        """Move the timer to *deadline*, as if cancelled and scheduled anew: it queues behind equal deadlines.

        Returns:
            True if it now waits for *deadline*; False, with nothing changed, if it was already expired or cancelled.

        Raises:
            InvalidArgument: *deadline* is not an int. State unchanged.

        Cost: O(1) amortised, plus the number of levels.
        """
        if type(deadline) is not int:
            raise InvalidArgument(f"deadline must be an int in the wheel's unit, got {shown(deadline)}")
        if self._chunk is None:
            return False
        wheel: TimingWheel[T] = self._chunk.slot.wheel
        wheel._move(self, deadline)
        return True

    def __repr__(self) -> str:
        state = "waiting" if self._chunk is not None else "cancelled" if self.cancelled else "expired"
        return f"<Timer deadline={self._deadline} {state} item={self.item!r}>"
