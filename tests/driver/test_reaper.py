"""What the reapers of all loops share."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from reaper.asyncio import AsyncioReaper
from reaper.config import ReaperConfig
from reaper.config.settings import Reaper as Settings
from reaper.driver.reaper import COLLECTOR_THRESHOLDS, tamed_collector
from reaper.errors import InvalidArgument


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
