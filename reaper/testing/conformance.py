"""The conformance kit for timer queues: stories, each told to a fresh queue, with books kept beside it.

One rule: *every promise is checked after every step*, by the books and not by the story; a story only makes trouble.
A broken promise is raised explicitly, so that `python -O` keeps it, with the steps that led to it.

Source: ours; the stories are faults that timer queues in production have had.
"""

from __future__ import annotations

import inspect
import random
import reprlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from ..core.ticks import deadline_to_tick
from ..core.timer import TimerEntry, TimerQueue

RADICES = (2, 3, 8, 10, 16, 20, 32, 60, 64, 100, 128, 256, 512, 1000, 1024, 4096)
"""Wheel sizes that a queue under test may plausibly have inside: revolutions of each are tried, at every level."""

HORIZON = 2**62
"""The farthest deadline tried: in nanoseconds, 146 years."""

STEPS_SHOWN = 12


class NotConforming(AssertionError):
    """A timer queue broke a promise of `TimerQueue`. The message says which, where, and after which steps."""


def check_timer_queue(make: Callable[..., TimerQueue[Any]]) -> None:
    """Run the conformance kit on a timer queue.

    Args:
        make: Called many times as `make(tick=..., start=...)`, both ints; must return an empty queue with that tick and
            its clock at *start*. One that takes no arguments must return a queue of tick 1 that starts at 0.

    Raises:
        NotConforming: at the first broken promise.
        TypeError: *make* can be called in neither way.

    Not guaranteed: speed and memory are not looked at, nor the order of equal deadlines once one was rescheduled.

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
        for story in STORIES:
            story(Books(called, tick, start, f"{story.__name__.replace('_', ' ')}, tick {tick}, start {start}"))


def _accepts(make: Callable[..., Any], **arguments: int) -> bool:
    try:
        inspect.signature(make).bind(**arguments)
    except TypeError:
        return False
    return True


class Books:
    """Drives one queue, keeps the books in a dict, and compares the two after every step."""

    make: Callable[..., TimerQueue[Any]]
    tick: int
    now: int
    title: str

    def __init__(self, make: Callable[..., TimerQueue[Any]], tick: int, start: int, title: str) -> None:
        self.make, self.tick, self.now, self.title = make, tick, start, title
        self.queue: TimerQueue[Any] = make(tick=tick, start=start)
        self.steps: list[str] = []
        self.handles: list[TimerEntry[Any]] = []
        self.latest: dict[int, int] = {}  # of each waiting timer, by number: when it must be handed out
        self.rescheduled: set[int] = set()
        self.expired: list[int] = []
        self.compare()

    def expect(self, promise: str, want: object, got: object) -> None:
        """Raise unless *want* == *got*."""
        if want != got:
            steps = "; ".join(self.steps[-STEPS_SHOWN:])
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
        self.expect(f"cancel(#{number}) is True exactly if it was waiting", alive, self.handles[number].cancel())
        self.expect(f"#{number} tells whether it was cancelled", alive or was_cancelled, self.handles[number].cancelled)
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
            self.expect(f"#{number} knows its new deadline", deadline, self.handles[number].deadline)
        self.compare()

    def advance(self, now: int) -> list[int]:
        """Move the clock; the numbers handed out."""
        self.steps.append(f"advance({now})")
        self.now = now
        batch: list[int] = []
        for handle in self.queue.advance(now):
            number = handle.item
            self.expect(f"#{number} is handed out by its own handle", True, handle is self.handles[number])
            self.expect(f"#{number} is handed out once, and only while it waits", True, number in self.latest)
            self.expect(f"#{number}, deadline {handle.deadline}, is not early at {now}", True, handle.deadline <= now)
            self.expect(f"#{number} is not cancelled by expiring", False, handle.cancelled)
            del self.latest[number]
            batch.append(number)
        deadlines = [self.handles[number].deadline for number in batch]
        unordered = [pair for pair in pairwise(deadlines) if pair[0] > pair[1]]
        self.expect("a batch is in deadline order, but for", [], unordered)
        never_moved = [(self.handles[n].deadline, n) for n in batch if n not in self.rescheduled]
        swapped = [pair for pair in pairwise(never_moved) if pair[0] > pair[1]]
        self.expect("equal deadlines are in schedule order, but for (deadline, number)", [], swapped)
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
            in_range = self.now <= upcoming <= soonest and (upcoming > self.now or soonest == self.now)
            self.expect(f"next_expiry() = {upcoming} lies after {self.now}, not after {soonest}", True, in_range)

    def latest_instant(self, deadline: int) -> int:
        """When a timer scheduled now must be handed out: at once, or at its deadline rounded up to the tick."""
        return self.now if deadline <= self.now else deadline_to_tick(deadline, self.tick) * self.tick

    def follow_next_expiry(self, limit: int) -> None:
        """Advance from one `next_expiry` to the next until nothing waits, which must take at most *limit* steps."""
        for _ in range(limit):
            upcoming = self.queue.next_expiry()
            if upcoming is None:
                return
            if upcoming - 1 > self.now:
                self.expect("advance() to just before next_expiry()", [], self.advance(upcoming - 1))
            self.advance(upcoming)
        self.expect(f"next_expiry() leads to the last timer within {limit} steps", 0, len(self.latest))


# The stories. Their names are their titles in a message.


def each_is_handed_out_exactly_once(books: Books) -> None:
    start = books.now
    for delay in (5, 1, 3, 1, 40, 3_000):
        books.schedule(start + delay * books.tick)
    for step in (*range(1, 60), 2_999, 3_000, 3_001, 9_000):
        books.advance(start + step * books.tick)
    books.expect("the order over all batches", [1, 3, 2, 0, 4, 5], books.expired)


def a_timer_can_end_in_the_tick_it_was_scheduled_in(books: Books) -> None:
    books.advance(books.now)
    at_once = books.schedule(books.now)
    soon = books.schedule(books.now + 1)
    moved = books.schedule(books.now + 1)
    books.cancel(at_once)
    books.cancel(soon)
    books.reschedule(moved, books.now + 2 * books.tick)
    books.advance(books.now)
    books.advance(books.now + 9 * books.tick)
    books.expect("what is left", [moved], books.expired)


def a_dead_timer_stays_dead(books: Books) -> None:
    later = books.now + 50 * books.tick
    expired, cancelled = books.schedule(books.now + 1), books.schedule(books.now + 2)
    books.cancel(cancelled)
    books.advance(books.now + 2 * books.tick)
    for number in (expired, cancelled):
        books.reschedule(number, later)
        books.cancel(number)
        books.reschedule(number, 0)
    books.advance(later)
    books.advance(2 * later)


def a_handle_belongs_to_one_queue_only(books: Books) -> None:
    other = Books(books.make, books.tick, books.now, books.title)
    here, there = books.schedule(books.now + 5), other.schedule(other.now + 5)
    other.cancel(there)
    books.compare()
    other.compare()
    books.expect("the other queue's cancel left this one alone", False, books.handles[here].cancelled)
    books.follow_next_expiry(10)


def the_queue_may_change_while_a_batch_is_worked_off(books: Books) -> None:
    first = [books.schedule(books.now + 10) for _ in range(8)]
    waiting = [books.schedule(books.now + 10 + books.tick * delay) for delay in range(1, 9)]
    for number in books.advance(books.now + 10 + books.tick):
        if number in first:
            books.cancel(first[-1 - number])  # of the same batch, before and after it was looked at
            books.cancel(waiting[number])
            books.schedule(books.now - 1)
            books.schedule(books.now + books.tick * (number + 1))
    books.advance(books.now)
    books.follow_next_expiry(100)


def an_item_can_be_scheduled_again_after_it_expired(books: Books) -> None:
    for delay in (1, 1, 0, 20, 1, 64, 100, 1):
        books.schedule(books.now + delay * books.tick)
        books.advance(books.now + (delay + 1) * books.tick)
    books.expect("every round ended", list(range(8)), books.expired)


def a_deadline_that_is_not_ahead_is_due_at_once(books: Books) -> None:
    books.advance(books.now + 10 * books.tick + 1)
    waiting = books.schedule(books.now + 3 * books.tick)
    for deadline in (books.now, books.now - 1, 0, books.now, books.now - books.tick, -1, -(2**40)):
        books.schedule(deadline)
    books.expect("all due at once", 7, len(books.advance(books.now)))
    books.reschedule(waiting, books.now)
    books.expect("a waiting one made due at once", [waiting], books.advance(books.now))


def every_offset_inside_a_tick_is_neither_early_nor_late(books: Books) -> None:
    for offset in range(min(books.tick, 16)):
        inside = books.now // books.tick * books.tick + books.tick * 3 + offset
        books.advance(inside)
        for delay in range(1, 2 * min(books.tick, 16) + 2):
            books.schedule(inside + delay)
        for step in range(1, 2 * books.tick + 2, max(1, books.tick // 16)):
            books.advance(inside + step)
        books.advance(inside + 5 * books.tick)


def exact_revolutions_of_any_wheel_at_any_level(books: Books) -> None:
    for radix in RADICES:
        start = books.now
        span = radix
        while span < 2**40:
            for turns in (1, radix - 1):
                for shift in (-1, 0, 1):
                    books.schedule(start + (turns * span + shift) * books.tick)
            span *= radix * radix if radix < 8 else radix
        for jump in sorted(set(books.latest.values())):
            books.advance(jump - 1)
            books.advance(jump)


def revolutions_counted_from_the_origin_of_the_clock(books: Books) -> None:
    for radix in RADICES:
        for span in (radix, radix * radix, radix**3):
            boundary = (books.now // (span * books.tick) + 2) * span * books.tick
            books.advance(boundary - books.tick)  # one tick before all hands stand at zero
            for turns in (1, radix - 1, radix):
                for shift in (-1, 0, 1):
                    books.schedule(boundary + (turns * span + shift) * books.tick)
            books.follow_next_expiry(400)


def one_jump_over_everything_hands_out_everything_in_order(books: Books) -> None:
    start = books.now
    delays = [2**power + shift for power in range(62) for shift in (-1, 0, 1)]
    random.Random(1).shuffle(delays)
    for delay in delays:
        books.schedule(min(start + delay, HORIZON))
    books.advance(start + 1)
    books.advance(HORIZON)
    books.expect("all were handed out", len(delays), len(books.expired))


def a_short_delay_after_a_long_idle_time_is_short(books: Books) -> None:
    far = books.schedule(books.now + 10**15)
    for idle in (10**6, 10**9, 10**12 + 1):
        books.advance(books.now + idle)
        near = books.schedule(books.now + 1)
        books.expect("the short one", [near], books.advance(books.now + books.tick))
    books.cancel(far)
    books.advance(books.now + 10**9)
    near = books.schedule(books.now + 2 * books.tick)
    books.expect("the short one in an empty queue", [near], books.advance(books.now + 3 * books.tick))


def a_clock_that_goes_backwards_is_refused(books: Books) -> None:
    books.advance(books.now + 100 * books.tick)
    books.schedule(books.now + 1)
    books.schedule(books.now)
    for earlier in (books.now - 1, books.now - 100 * books.tick):
        try:
            books.queue.advance(earlier)
        except Exception:
            books.compare()
        else:
            books.expect(f"advance({earlier}) at {books.now} raises", "an error", None)
    books.expect("nothing was lost by it", 2, len(books.advance(books.now + books.tick)))


def a_mass_expiry_in_slices_keeps_order_and_counts(books: Books) -> None:
    start = books.now
    choose = random.Random(2)
    for _ in range(1_000):
        books.schedule(start + choose.randrange(1, 40) * books.tick)
    for upto in (1, 2, 3, 10, 11, 30, 40):
        for _ in range(20):
            books.cancel(choose.randrange(1_000))
        books.advance(start + upto * books.tick)
    in_order = sorted(books.expired, key=lambda number: (books.handles[number].deadline, number))
    books.expect("the order over all slices", in_order, books.expired)


def equal_deadlines_come_out_in_schedule_order_however_far_away_they_were(books: Books) -> None:
    deadline = books.now + 100_000 * books.tick
    for left in (90_000, 5_000, 300, 70, 12, 3, 1):
        for _ in range(3):
            books.schedule(deadline)
        books.advance(deadline - left * books.tick)
    books.expect("schedule order", list(range(21)), books.advance(deadline + books.tick))


def cancelled_timers_cause_no_wake(books: Books) -> None:
    numbers = [books.schedule(books.now + delay * books.tick) for delay in (1, 2, 30, 400, 5_000, 600_000)]
    last = books.schedule(books.now + 7_000_000 * books.tick)
    for number in numbers:
        books.cancel(number)
    books.follow_next_expiry(80)
    books.expect("the one that was not cancelled", [last], books.expired)


def a_timer_that_is_moved_on_again_and_again_expires_once(books: Books) -> None:
    number = books.schedule(books.now + 30 * books.tick)
    for _ in range(200):
        books.advance(books.now + 7 * books.tick)
        books.reschedule(number, books.now + 30 * books.tick)
    books.reschedule(number, books.now + 2 * books.tick)
    books.follow_next_expiry(10)
    books.expect("expired once", [number], books.expired)


def anything_at_random(books: Books) -> None:
    choose = random.Random(3)
    for _ in range(1_500):
        some = choose.randrange(len(books.handles)) if books.handles else books.schedule(books.now)
        deadline = books.now + choose.randrange(-3, 10 ** choose.randrange(1, 7))
        act = choose.random()
        if act < 0.4:
            books.schedule(deadline)
        elif act < 0.5:
            books.cancel(some)
        elif act < 0.6:
            books.reschedule(some, deadline)
        elif act < 0.8:
            books.advance(books.now + choose.randrange(10 ** choose.randrange(1, 5)))
        else:
            upcoming = books.queue.next_expiry()
            books.advance(books.now if upcoming is None else upcoming)
    books.advance(books.now + 10**7)
    books.expect("nothing is left", 0, len(books.queue))


STORIES: tuple[Callable[[Books], None], ...] = (
    each_is_handed_out_exactly_once,
    a_timer_can_end_in_the_tick_it_was_scheduled_in,
    a_dead_timer_stays_dead,
    a_handle_belongs_to_one_queue_only,
    the_queue_may_change_while_a_batch_is_worked_off,
    an_item_can_be_scheduled_again_after_it_expired,
    a_deadline_that_is_not_ahead_is_due_at_once,
    every_offset_inside_a_tick_is_neither_early_nor_late,
    exact_revolutions_of_any_wheel_at_any_level,
    revolutions_counted_from_the_origin_of_the_clock,
    one_jump_over_everything_hands_out_everything_in_order,
    a_short_delay_after_a_long_idle_time_is_short,
    a_clock_that_goes_backwards_is_refused,
    a_mass_expiry_in_slices_keeps_order_and_counts,
    equal_deadlines_come_out_in_schedule_order_however_far_away_they_were,
    cancelled_timers_cause_no_wake,
    a_timer_that_is_moved_on_again_and_again_expires_once,
    anything_at_random,
)
