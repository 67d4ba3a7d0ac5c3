"""The conformance kit passes every sound queue and names the fault of every broken one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from reaper import Timer, TimingWheel
from reaper.core.wheel import TimerQueue
from reaper.testing import HeapTimer, HeapTimerQueue, ManualClock, NotConforming, check_timer_queue

WHEEL_SIZES: list[int | tuple[int, ...]] = [2, 3, 10, 20, 64, (60, 60, 12)]


@pytest.mark.slow
@pytest.mark.parametrize("wheel_size", WHEEL_SIZES)
def test_the_wheel_conforms(wheel_size: int | tuple[int, ...]) -> None:
    check_timer_queue(lambda tick, start: TimingWheel(tick=tick, wheel_size=wheel_size, start=start))


def test_the_class_itself_can_be_handed_to_the_kit() -> None:
    check_timer_queue(TimingWheel)


def test_the_obvious_heap_conforms_by_a_maker_with_or_without_arguments() -> None:
    check_timer_queue(HeapTimerQueue)
    check_timer_queue(lambda tick, start: HeapTimerQueue(start))


def test_a_maker_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(TypeError, match="make must take"):
        check_timer_queue(lambda wheel, tick: TimingWheel())


class KafkaRounding(TimingWheel[Any]):
    """Rounds deadlines down: early by up to tick - 1."""

    def schedule(self, deadline: int, item: Any) -> Timer[Any]:
        timer = super().schedule(deadline // self._tick * self._tick, item)
        timer._deadline = deadline
        return timer


class EarlyByOne(HeapTimerQueue[Any]):
    """Hands out one unit before the deadline that `next_expiry` names."""

    def schedule(self, deadline: int, item: Any) -> HeapTimer[Any]:
        timer = super().schedule(deadline - 1, item)
        timer.deadline = deadline
        return timer

    def next_expiry(self) -> int | None:
        return None if super().next_expiry() is None else max(self._heap[0][2].deadline, self._now)


class OneTickLate(TimingWheel[Any]):
    def schedule(self, deadline: int, item: Any) -> Timer[Any]:
        timer = super().schedule(deadline + (self._tick if deadline > self.now else 0), item)
        timer._deadline = deadline
        return timer


def shifting(name: str, shift: Callable[[int, int], int]) -> type[HeapTimerQueue[Any]]:
    """A queue that takes *shift* of a deadline and its clock for the deadline."""

    class Shifting(HeapTimerQueue[Any]):
        def schedule(self, deadline: int, item: Any) -> HeapTimer[Any]:
            timer = super().schedule(shift(deadline, self._now), item)
            timer.deadline = deadline
            return timer

    Shifting.__name__ = name
    return Shifting


def ordered(name: str, key: Callable[[HeapTimer[Any]], Any]) -> type[HeapTimerQueue[Any]]:
    """A queue that hands out in the order of *key*."""

    class Ordered(HeapTimerQueue[Any]):
        def advance(self, now: int) -> list[HeapTimer[Any]]:
            return sorted(super().advance(now), key=key)

    Ordered.__name__ = name
    return Ordered


class TwiceHandedOut(HeapTimerQueue[Any]):
    def advance(self, now: int) -> list[HeapTimer[Any]]:
        batch = super().advance(now)
        return batch + batch[-1:] if len(batch) > 2 else batch


class CancelTooLate(HeapTimerQueue[Any]):
    """Hands a cancelled timer out if it was in the batch's tick."""

    def advance(self, now: int) -> list[HeapTimer[Any]]:
        cancelled = [t for deadline, _, t in self._heap if t.cancelled and deadline <= now]
        return super().advance(now) + cancelled


class CountDrifts(HeapTimerQueue[Any]):
    """Counts a reschedule as one more."""

    def __len__(self) -> int:
        return super().__len__() + (len(self._heap) > self._live + 5)


