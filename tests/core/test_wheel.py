"""The timing wheel: worked examples, its promises at the edges, and what it keeps in
memory.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from reaper import ClockWentBackwards, InvalidArgument, InvariantViolated, Level, TimingWheel
from reaper.core.slots import CHUNK


def items(timers: list[Any]) -> list[Any]:
    return [timer.item for timer in timers]


def test_450_lies_at_level_3_is_demoted_at_400_and_at_440_and_fires_at_450() -> None:
    wheel = TimingWheel[int](tick=1, wheel_size=20)
    timer = wheel.schedule(450, 450)
    others = [wheel.schedule(deadline, deadline) for deadline in (350, 446, 455, 473)]
    assert [wheel.locate(each) for each in (timer, *others)] == [
        (3, 1),
        (2, 17),
        (3, 1),
        (3, 1),
        (3, 1),
    ]
    assert TimingWheel[int]().locate(timer) is None
    for other in others:
        other.cancel()
    seen = []
    while (upcoming := wheel.next_expiry()) is not None:
        fired = wheel.advance(upcoming)
        seen.append((upcoming, wheel.locate(timer), items(fired)))
    assert seen == [(400, (2, 2), []), (440, (1, 10), []), (450, None, [450])]


def test_the_face_of_a_clock_is_three_levels_of_which_the_last_size_is_repeated() -> None:
    wheel = TimingWheel[str](tick=1, wheel_size=(60, 60, 12), start=0)
    timer = wheel.schedule(5 * 3600 + 7 * 60 + 9, "5:07:09")
    assert wheel.levels == (Level(1, 60, 60, 0), Level(60, 60, 3600, 0), Level(3600, 12, 43200, 0))
    assert wheel.locate(timer) == (3, 5)
    wheel.advance(5 * 3600)
    assert wheel.locate(timer) == (2, 7)
    wheel.advance(5 * 3600 + 7 * 60)
    assert wheel.locate(timer) == (1, 9)
    wheel.schedule(43_200 * 13, "next week")
    assert [level.wheel_size for level in wheel.levels] == [60, 60, 12, 12, 12]


def test_levels_are_made_when_a_deadline_needs_them_and_show_the_clock_rounded_down() -> None:
    wheel = TimingWheel[None](tick=5, wheel_size=10, start=3)
    assert list(wheel.levels) == [Level(tick=5, wheel_size=10, interval=50, current_time=0)]
    wheel.schedule(700, None)
    wheel.advance(579)
    assert list(wheel.levels) == [
        Level(5, 10, 50, 575),
        Level(50, 10, 500, 550),
        Level(500, 10, 5000, 500),
    ]


def test_a_handle_tells_its_state() -> None:
    wheel = TimingWheel[str]()
    timer = wheel.schedule(3, "a")
    assert repr(timer) == "<Timer deadline=3 waiting item='a'>"
    assert (timer.deadline, timer.item, timer.cancelled) == (3, "a", False)
    wheel.advance(3)
    assert "expired" in repr(timer)
    other = wheel.schedule(9, "b")
    assert "waiting=1" in repr(wheel)
    assert (other.cancel(), other.cancelled, other.cancel()) == (True, True, False)
    assert "cancelled" in repr(other)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tick": 0}, "tick must be .* got 0"),
        ({"tick": 1.0}, "tick must be .* got 1.0"),
        ({"tick": True}, "tick must be .* got True"),
        ({"wheel_size": 1}, "wheel_size must be .* got 1"),
        ({"wheel_size": "60"}, "wheel_size.* got '60?'"),
        ({"wheel_size": ()}, r"wheel_size must be .* got \(\)"),
        ({"wheel_size": (60, 1)}, r"wheel_size\[1\] must be .* got 1"),
        ({"wheel_size": None}, "wheel_size must be .* got None"),
        ({"start": -1}, "start must be .* got -1"),
        ({"start": float("nan")}, "start must be .* got nan"),
    ],
)
def test_a_wheel_refuses_bad_arguments_by_name_and_value(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message):
        TimingWheel(**arguments)


@pytest.mark.parametrize("instant", [1.5, float("nan"), float("inf"), "5", None, True])
def test_instants_that_are_not_ints_or_go_backwards_are_refused_and_change_nothing(
    instant: Any,
) -> None:
    wheel = TimingWheel[None](start=2)
    timer = wheel.schedule(40, None)
    for attempt in (lambda: wheel.schedule(instant, None), lambda: timer.reschedule(instant)):
        with pytest.raises(InvalidArgument, match="deadline must be an int"):
            attempt()
    with pytest.raises(InvalidArgument, match="now must be an int"):
        wheel.advance(instant)
    with pytest.raises(ClockWentBackwards, match=r"must not precede 2.* got 1"):
        wheel.advance(1)
    assert (len(wheel), wheel.now, timer.deadline, wheel.next_expiry()) == (1, 2, 40, 40)
    wheel.check()
    assert wheel.advance(40) == [timer]


class Item:
    pass


@pytest.mark.parametrize("end", ["cancel", "expire"])
def test_nothing_in_the_wheel_refers_to_a_timer_that_has_ended(end: str) -> None:
    wheel = TimingWheel[Item]()
    keep = wheel.schedule(500, Item())
    timer = wheel.schedule(500 if end == "cancel" else 1, Item())
    gone = weakref.ref(timer.item)
    if end == "cancel":
        timer.cancel()
    else:
        wheel.advance(1)
    del timer
    gc.collect()
    assert gone() is None
    assert len(wheel) == 1
    assert not keep.cancelled


def test_schedule_and_cancel_without_end_leave_the_wheel_as_small_as_it_was() -> None:
    wheel = TimingWheel[None](wheel_size=8)
    keep = [wheel.schedule(10_000, None) for _ in range(3)]
    waiting = [wheel.schedule(10_000 + number % 50, None) for number in range(200)]
    for number in range(100 * CHUNK):
        waiting.append(wheel.schedule(10_000 + number % 50, None))
        waiting[number].cancel()
        wheel.next_expiry()
    slots = [slot for level in wheel._levels for slot in level.slots.values()]
    assert len(wheel._heap) == len(slots) <= 8 * len(wheel.levels)
    assert sum(len(slot.chunks) for slot in slots) <= 8 * len(slots)
    assert len(wheel) == 200 + len(keep)
    wheel.check()


def test_a_timer_that_is_rescheduled_counts_as_scheduled_anew_among_equal_deadlines() -> None:
    wheel = TimingWheel[str]()
    timers = [
        wheel.schedule(deadline, name)
        for name, deadline in (("a", 9), ("b", 9), ("c", 5), ("d", 9), ("e", 7))
    ]
    for moved in (timers[0], timers[2], timers[1]):
        assert moved.reschedule(9)
    wheel.schedule(9, "f")
    assert items(wheel.advance(9)) == ["e", "d", "a", "c", "b", "f"]


@pytest.mark.parametrize(
    "fault",
    [
        lambda wheel: wheel._heap.pop(),
        lambda wheel: setattr(wheel, "_live", 9),
        lambda wheel: setattr(next(iter(wheel._heap[0][2])), "_deadline", 8),
        lambda wheel: setattr(wheel, "_now_ticks", 50),
        lambda wheel: setattr(wheel, "_now_ticks", 0),
        lambda wheel: setattr(wheel._heap[0][2].chunks[0], "dead", 1),
        lambda wheel: setattr(next(iter(wheel._due_at_once)), "_deadline", 99),
        lambda wheel: setattr(wheel._due_at_once.chunks[0], "dead", 1),
    ],
    ids=[
        "heap",
        "count",
        "deadline",
        "clock",
        "clock, by a tick",
        "slot",
        "due at once",
        "slot of these",
    ],
)
def test_check_finds_a_fault_in_the(fault: Any) -> None:
    wheel = TimingWheel[None](wheel_size=8, start=1)
    for deadline in (0, 5, 6, 8, 300):
        wheel.schedule(deadline, None)
    wheel.check()
    fault(wheel)
    with pytest.raises(InvariantViolated):
        wheel.check()
