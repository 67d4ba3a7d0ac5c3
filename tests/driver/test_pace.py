"""How many connections are ended before the loop runs again, by what ends cost."""

from __future__ import annotations

import pytest

from reaper.driver.pace import (
    CHECKED_AT_ONCE,
    LONGEST_SLICE,
    REAPS_PER_SLICE,
    ROUNDS,
    SECONDS_PER_REAP,
    Pace,
)

pytestmark = pytest.mark.inside

EIGHT_MS = REAPS_PER_SLICE * SECONDS_PER_REAP


class Passes:
    """A loop whose passes take *busy* seconds, and the end of a connection *cost*: a
    share of it at once, the rest in the pass that follows.
    """

    def __init__(self, busy: float, cost: float, at_once: float = 0.2) -> None:
        self.pace, self.now = Pace(), 0.0
        self.busy, self.cost, self.at_once = busy, cost, at_once

    def slice(self) -> int:
        """Two passes, a slice, and the pass that follows: how many it ended."""
        looked = self.now
        self.now += 2 * self.busy
        began = self.now
        count = self.pace.room(looked, began)
        self.pace.ended(began, count, more=True)
        self.now = began + count * self.cost + self.busy
        return count

    def slices(self, count: int) -> list[int]:
        return [self.slice() for _ in range(count)]


@pytest.mark.parametrize("cost", [SECONDS_PER_REAP, 1e-4, 3e-4, 5e-4])
@pytest.mark.parametrize("busy", [0.0, 1e-4, 5e-3])
def test_no_slice_takes_longer_than_eight_ms_or_a_pass(busy: float, cost: float) -> None:
    found = Passes(busy, cost).slices(200)
    assert max(found) * cost <= 1.05 * max(EIGHT_MS, busy)
    assert max(found) * cost >= 0.9 * EIGHT_MS  # and nobody waits for no reason


def test_what_the_ends_set_going_does_not_count_as_a_busy_loop() -> None:
    """Else each slice is larger than the one before: 128 ends of 300 us are a pass of
    38 ms, for which 590 may be ended, which are one of 177 ms.
    """
    assert max(Passes(0.0, 3e-4).slices(100)) < 30


def test_a_busy_loop_starves_no_reaper() -> None:
    for busy, most in ((0.01, 154), (0.0325, 500), (0.05, 769), (30.0, 769)):
        found = Passes(busy, SECONDS_PER_REAP).slices(100)
        assert max(found) == pytest.approx(most, abs=2)
        assert max(found) * SECONDS_PER_REAP <= LONGEST_SLICE + SECONDS_PER_REAP


def test_a_loop_that_becomes_busy_is_measured_anew() -> None:
    loop = Passes(0.0, SECONDS_PER_REAP)
    loop.slices(ROUNDS // 2)
    loop.busy = 0.0325
    found = loop.slices(4 * ROUNDS)
    assert min(each for each in found if each) == CHECKED_AT_ONCE  # it seems dear at first
    assert max(found[2 * ROUNDS :]) == pytest.approx(500, abs=2)


def test_one_long_stop_of_the_machine_is_forgotten() -> None:
    loop = Passes(0.0, SECONDS_PER_REAP)
    loop.slices(20)
    loop.now += 10.0
    found = loop.slices(20)
    assert found[-1] == REAPS_PER_SLICE


def test_a_slice_after_which_the_loop_may_sleep_is_not_measured() -> None:
    pace = Pace()
    before = pace.cost
    pace.ended(0.0, pace.room(0.0, 0.0), more=False)
    pace.room(1000.0, 1000.0)
    assert pace.cost == before
