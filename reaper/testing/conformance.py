"""The conformance kit for timer queues: stories, each told to a fresh queue, with books
kept beside it.

*Every promise is checked after every step*, by the books; a story only makes trouble,
such as timer queues in production have had. A broken promise is raised explicitly, so
that `python -O` keeps it, with the steps that led to it.
"""

from __future__ import annotations

import inspect
import random
import reprlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from ..core.ticks import deadline_to_tick
from ..core.wheel import TimerEntry, TimerQueue

RADICES = (2, 3, 8, 10, 16, 20, 32, 60, 64, 100, 128, 256, 512, 1000, 1024, 4096)
"""Wheel sizes that a queue under test may plausibly have inside: revolutions of each
are tried, at every level.
"""

HORIZON = 2**62
"""The farthest deadline tried: in nanoseconds, 146 years."""


class NotConforming(AssertionError):
    """A timer queue broke a promise of `TimerQueue`. The message says which, where, and
    after which steps.
    """


def check_timer_queue(make: Callable[..., TimerQueue[Any]]) -> None:
    """Run the conformance kit on a timer queue.

    Args:
        make: Called many times as `make(tick=..., start=...)`, both ints; must return
            an empty queue with that tick and its clock at *start*. One that takes no
            arguments must return a queue of tick 1 that starts at 0.

    Raises:
        NotConforming: at the first broken promise.
        TypeError: *make* can be called in neither way.

    Not guaranteed: speed and memory are not looked at, nor the order of equal deadlines
    once one was rescheduled.

    Cost: about a second for a queue in pure Python.
    """
    settings = [(1, 0), (1, 12_345), (7, 3), (1000, 999)]
    called = make
    if not _accepts(make, tick=1, start=0):
        if not _accepts(make):
            raise TypeError(f"make must take the keywords tick and start, or nothing, got {make!r}")
        settings = [(1, 0)]

        def called(tick: int, start: int) -> TimerQueue[Any]:
            return make()

    for tick, start in settings:
        for story in filter(callable, vars(Stories).values()):
            story(
                Stories(
                    called,
                    tick,
                    start,
                    f"{story.__name__.replace('_', ' ')}, tick {tick}, start {start}",
                )
            )


def _accepts(make: Callable[..., Any], **arguments: int) -> bool:
    try:
        inspect.signature(make).bind(**arguments)
    except TypeError:
        return False
    return True


