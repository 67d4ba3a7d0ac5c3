"""The stall clock: it stands still while the loop does."""

from __future__ import annotations

import pytest

from reaper.driver.stall_clock import REMEMBERED, StallClock
from tests.helpers.driver_loop import Loop, ping


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def real() -> list[float]:
    """What the loop's own clock says: its one element."""
    return [0.0]


@pytest.fixture
def clock(real: list[float]) -> StallClock:
    """A stall clock that bears a second of lateness."""
    return StallClock(lambda: real[0], 1.0)


@pytest.fixture
def stalled(real: list[float], clock: StallClock) -> StallClock:
    """The clock after a stall from 11.0 to 14.0 of the loop's own."""
    clock.expect(11.0)
    real[0] = 14.0
    assert clock.now() == 11.0
    assert clock.woke() == 3.0
    return clock


def test_a_loop_that_is_late_by_less_than_a_tick_has_not_stalled(
    real: list[float], clock: StallClock
) -> None:
    clock.expect(10.0)
    real[0] = 10.8
    assert clock.now() == 10.8
    assert clock.woke() == 0.0
    assert clock.now() == 10.8
    assert (clock.stalls, clock.stalled) == (0, 0.0)


def test_the_clock_stands_still_while_the_loop_stalls(
    real: list[float], stalled: StallClock
) -> None:
    assert stalled.now() == 11.0
    assert (stalled.stalls, stalled.stalled, stalled.max_lag) == (1, 3.0, 3.0)
    real[0] = 15.0
    assert stalled.now() == 12.0


def test_its_instants_can_be_turned_into_those_of_the_loops_clock(stalled: StallClock) -> None:
    assert [stalled.real(instant) for instant in (10.9, 11.0, 12.0)] == [10.9, 14.0, 15.0]


def test_an_instant_that_was_named_stays_so_although_a_stall_follows(
    real: list[float], stalled: StallClock
) -> None:
    stalled.expect(12.0)
    real[0] = 15.5  # half a second late
    assert stalled.now() == 12.5
    real[0] = 17.0  # more than a tick late: a stall
    assert stalled.now() == 12.5
    stalled.woke()
    assert (stalled.now(), stalled.real(12.5)) == (12.5, 17.0)


def test_instants_of_the_loops_clock_named_by_a_caller_after_a_stall_end_nothing(
    loop: Loop,
) -> None:
    connection = loop.watch(5)
    loop.run_until(2.25)
    loop.time += 10.0  # a stall
    loop.wake()
    loop.driver.register("theirs", 3.0).retime(4.0, loop.time)
    loop.run_until(30.0)
    assert connection.reaped
    loop.driver.core.check()


def test_a_probe_does_not_turn_back_a_clock_that_moves_between_two_readings(
    loop: Loop,
) -> None:
    """Readings move even within one step; the instants that the core is given never
    decrease.
    """

    def reading() -> float:
        loop.time += 0.004
        return loop.time

    loop.driver.clock.read = reading
    connections = [loop.watch(0.5 + number / 100, probe=ping, grace=0.3) for number in range(50)]
    loop.run_until(4)
    assert {connection.reason for connection in connections} == {"unanswered"}


def test_who_wakes_when_it_was_told_to_does_not_wake_too_early(stalled: StallClock) -> None:
    for tenth in range(200, 2000):  # the sums of some of them are rounded down
        stalled.expect(tenth / 10)
        assert stalled.expected - stalled.stalled >= tenth / 10


def test_a_clock_of_many_stalls_forgets_the_old_and_knows_the_late_ones(
    real: list[float], clock: StallClock
) -> None:
    named = []
    for _ in range(3 * REMEMBERED):
        clock.expect(clock.now() + 1.0)
        real[0] += 5.0
        clock.woke()
        named.append((clock.now(), real[0]))
    assert [clock.real(instant) for instant, _ in named[-REMEMBERED:]] == [
        there for _, there in named[-REMEMBERED:]
    ]
    assert len(clock._instants) == len(clock._offsets) <= 2 * REMEMBERED
