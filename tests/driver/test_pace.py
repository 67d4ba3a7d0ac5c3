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
    fifth of it at once, the rest in the *spread* passes that follow, in equal parts.
    """

    def __init__(self, busy: float, cost: float, spread: int = 1) -> None:
        self.pace, self.now = Pace(), 0.0
        self.busy, self.cost, self.spread = busy, cost, spread
        self.longest = 0.0  # the most that a pass took for ends
        self._to_come = [0.0] * (spread + 1)  # what ends have set going, by pass from now on

    def run(self) -> None:
        """A pass, without its slice."""
        ends = self._to_come.pop(0)
        self._to_come.append(0.0)
        self.longest = max(self.longest, ends)
        self.now += self.busy + ends

    def slice(self, more: bool = True) -> int:
        """Two passes, a slice, and the pass that follows: how many it ended."""
        self.pace.look(self.now)
        self.run()
        self.run()
        count = self.pace.room(self.now)
        self.pace.ended(count, more=more)
        self.now += 0.2 * count * self.cost
        for after in range(self.spread):
            self._to_come[after] += 0.8 * count * self.cost / self.spread
        self.run()
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


@pytest.mark.parametrize("more", [True, False])
def test_neither_does_what_they_set_going_in_later_passes(*, more: bool) -> None:
    """Tasks of hypercorn's end in the tenth pass: one slice left out is no measure of a
    pass, and the first look after a slice that was the last is none either.
    """
    loop = Passes(1e-5, 3e-4, spread=10)
    found = [loop.slice(more=more or number % 3 > 0) for number in range(200)]
    assert max(found) < 45
    assert sum(found) / len(found) * loop.cost >= 0.7 * EIGHT_MS


def test_one_long_pass_makes_no_long_slices() -> None:
    """It may be a full collection, just before a crowd falls due."""
    loop = Passes(0.3, 3e-4, spread=10)
    found = loop.slices(1)
    loop.busy = 1e-5
    found += loop.slices(100)
    assert max(found[1:]) < 60
    assert max(found[50:]) < 32


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
    found = loop.slices(30)
    assert found[-1] == REAPS_PER_SLICE


def test_a_slice_after_which_the_loop_may_sleep_is_not_measured() -> None:
    pace = Pace()
    before = pace.cost
    pace.ended(pace.room(0.0), more=False)
    pace.look(1000.0)
    pace.room(1000.0)
    assert pace.cost == before