class Books:
    """Drives one queue, keeps the books in a dict, and compares the two after every
    step.
    """

    make: Callable[..., TimerQueue[Any]]
    tick: int
    now: int
    title: str

    def __init__(
        self, make: Callable[..., TimerQueue[Any]], tick: int, start: int, title: str
    ) -> None:
        self.make, self.tick, self.now, self.title = make, tick, start, title
        self.queue: TimerQueue[Any] = make(tick=tick, start=start)
        self.steps: list[str] = []
        self.handles: list[TimerEntry[Any]] = []
        # When each waiting timer must be handed out, by its number.
        self.latest: dict[int, int] = {}
        self.rescheduled: set[int] = set()
        self.expired: list[int] = []
        self.compare()

    def expect(self, promise: str, want: object, got: object) -> None:
        """Raise unless *want* == *got*."""
        if want != got:
            steps = "; ".join(self.steps[-12:])
            difference = f"expected {reprlib.repr(want)}, got {reprlib.repr(got)}"
            raise NotConforming(f"{self.title}: {promise}: {difference}. Last steps: {steps}")

    def schedule(self, deadline: int) -> int:
        """Schedule a timer; its number, which is its item too."""
        number = len(self.handles)
        self.steps.append(f"#{number} = schedule({deadline})")
        handle = self.queue.schedule(deadline, number)
        self.handles.append(handle)
        self.latest[number] = self.latest_instant(deadline)
        self.expect(f"#{number} knows its deadline", deadline, handle.deadline)
        self.expect(f"#{number} knows its item", number, handle.item)
        self.expect(f"#{number} is not cancelled when scheduled", False, handle.cancelled)
        self.compare()
        return number

    def cancel(self, number: int) -> None:
        """Cancel a timer, dead or alive."""
        self.steps.append(f"cancel(#{number})")
        alive = self.latest.pop(number, None) is not None
        was_cancelled = self.handles[number].cancelled
        self.expect(
            f"cancel(#{number}) is True exactly if it was waiting",
            alive,
            self.handles[number].cancel(),
        )
        self.expect(
            f"#{number} tells whether it was cancelled",
            alive or was_cancelled,
            self.handles[number].cancelled,
        )
        self.expect(f"a second cancel(#{number}) is False", False, self.handles[number].cancel())
        self.compare()

    def reschedule(self, number: int, deadline: int) -> None:
        """Reschedule a timer, dead or alive."""
        self.steps.append(f"reschedule(#{number}, {deadline})")
        alive = number in self.latest
        moved = self.handles[number].reschedule(deadline)
        self.expect(f"reschedule(#{number}) is True exactly if it was waiting", alive, moved)
        if alive:
            self.latest[number] = self.latest_instant(deadline)
            self.rescheduled.add(number)
            self.expect(
                f"#{number} knows its new deadline", deadline, self.handles[number].deadline
            )
        self.compare()

    def advance(self, now: int) -> list[int]:
        """Move the clock; the numbers handed out."""
        self.steps.append(f"advance({now})")
        self.now = now
        batch: list[int] = []
        for handle in self.queue.advance(now):
            number = handle.item
            self.expect(
                f"#{number} is handed out by its own handle", True, handle is self.handles[number]
            )
            self.expect(
                f"#{number} is handed out once, and only while it waits",
                True,
                number in self.latest,
            )
            self.expect(
                f"#{number}, deadline {handle.deadline}, is not early at {now}",
                True,
                handle.deadline <= now,
            )
            self.expect(f"#{number} is not cancelled by expiring", False, handle.cancelled)
            del self.latest[number]
            batch.append(number)
        deadlines = [self.handles[number].deadline for number in batch]
        unordered = [pair for pair in pairwise(deadlines) if pair[0] > pair[1]]
        self.expect("a batch is in deadline order, but for", [], unordered)
        never_moved = [(self.handles[n].deadline, n) for n in batch if n not in self.rescheduled]
        swapped = [pair for pair in pairwise(never_moved) if pair[0] > pair[1]]
        self.expect(
            "equal deadlines are in schedule order, but for (deadline, number)", [], swapped
        )
        late = [number for number, latest in self.latest.items() if latest <= now]
        self.expect(f"nothing is late by a tick or more, or lost, at {now}", [], late)
        self.expired += batch
        self.compare()
        return batch

    def compare(self) -> None:
        """Compare what must hold at any moment."""
        self.expect("len() counts the waiting timers", len(self.latest), len(self.queue))
        upcoming = self.queue.next_expiry()
        if not self.latest:
            self.expect("next_expiry() of an empty queue", None, upcoming)
            return
        soonest = min(self.latest.values())
        self.expect("next_expiry() is an int while timers wait", True, type(upcoming) is int)
        if upcoming is not None:
            in_range = self.now <= upcoming <= soonest and (
                upcoming > self.now or soonest == self.now
            )
            self.expect(
                f"next_expiry() = {upcoming} lies after {self.now}, not after {soonest}",
                True,
                in_range,
            )

    def latest_instant(self, deadline: int) -> int:
        """When a timer scheduled now must be handed out: at once, or at its deadline
        rounded up to the tick.
        """
        return (
            self.now if deadline <= self.now else deadline_to_tick(deadline, self.tick) * self.tick
        )

    def follow_next_expiry(self, limit: int) -> None:
        """Advance from one `next_expiry` to the next until nothing waits, which must
        take at most *limit* steps.
        """
        for _ in range(limit):
            upcoming = self.queue.next_expiry()
            if upcoming is None:
                return
            if upcoming - 1 > self.now:
                self.expect(
                    "advance() to just before next_expiry()", [], self.advance(upcoming - 1)
                )
            self.advance(upcoming)
        self.expect(
            f"next_expiry() leads to the last timer within {limit} steps", 0, len(self.latest)
        )


