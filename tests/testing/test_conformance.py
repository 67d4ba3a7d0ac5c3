"""The conformance kit passes every sound queue and names the fault of every broken
one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from reaper import TimingWheel
from reaper.core.wheel import TimerQueue
from reaper.testing import HeapTimer, HeapTimerQueue, ManualClock, NotConforming, check_timer_queue

WHEEL_SIZES: list[int | tuple[int, ...]] = [2, 3, 10, 20, 64, (60, 2, 12)]


class Checked(TimingWheel[Any]):
    """Looks into itself whenever it is advanced, and moves nothing before it asked to
    be.
    """

    def advance(self, now: int, limit: int | None = None) -> list[Any]:
        upcoming, places = self.next_expiry(), self._places()
        expired = super().advance(now, limit)
        self.check()
        if upcoming is not None and now < upcoming:
            assert (expired, self._places()) == ([], places)
        return expired

    def _places(self) -> list[Any]:
        return [
            (timer.item, self.locate(timer))
            for level in self._levels
            for slot in level.slots.values()
            for timer in slot
        ]


@pytest.mark.slow
@pytest.mark.parametrize("wheel_size", WHEEL_SIZES)
def test_the_wheel_conforms(wheel_size: int | tuple[int, ...]) -> None:
    check_timer_queue(lambda tick, start: Checked(tick=tick, wheel_size=wheel_size, start=start))


@pytest.mark.parametrize(
    "make", [TimingWheel, HeapTimerQueue, lambda tick, start: HeapTimerQueue(start)]
)
def test_a_class_itself_can_be_handed_to_the_kit_or_a_maker(make: Callable[..., Any]) -> None:
    check_timer_queue(make)


def test_a_maker_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(TypeError, match="make must take"):
        check_timer_queue(lambda wheel, tick: TimingWheel())


def broken(name: str, base: type[Any] = HeapTimerQueue, **methods: Any) -> type[Any]:
    """A queue like *base* but for *methods*."""
    return type(name, (base,), methods)


def shifting(
    name: str, shift: Callable[[int, Any], int], base: type[Any] = HeapTimerQueue, **more: Any
) -> type[Any]:
    """A queue that takes *shift* of a deadline and the queue for the deadline."""

    def schedule(queue: Any, deadline: int, item: Any) -> Any:
        timer = base.schedule(queue, shift(deadline, queue), item)
        setattr(timer, "_deadline" if base is TimingWheel else "deadline", deadline)
        return timer

    return broken(name, base, schedule=schedule, **more)


def ordered(name: str, key: Callable[[HeapTimer[Any]], Any]) -> type[Any]:
    """A queue that hands out in the order of *key*."""
    return broken(
        name, advance=lambda queue, now: sorted(HeapTimerQueue.advance(queue, now), key=key)
    )


def waking(name: str, when: Callable[[Any, int], int]) -> type[Any]:
    """A queue whose `next_expiry` is *when* of the queue and the right one."""

    def next_expiry(queue: Any) -> int | None:
        upcoming = HeapTimerQueue.next_expiry(queue)
        return None if upcoming is None else when(queue, upcoming)

    return broken(name, next_expiry=next_expiry)


def twice_handed_out(queue: Any, now: int) -> list[Any]:
    batch = HeapTimerQueue.advance(queue, now)
    return batch + batch[-1:] if len(batch) > 2 else batch


def with_the_cancelled_of_its_tick(queue: Any, now: int) -> list[Any]:
    cancelled = [timer for deadline, _, timer in queue._heap if timer.cancelled and deadline <= now]
    return HeapTimerQueue.advance(queue, now) + cancelled


def noting_the_last(queue: Any, now: int) -> list[Any]:
    batch = HeapTimerQueue.advance(queue, now)
    queue._last = now if batch else queue._last
    return batch


def resurrecting(queue: Any, deadline: int, item: Any) -> HeapTimer[Any]:
    queue._push(timer := ResurrectingTimer(queue, deadline, item))
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
    # rounds deadlines down: early by up to tick - 1
    (
        shifting("KafkaRounding", lambda at, q: at // q._tick * q._tick, TimingWheel),
        "tick 7.*next_expiry",
    ),
    # hands out one unit before the deadline that `next_expiry` names
    (
        shifting(
            "EarlyByOne",
            lambda at, q: at - 1,
            next_expiry=lambda q: min(
                (max(t.deadline, q._now) for _, n, t in q._heap if n == t._order), default=None
            ),
        ),
        "is not early|just before next_expiry",
    ),
    (
        shifting("OneTickLate", lambda at, q: at + q._tick * (at > q.now), TimingWheel),
        "next_expiry",
    ),
    (
        shifting(
            "LosesExactRevolutions",
            lambda at, q: at + 10**18 * (at > q._now and (at - q._now) % 512 == 0),
        ),
        "exact revolutions.*next_expiry",
    ),
    # a hashed wheel that forgets to count the rounds
    (shifting("EarlyByATurn", lambda at, q: at - 64 * (at >= q._now + 64)), "early|next_expiry"),
    (
        ordered("TiesBackwards", lambda timer: (timer.deadline, -timer.item)),
        "schedule order|order over",
    ),
    (ordered("NoOrder", lambda timer: timer.item), "deadline order"),
    (broken("TwiceHandedOut", advance=twice_handed_out), "handed out once"),
    (broken("CancelTooLate", advance=with_the_cancelled_of_its_tick), "while it waits"),
    (broken("CountDrifts", __len__=lambda q: q._live + (len(q._heap) > q._live + 5)), "len"),
    (waking("ForgetsToWake", lambda q, upcoming: upcoming + 2_000), "next_expiry"),
    (
        broken(
            "WakesForTheCancelled",
            next_expiry=lambda q: max(q._heap[0][0], q._now) if q._heap else None,
        ),
        "next_expiry",
    ),
    (waking("WakesAtEveryUnit", lambda q, upcoming: min(upcoming, q._now + 1)), "within .* steps"),
    # believes that time stands still while nothing expires, and measures a deadline
    # from there
    (
        shifting(
            "LaggingClock",
            lambda at, q: at + (q._now - q._last) * (q._now - q._last > 100_000),
            _last=0,
            advance=noting_the_last,
        ),
        "short|late|next_expiry",
    ),
    (
        broken("GoesBackwards", advance=lambda q, now: HeapTimerQueue.advance(q, max(now, q._now))),
        "raises",
    ),
    (shifting("NothingIsDueAtOnce", lambda at, q: max(at, q._now + 1)), "next_expiry|late"),
    (broken("Resurrecting", schedule=resurrecting), "reschedule"),
    (shifting("ShortOfTheHorizon", lambda at, q: min(at, 2**60)), "deadline order"),
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
