"""The hierarchical timing wheel: timers by deadline, O(1) to schedule and cancel, no
empty tick ever visited.

*Inside, everything is counted in whole ticks*: a deadline is rounded up once, on the
way in, and `now` down, so no level can fire early and the levels need no rounding of
their own.

Level 1 has one slot per tick. A slot of level n+1 is as long as the whole of level n,
so the levels reach exponentially far; levels are made when a deadline first needs them.
A timer lies in the finest level that reaches it. When the clock arrives at the start of
a slot above level 1, its timers cascade: each moves down to the level that now fits it.
A heap holds the start of every slot that is in use; it says when there is work, and a
clock that jumps visits only those slots.

Not thread-safe: one event loop, or a lock around it.

Source: Varghese & Lauck 1987, scheme 7 (hierarchical wheels); the heap of slots in use
has the role of the delay queue in Apache Kafka's SystemTimer. Ours: deadlines round up,
results have an order, `next_expiry` is exact, a cancel frees at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from operator import attrgetter
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from ..errors import ClockWentBackwards, InvalidArgument, InvariantViolated, shown
from .slots import CHUNK, Slot, remove, tidy
from .ticks import check_count, check_limit, deadline_to_tick, now_to_tick

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_by_order = attrgetter("_order")
_by_deadline = attrgetter("_deadline")


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
    """What keeps timers and hands them out when due; `reaper.testing.check_timer_queue`
    tests it. `TimingWheel` says what each member means.

    Instants are integers in one unit; a queue has a tick, a whole number of those
    units. A timer is due once the clock, rounded down to the tick, has reached its
    deadline, rounded up to the tick: never early, less than one tick late.
    """

    def schedule(self, deadline: int, item: T) -> TimerEntry[T]: ...
    def advance(self, now: int) -> Sequence[TimerEntry[T]]: ...
    def next_expiry(self) -> int | None: ...
    def __len__(self) -> int: ...


class Level(NamedTuple):
    """What `TimingWheel.levels` says of one level; every field in the wheel's unit
    except `wheel_size`.
    """

    tick: int
    """Length of one slot."""
    wheel_size: int
    """Number of slots."""
    interval: int
    """Length of all slots together, which is the tick of the next level."""
    current_time: int
    """The wheel's clock rounded down to this level's tick."""


class Timer(Generic[T]):
    """A timer of one `TimingWheel`: waiting, then either expired (`advance` returned
    it) or cancelled, for good.

    A dead timer stays dead: you may call anything on it at any moment. Made by
    `TimingWheel.schedule`.
    """

    __slots__ = ("_chunk", "_deadline", "_order", "_pos", "item")

    _chunk: Any  # where it lies, an affair of reaper.slots; None once expired or cancelled
    _pos: int  # its place in the chunk; -1 once cancelled
    _deadline: int
    _order: int
    item: T

    @property
    def deadline(self) -> int:
        """The absolute instant it is due, in the wheel's unit, as last scheduled; due
        when deadline <= now.
        """
        return self._deadline

    @property
    def cancelled(self) -> bool:
        """True once `cancel` has returned True; an expired timer is not cancelled."""
        return self._pos < 0

    def cancel(self) -> bool:
        """Take the timer out of its wheel, which forgets it at once: `len` is one less
        and nothing refers to it.

        Returns:
            True if this call ended it; False if it was already expired or cancelled. A
            timer that `advance` has returned is expired, also while the caller still
            works through that list.
        Cost: O(1) amortised, whatever the number of timers; see
        benchmarks/heart/timers.py.
        """
        if self._chunk is None:
            return False
        self._chunk.slot.wheel._live -= 1
        remove(self)
        self._pos = -1
        return True

    def reschedule(self, deadline: int) -> bool:
        """Move the timer to *deadline*, as if cancelled and scheduled anew: it queues
        behind equal deadlines.

        Returns:
            True if it now waits for *deadline*; False, with nothing changed, if it was
            already expired or cancelled.
        Raises:
            InvalidArgument: *deadline* is not an int. State unchanged.
        Cost: O(1) amortised, plus the number of levels.
        """
        if type(deadline) is not int:
            raise InvalidArgument(
                f"deadline must be an int in the wheel's unit, got {shown(deadline)}"
            )
        if self._chunk is None:
            return False
        chunk = self._chunk
        wheel: TimingWheel[T] = chunk.slot.wheel
        # `slots.remove`, written out.
        chunk.items[self._pos] = None
        chunk.dead = dead = chunk.dead + 1
        if dead + dead > len(chunk.items):
            tidy(chunk)
        wheel._scheduled = self._order = wheel._scheduled + 1
        self._deadline = deadline
        if deadline > wheel._now:
            wheel._place(self)
        else:
            wheel._due_at_once.add(self)
        return True

    def __repr__(self) -> str:
        state = (
            "waiting" if self._chunk is not None else "cancelled" if self.cancelled else "expired"
        )
        return f"<Timer deadline={self._deadline} {state} item={self.item!r}>"


class TimingWheel(Generic[T]):
    """A queue of timers on an integer clock that the caller moves.

    Args:
        tick: Length of a level-1 slot in the caller's unit (ns, ms, ticks, ...), >= 1.
        wheel_size: Slots in each level, >= 2: one number, or one for each level from
            the finest up, and the last serves all further levels too. `tick=1,
            wheel_size=(60, 60, 12)` in seconds is the face of a clock.
        start: The first instant of the clock, >= 0.
    Raises:
        InvalidArgument: one of them is anything else.
    Timing: a timer is handed out by the first `advance` whose *now* has reached its
    deadline
    rounded up to the tick: never early, and less than one tick late plus the time until
    that call. One whose deadline was not after the clock when it was scheduled is due
    at once: the next `advance` returns it.
    """

    def __init__(self, tick: int = 1, wheel_size: int | Sequence[int] = 64, start: int = 0) -> None:
        self._tick = check_count("tick", tick, 1)
        self._sizes = _check_sizes(wheel_size)
        self._now = check_count("start", start, 0)
        self._now_ticks = now_to_tick(start, tick)
        self._round_up = tick - 1
        self._levels = [_Level(0, 1, self._sizes[0], tick)]
        self._fitted = self._now  # the instant for which each level knows how far it reaches
        self._due_at_once = _WheelSlot(self, -1, 0)
        self._fit(self._levels)
        self._behind = False  # an `advance` with a limit has left work
        self.left: int = _ALL  # of the limit of the last `advance`; for the core
        self._heap: list[tuple[int, int, _WheelSlot]] = []
        self._live = 0
        self._scheduled = 0

    def __len__(self) -> int:
        """Timers that wait: neither cancelled nor handed out. Exact at all times.
        O(1).
        """
        return self._live

    def __repr__(self) -> str:
        return (
            f"<TimingWheel now={self._now} tick={self._tick} levels={len(self._levels)} "
            f"waiting={self._live}>"
        )

    @property
    def now(self) -> int:
        """The clock: the *now* of the last `advance`, or `start`."""
        return self._now

    @property
    def levels(self) -> tuple[Level, ...]:
        """The levels made so far, the finest first; there is always at least one."""
        return tuple(
            Level(
                tick=level.span * self._tick,
                wheel_size=level.size,
                interval=level.span * level.size * self._tick,
                current_time=self._now_ticks // level.span * level.span * self._tick,
            )
            for level in self._levels
        )

    def schedule(self, deadline: int, item: T) -> Timer[T]:
        """Let *item* be handed out when the clock reaches *deadline*.

        Args:
            deadline: An absolute instant in the wheel's unit, as far ahead as you like;
                due at once if not after `now`.
            item: Anything; it is not looked at.
        Returns:
            The new timer, to cancel or reschedule it.
        Raises:
            InvalidArgument: *deadline* is not an int. State unchanged.
        Cost: O(1) plus the number of levels; O(log slots) for a slot's first timer. See
        benchmarks/heart/timers.py.
        """
        if type(deadline) is not int:
            raise InvalidArgument(
                f"deadline must be an int in the wheel's unit, got {shown(deadline)}"
            )
        timer: Timer[T] = Timer()
        timer._deadline = deadline
        timer.item = item
        self._scheduled = timer._order = self._scheduled + 1
        if deadline > self._now:
            self._place(timer)
        else:
            self._due_at_once.add(timer)
        self._live += 1
        return timer

    def advance(self, now: int, limit: int | None = None) -> list[Timer[T]]:
        """Move the clock to *now*, over any distance, and hand out what is due.

        Args:
            now: An instant in the wheel's unit, not before the clock; the same instant
                again is fine.
            limit: Stop once so many timers were handed out or moved down. The next
                call goes on, and
                until nothing is left `next_expiry` is not after the clock. None: hand
                out all that is due. That cannot be bounded: each timer of a slot that
                is reached has to be asked whether it is due.
        Returns:
            A new list, earliest deadline first, ties in the order they were scheduled;
            often empty. Its timers have expired; the wheel may be changed at will while
            the caller works through it. With a limit, what the next call returns may be
            due earlier than what this one does, but not before the instant that
            `next_expiry` names.
        Raises:
            ClockWentBackwards: *now* precedes the clock. State unchanged.
            InvalidArgument: *now* is not an int, or *limit* is neither None nor an int
                >= 1. State unchanged.
        Cost: O(returned + moved down + slots passed that were in use); nothing due is
        one comparison.
        """
        if type(now) is not int:
            raise InvalidArgument(f"now must be an int in the wheel's unit, got {shown(now)}")
        if now < self._now:
            raise ClockWentBackwards(
                f"now must not precede {self._now}, the wheel's clock, got {now}"
            )
        check_limit(limit)
        self._now = now
        self._now_ticks = now_ticks = now_to_tick(now, self._tick)
        heap = self._heap
        left = _ALL if limit is None else limit
        expired: list[Timer[T]] = self._due_at_once.take(left) if self._due_at_once.chunks else []
        left -= len(expired)
        # The clock already stands at its new place, so a cascade files each timer where
        # it belongs now, in one move. No timer is filed into a slot that the clock has
        # reached: what a limit leaves in one only becomes less.
        while heap and heap[0][0] <= now_ticks and left > 0:
            slot = heap[0][2]
            timers = slot.take(left)
            left -= len(timers) or 1
            if not slot.chunks:
                self._pop()
            if slot.level == 0:
                expired += timers
                continue
            for timer in timers:
                due = deadline_to_tick(timer._deadline, self._tick)
                if due <= now_ticks:
                    expired.append(timer)
                else:
                    self._place(timer)
        self.left = left
        self._behind = left <= 0 and bool(heap) and heap[0][0] <= now_ticks
        if expired:
            self._live -= len(expired)
            # Two stable sorts on ints, mostly sorted already, make no million tuples
            # for the collector to walk.
            expired.sort(key=_by_order)
            expired.sort(key=_by_deadline)
        return expired

    def next_expiry(self) -> int | None:
        """The instant at which `advance` next has work to do: an expiry or a cascade.
        None when no timer waits.

        In the wheel's unit; the clock itself when something is due at once, otherwise
        after the clock. Exact: an `advance` to anything before it returns nothing and
        moves nothing, and cancelled timers wake nothing. Where an `advance` with a
        limit has left work it is not after the clock, and nothing that waits in a slot
        is due before it.

        Cost: O(1) amortised; O(log slots) for each slot that was emptied by cancels
        since the last call.
        """
        while self._heap and not self._heap[0][2].chunks:
            self._pop()
        start = self._heap[0][0] * self._tick if self._heap else None
        if self._due_at_once.chunks:
            return self._now if start is None else min(start, self._now)
        return start

    def locate(self, timer: Timer[T]) -> tuple[int, int] | None:
        """Where *timer* lies: (level, slot), levels from 1, the finest, slots from 0 to
        its size - 1.

        None when it lies in no slot: due at once, expired, cancelled, or a timer of
        another wheel. O(1).
        """
        slot = timer._chunk.slot if timer._chunk is not None else None
        if not isinstance(slot, _WheelSlot) or slot.wheel is not self or slot.level < 0:
            return None
        return slot.level + 1, slot.number % self._levels[slot.level].size

    def check(self) -> None:
        """Verify every invariant, O(timers); for tests.

        Raises:
            InvariantViolated: the first one that does not hold.
        """
        slots = [(level, slot) for level in self._levels for slot in level.slots.values()]
        if sorted((start, -index) for start, index, _ in self._heap) != sorted(
            (slot.number * level.span, -slot.level) for level, slot in slots
        ):
            raise InvariantViolated("the heap and the slots in use are not the same")
        self._due_at_once.check()
        for timer in self._due_at_once:
            if timer._deadline > self._now:
                raise InvariantViolated(f"{timer!r} counts as due at once, at {self._now}")
        for level, slot in slots:
            slot.check()
            first = self._now_ticks // level.span + 1
            is_left = self._behind and slot.number * level.span <= self._now_ticks
            if not is_left and not first <= slot.number < first + level.size - 1:
                raise InvariantViolated(
                    f"slot {slot.number} of level {slot.level + 1} does not fit at {self._now}"
                )
            for timer in slot:
                if deadline_to_tick(timer._deadline, self._tick) // level.span != slot.number:
                    raise InvariantViolated(
                        f"{timer!r} lies in slot {slot.number} of level {slot.level + 1}"
                    )
        live = len(self._due_at_once) + sum(len(slot) for _, slot in slots)
        if live != self._live:
            raise InvariantViolated(f"the wheel counts {self._live} timers, holds {live}")

    def _place(self, timer: Timer[T]) -> None:
        """Put *timer*, which lies nowhere and is due after the clock, into the finest
        level that reaches it. All is written out: it is nearly the whole cost of a
        timer.
        """
        if self._fitted is not self._now:
            self._fit(self._levels)
        # Rounded up to the tick. Divided by the length of a slot it is the slot's
        # number: to divide by the tick and then by the ticks of a slot comes to the
        # same.
        due = timer._deadline + self._round_up
        for level in self._levels:
            if due < level.until:
                break
        else:
            level = self._reach(due)
        number = due // level.length
        slot = level.slots.get(number)
        if slot is None:
            level.slots[number] = slot = _WheelSlot(self, level.index, number)
            heappush(self._heap, (number * level.span, level.index, slot))
        chunks = slot.chunks
        chunk = chunks[-1] if chunks else slot.room()
        items = chunk.items
        timer._pos = position = len(items)
        if position >= CHUNK:
            chunk = slot.room()
            items = chunk.items
            timer._pos = 0
        timer._chunk = chunk
        items.append(timer)

    def _fit(self, levels: Sequence[_Level]) -> None:
        """Note how far each of *levels* reaches from where the clock stands now.

        A level sees the clock rounded down to its own tick: seen from the exact
        clock, a deadline just short of one revolution would share the slot the clock
        stands in.
        """
        self._fitted = self._now
        for level in levels:
            level.until = (self._now_ticks // level.span + level.size) * level.length

    def _reach(self, due: int) -> _Level:
        """The new level that reaches *due*, which no other does."""
        while due >= self._levels[-1].until:
            below = self._levels[-1]
            index = below.index + 1
            size = self._sizes[min(index, len(self._sizes) - 1)]
            level = _Level(index, below.span * below.size, size, self._tick)
            self._levels.append(level)
            self._fit((level,))  # all of them for each new one would be a square
        return self._levels[-1]

    def _pop(self) -> _WheelSlot:
        """Put the slot with the earliest start out of use."""
        _, index, slot = heappop(self._heap)
        del self._levels[index].slots[slot.number]
        return slot


_ALL = 1 << 62
"""More timers than there can be: stands for no limit."""


class _Level:
    """One level. `slots` holds those in use, by number: the slot of ticks [number *
    span, (number + 1) * span).
    """

    __slots__ = ("index", "length", "size", "slots", "span", "until")

    def __init__(self, index: int, span: int, size: int, tick: int) -> None:
        self.index = index
        self.span = span  # ticks a slot
        self.length = span * tick  # the same in the wheel's unit
        self.size = size
        self.until = 0  # deadlines, rounded up, before this fit in: see `_fit`
        self.slots: dict[int, _WheelSlot] = {}


class _WheelSlot(Slot):
    """A slot that knows where it belongs. In use from its first timer until the clock,
    or `next_expiry`, passes it.
    """

    __slots__ = ("level", "number", "wheel")

    # Any wheel: a slot never looks at the items, and mypy would otherwise want the type
    # carried through `slots`.
    def __init__(self, wheel: TimingWheel[T], level: int, number: int) -> None:
        super().__init__()
        self.wheel = wheel
        self.level = level
        self.number = number


def _check_sizes(wheel_size: int | Sequence[int]) -> tuple[int, ...]:
    if isinstance(wheel_size, int):
        return (check_count("wheel_size", wheel_size, 2),)
    if not isinstance(wheel_size, Sequence) or not wheel_size:
        raise InvalidArgument(
            f"wheel_size must be an int >= 2 or one for each level, got {shown(wheel_size)}"
        )
    return tuple(
        check_count(f"wheel_size[{level}]", size, 2) for level, size in enumerate(wheel_size)
    )
