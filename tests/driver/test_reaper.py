"""What the reapers of all loops share."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from reaper.asyncio import AsyncioReaper
from reaper.config import ReaperConfig
from reaper.config.settings import Reaper as Settings
from reaper.driver.reaper import COLLECTOR_THRESHOLDS, Reaper, tamed_collector
from reaper.errors import InvalidArgument
from tests.helpers.driver_loop import Connection


@pytest.mark.parametrize("odd", [1, 0, None, "yes"])
def test_whether_to_tame_the_collector_is_yes_or_no(odd: Any) -> None:
    with (
        pytest.raises(InvalidArgument, match="tame_gc must be True or False"),
        tamed_collector(odd),
    ):
        pass


def thresholds_of(*reapers: Any) -> list[tuple[int, int, int]]:
    """Those of the collector, as each of *reapers* begins and then, in the same order,
    as each ends.
    """
    found = []
    for reaper in reapers:
        reaper.start()
        found.append(gc.get_threshold())
    for reaper in reapers:
        reaper.stop()
        found.append(gc.get_threshold())
    return found


@pytest.mark.parametrize("tame", [True, False])
def test_the_collector_is_tame_while_a_reaper_runs_that_is_set_so(tame: bool) -> None:
    async def main() -> None:
        config = ReaperConfig(reaper=Settings(tame_gc=tame))
        usual, frozen = gc.get_threshold(), gc.get_freeze_count()
        held = COLLECTOR_THRESHOLDS if tame else usual
        found = thresholds_of(AsyncioReaper(config), AsyncioReaper(config))
        assert found == [held, held, held, usual]
        assert gc.get_freeze_count() <= frozen  # from 3.12 on the interpreter froze some itself

    asyncio.run(main())


def test_a_reaper_that_is_stopped_twice_leaves_the_collector_to_the_others() -> None:
    async def main() -> None:
        config = ReaperConfig(reaper=Settings(tame_gc=True))
        first, second = AsyncioReaper(config), AsyncioReaper(config)
        first.start()
        second.start()
        first.stop()
        first.stop()
        assert gc.get_threshold() == COLLECTOR_THRESHOLDS
        second.stop()
        assert gc.get_threshold() != COLLECTOR_THRESHOLDS

    asyncio.run(main())


class Draining(Reaper):
    """Watches connections that take *cost* seconds to end, in the pass after that.

    Attributes:
        ended: How many were ended before each pass of the loop.
    """

    def __init__(self, connections: int, cost: float) -> None:
        self._time, self._cost = 0.0, cost
        self.ended: list[int] = []
        super().__init__(lambda: self._time, self._passes, None, None)
        for _ in range(connections):
            made = self.driver.watch(lambda uid: Connection(self.driver, uid), None)
            made.receiving = True

    async def _passes(self, seconds: float) -> None:
        ended = self.driver.books.reasons["drain"] - sum(self.ended)
        self.ended.append(ended)
        self._time += max(seconds, 1e-5) + ended * self._cost

    def _wake(self) -> None:
        """Nothing is due."""

    def _run_probe(self, connection: Any) -> None:
        """Nothing is probed."""

    def _drains_on(self) -> None:
        """All are idle."""

    async def _until_empty(self) -> None:
        """All are idle."""


@pytest.mark.parametrize(("cost", "most"), [(65e-6, 128), (300e-6, 30), (10e-3, 16)])
def test_a_drain_ends_as_many_at_once_as_take_eight_ms(cost: float, most: int) -> None:
    reaper = Draining(1000, cost)
    asyncio.run(reaper.drain(30.0))
    assert sum(reaper.ended) == 1000
    assert 0.8 * most <= max(reaper.ended) <= most


def test_a_drain_spreads_the_ends_over_its_window() -> None:
    reaper = Draining(1000, 0.0)
    asyncio.run(reaper.drain(30.0, 10.0))
    assert reaper.driver.clock.read() == pytest.approx(10.0, rel=0.05)
    assert max(reaper.ended) < 100