class Stories(Books):
    """Each makes trouble in its own way. Their names are their titles in a message."""

    def each_is_handed_out_exactly_once(self) -> None:
        start = self.now
        for delay in (5, 1, 3, 1, 40, 3_000):
            self.schedule(start + delay * self.tick)
        for step in (*range(1, 60), 2_999, 3_000, 3_001, 9_000):
            self.advance(start + step * self.tick)
        self.expect("the order over all batches", [1, 3, 2, 0, 4, 5], self.expired)

    def a_timer_can_end_in_the_tick_it_was_scheduled_in(self) -> None:
        self.advance(self.now)
        at_once = self.schedule(self.now)
        soon = self.schedule(self.now + 1)
        moved = self.schedule(self.now + 1)
        self.cancel(at_once)
        self.cancel(soon)
        self.reschedule(moved, self.now + 2 * self.tick)
        self.advance(self.now)
        self.advance(self.now + 9 * self.tick)
        self.expect("what is left", [moved], self.expired)

    def a_dead_timer_stays_dead(self) -> None:
        later = self.now + 50 * self.tick
        expired, cancelled = self.schedule(self.now + 1), self.schedule(self.now + 2)
        self.cancel(cancelled)
        self.advance(self.now + 2 * self.tick)
        for number in (expired, cancelled):
            self.reschedule(number, later)
            self.cancel(number)
            self.reschedule(number, 0)
        self.advance(later)
        self.advance(2 * later)

    def a_handle_belongs_to_one_queue_only(self) -> None:
        other = Books(self.make, self.tick, self.now, self.title)
        here, there = self.schedule(self.now + 5), other.schedule(other.now + 5)
        other.cancel(there)
        self.compare()
        other.compare()
        self.expect(
            "the other queue's cancel left this one alone", False, self.handles[here].cancelled
        )
        self.follow_next_expiry(10)

    def the_queue_may_change_while_a_batch_is_worked_off(self) -> None:
        first = [self.schedule(self.now + 10) for _ in range(8)]
        waiting = [self.schedule(self.now + 10 + self.tick * delay) for delay in range(1, 9)]
        for number in self.advance(self.now + 10 + self.tick):
            if number in first:
                self.cancel(
                    first[-1 - number]
                )  # of the same batch, before and after it was looked at
                self.cancel(waiting[number])
                self.schedule(self.now - 1)
                self.schedule(self.now + self.tick * (number + 1))
        self.advance(self.now)
        self.follow_next_expiry(100)

    def a_deadline_that_is_not_ahead_is_due_at_once(self) -> None:
        self.advance(self.now + 10 * self.tick + 1)
        waiting = self.schedule(self.now + 3 * self.tick)
        for deadline in (self.now, self.now - 1, 0, self.now, self.now - self.tick, -1, -(2**40)):
            self.schedule(deadline)
        self.expect("all due at once", 7, len(self.advance(self.now)))
        self.reschedule(waiting, self.now)
        self.expect("a waiting one made due at once", [waiting], self.advance(self.now))

    def every_offset_inside_a_tick_is_neither_early_nor_late(self) -> None:
        for offset in range(min(self.tick, 16)):
            inside = self.now // self.tick * self.tick + self.tick * 3 + offset
            self.advance(inside)
            for delay in range(1, 2 * min(self.tick, 16) + 2):
                self.schedule(inside + delay)
            for step in range(1, 2 * self.tick + 2, max(1, self.tick // 16)):
                self.advance(inside + step)
            self.advance(inside + 5 * self.tick)

    def exact_revolutions_of_any_wheel_at_any_level(self) -> None:
        for radix in RADICES:
            start = self.now
            span = radix
            while span < 2**40:
                for turns in (1, radix - 1):
                    for shift in (-1, 0, 1):
                        self.schedule(start + (turns * span + shift) * self.tick)
                span *= radix * radix if radix < 8 else radix
            for jump in sorted(set(self.latest.values())):
                self.advance(jump - 1)
                self.advance(jump)

    def revolutions_counted_from_the_origin_of_the_clock(self) -> None:
        for radix in RADICES:
            for span in (radix, radix * radix, radix**3):
                boundary = (self.now // (span * self.tick) + 2) * span * self.tick
                self.advance(boundary - self.tick)  # one tick before all hands stand at zero
                for turns in (1, radix - 1, radix):
                    for shift in (-1, 0, 1):
                        self.schedule(boundary + (turns * span + shift) * self.tick)
                self.follow_next_expiry(400)

    def one_jump_over_everything_hands_out_everything_in_order(self) -> None:
        start = self.now
        delays = [2**power + shift for power in range(62) for shift in (-1, 0, 1)]
        random.Random(1).shuffle(delays)
        for delay in delays:
            self.schedule(min(start + delay, HORIZON))
        self.advance(start + 1)
        self.advance(HORIZON)
        self.expect("all were handed out", len(delays), len(self.expired))

    def a_short_delay_after_a_long_idle_time_is_short(self) -> None:
        far = self.schedule(self.now + 10**15)
        for idle in (10**6, 10**9, 10**12 + 1):
            self.advance(self.now + idle)
            near = self.schedule(self.now + 1)
            self.expect("the short one", [near], self.advance(self.now + self.tick))
        self.cancel(far)

    def a_clock_that_goes_backwards_is_refused(self) -> None:
        self.advance(self.now + 100 * self.tick)
        self.schedule(self.now + 1)
        self.schedule(self.now)
        for earlier in (self.now - 1, self.now - 100 * self.tick):
            try:
                self.queue.advance(earlier)
            except Exception:
                self.compare()
            else:
                self.expect(f"advance({earlier}) at {self.now} raises", "an error", None)
        self.expect("nothing was lost by it", 2, len(self.advance(self.now + self.tick)))

    def equal_deadlines_come_out_in_schedule_order_however_far_away_they_were(self) -> None:
        deadline = self.now + 100_000 * self.tick
        for left in (90_000, 5_000, 300, 70, 12, 3, 1):
            for _ in range(3):
                self.schedule(deadline)
            self.advance(deadline - left * self.tick)
        self.expect("schedule order", list(range(21)), self.advance(deadline + self.tick))

    def cancelled_timers_cause_no_wake(self) -> None:
        numbers = [
            self.schedule(self.now + delay * self.tick) for delay in (1, 2, 30, 400, 5_000, 600_000)
        ]
        last = self.schedule(self.now + 7_000_000 * self.tick)
        for number in numbers:
            self.cancel(number)
        self.follow_next_expiry(80)
        self.expect("the one that was not cancelled", [last], self.expired)

    def anything_at_random(self) -> None:
        choose = random.Random(3)
        for _ in range(1_500):
            some = choose.randrange(len(self.handles)) if self.handles else self.schedule(self.now)
            deadline = self.now + choose.randrange(-3, 10 ** choose.randrange(1, 7))
            act = choose.random()
            if act < 0.4:
                self.schedule(deadline)
            elif act < 0.5:
                self.cancel(some)
            elif act < 0.6:
                self.reschedule(some, deadline)
            elif act < 0.8:
                self.advance(self.now + choose.randrange(10 ** choose.randrange(1, 5)))
            else:
                upcoming = self.queue.next_expiry()
                self.advance(self.now if upcoming is None else upcoming)
        self.advance(self.now + 10**7)
        self.expect("nothing is left", 0, len(self.queue))
