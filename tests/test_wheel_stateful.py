"""The wheel against a sorted list: whatever is done to both, they hand out the same, in the same order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from reaper import Timer, TimingWheel

SHIFTS = st.integers(-1, 1)
DELAYS = st.one_of(
    st.integers(-5, 40),
    st.integers(-1, 2**62),
    st.builds(
        lambda radix, power, shift: radix**power + shift, st.integers(2, 20), st.integers(0, 9), st.integers(-1, 1)
    ),
)


class WheelAgainstSortedList(RuleBasedStateMachine):
    """The model keeps (due, deadline, order, timer) for each waiting timer, and sorts whenever it is asked."""

    timers: Bundle[Timer[int]] = Bundle("timers")

    @initialize(
        tick=st.sampled_from([1, 2, 10, 1000]),
        wheel_size=st.one_of(st.integers(2, 20), st.lists(st.integers(2, 12), min_size=1, max_size=4)),
        start=st.integers(0, 5000),
    )
    def begin(self, tick: int, wheel_size: Any, start: int) -> None:
        self.wheel = TimingWheel[int](tick, wheel_size, start)
        self.tick, self.now, self.order = tick, start, 0
        self.waiting: dict[Timer[int], tuple[int, int, int]] = {}
        self.cancelled: set[Timer[int]] = set()

    def note(self, timer: Timer[int], deadline: int) -> None:
        self.order += 1
        due = self.now if deadline <= self.now else -(-deadline // self.tick) * self.tick
        self.waiting[timer] = (due, deadline, self.order)

    @rule(target=timers, delay=DELAYS)
    def schedule(self, delay: int) -> Timer[int]:
        timer = self.wheel.schedule(self.now + delay, self.order)
        self.note(timer, self.now + delay)
        return timer

    @rule(target=timers, delay=DELAYS, count=st.integers(2, 30))
    def schedule_many(self, delay: int, count: int) -> Any:
        return multiple(*(self.schedule(delay) for _ in range(count)))

    @rule(timer=timers)
    def cancel(self, timer: Timer[int]) -> None:
        alive = self.waiting.pop(timer, None) is not None
        if alive:
            self.cancelled.add(timer)
        assert timer.cancel() is alive
        assert self.wheel.locate(timer) is None

    @rule(timer=timers, delay=DELAYS)
    def reschedule(self, timer: Timer[int], delay: int) -> None:
        alive = timer in self.waiting
        assert timer.reschedule(self.now + delay) is alive
        if alive:
            self.note(timer, self.now + delay)

    @rule(timer=timers, other=timers)
    def reschedule_onto(self, timer: Timer[int], other: Timer[int]) -> None:
        self.reschedule(timer, other.deadline - self.now)

    @rule(jump=st.one_of(st.integers(0, 50), st.integers(0, 2**40)))
    def jump(self, jump: int) -> None:
        self.advance(self.now + jump)

    @rule()
    def follow(self) -> None:
        upcoming = self.wheel.next_expiry()
        if upcoming is not None:
            if upcoming > self.now:
                places = {timer: self.wheel.locate(timer) for timer in self.waiting}
                self.advance(upcoming - 1)
                assert places == {timer: self.wheel.locate(timer) for timer in self.waiting}, "moved before its time"
            self.advance(upcoming)

    def advance(self, now: int) -> None:
        self.now = now
        due = sorted((key[1:], timer.item, timer) for timer, key in self.waiting.items() if key[0] <= now)
        expected = [timer for _, _, timer in due]
        assert self.wheel.advance(now) == expected
        for timer in expected:
            del self.waiting[timer]

    @invariant()
    def they_agree(self) -> None:
        if not hasattr(self, "wheel"):
            return
        self.wheel.check()
        assert len(self.wheel) == len(self.waiting)
        upcoming = self.wheel.next_expiry()
        soonest = min((due for due, _, _ in self.waiting.values()), default=None)
        assert (upcoming is None) == (soonest is None)
        if upcoming is not None and soonest is not None:
            assert self.now <= upcoming <= soonest
            assert (upcoming > self.now) == (soonest > self.now)
        assert all(timer.cancelled for timer in self.cancelled)

    def teardown(self) -> None:
        if hasattr(self, "wheel"):
            self.advance(2**64)
            assert len(self.wheel) == 0


TestWheelAgainstSortedList = WheelAgainstSortedList.TestCase
TestWheelAgainstSortedList.settings = settings(
    max_examples=settings().max_examples * 3 // 2, stateful_step_count=40, deadline=None
)
TestWheelAgainstSortedList.pytestmark = [pytest.mark.slow]  # type: ignore[attr-defined]