class ForgetsToWake(HeapTimerQueue[Any]):
    def next_expiry(self) -> int | None:
        upcoming = super().next_expiry()
        return None if upcoming is None else upcoming + 2_000


class WakesForTheCancelled(HeapTimerQueue[Any]):
    def next_expiry(self) -> int | None:
        return max(self._heap[0][0], self._now) if self._heap else None


class WakesAtEveryUnit(HeapTimerQueue[Any]):
    def next_expiry(self) -> int | None:
        upcoming = super().next_expiry()
        return None if upcoming is None else min(upcoming, self._now + 1)


class LaggingClock(HeapTimerQueue[Any]):
    """Believes that time stands still while nothing expires, and measures a deadline from there."""

    def __init__(self, start: int = 0) -> None:
        super().__init__(start)
        self._last = start

    def schedule(self, deadline: int, item: Any) -> HeapTimer[Any]:
        idle = self._now - self._last
        timer = super().schedule(deadline + idle if idle > 100_000 else deadline, item)
        timer.deadline = deadline
        return timer

    def advance(self, now: int) -> list[HeapTimer[Any]]:
        batch = super().advance(now)
        if batch:
            self._last = now
        return batch


class GoesBackwards(HeapTimerQueue[Any]):
    def advance(self, now: int) -> list[HeapTimer[Any]]:
        return super().advance(max(now, self._now))


class Resurrecting(HeapTimerQueue[Any]):
    def schedule(self, deadline: int, item: Any) -> HeapTimer[Any]:
        timer = ResurrectingTimer(self, deadline, item)
        self._push(timer)
        return timer


class ResurrectingTimer(HeapTimer[Any]):
    __slots__ = ()

    def reschedule(self, deadline: int) -> bool:
        if not self._order:
            self.cancelled = False
            self._queue._live += 1
            self._order = 1
        return super().reschedule(deadline)


BROKEN: list[tuple[Callable[..., TimerQueue[Any]], str]] = [
    (KafkaRounding, "tick 7.*next_expiry"),
    (EarlyByOne, "is not early|just before next_expiry"),
    (OneTickLate, "next_expiry"),
    (
        shifting("LosesExactRevolutions", lambda at, now: at + 10**18 * (at > now and (at - now) % 512 == 0)),
        "exact revolutions.*next_expiry",
    ),
    # a hashed wheel that forgets to count the rounds
    (shifting("EarlyByATurn", lambda at, now: at - 64 * (at >= now + 64)), "early|next_expiry"),
    (ordered("TiesBackwards", lambda timer: (timer.deadline, -timer.item)), "schedule order|order over"),
    (ordered("NoOrder", lambda timer: timer.item), "deadline order"),
    (TwiceHandedOut, "handed out once"),
    (CancelTooLate, "while it waits"),
    (CountDrifts, "len"),
    (ForgetsToWake, "next_expiry"),
    (WakesForTheCancelled, "next_expiry"),
    (WakesAtEveryUnit, "within .* steps"),
    (LaggingClock, "short|late|next_expiry"),
    (GoesBackwards, "raises"),
    (shifting("NothingIsDueAtOnce", lambda at, now: max(at, now + 1)), "next_expiry|late"),
    (Resurrecting, "reschedule"),
    (shifting("ShortOfTheHorizon", lambda at, now: min(at, 2**60)), "deadline order"),
]


@pytest.mark.parametrize(("make", "says"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
def test_the_kit_catches(make: Callable[..., TimerQueue[Any]], says: str) -> None:
    with pytest.raises(NotConforming, match=says) as caught:
        check_timer_queue(make)
    assert "Last steps: " in str(caught.value)


def test_a_manual_clock_stands_until_it_is_moved_forward() -> None:
    clock = ManualClock(5.0)
    assert (clock(), clock()) == (5.0, 5.0)
    for seconds in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="seconds"):
            clock.move(seconds)
    assert clock.move(2.5) == clock() == 7.5
