"""The settings against herds reach the reaper and the servers' drains."""

from __future__ import annotations

import pytest
import trio

from reaper.config import ReaperConfig
from reaper.trio import open_reaper

pytestmark = pytest.mark.trio


def config(**settings: str) -> ReaperConfig:
    return ReaperConfig.load(environ={}, overrides=settings)


async def ends(r, idle: float, n: int) -> list[float]:
    found = []

    async def one():
        with r.watch(None, idle=idle):
            await trio.sleep_forever()
        found.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        for _ in range(n):
            nursery.start_soon(one)
    return found


async def test_jitter_from_the_config_lengthens_and_never_shortens(autojump_clock):
    async with open_reaper(config(**{"reaper.jitter": "0.5"}), seed=1) as r:
        start = trio.current_time()
        found = [end - start for end in await ends(r, 20.0, 200)]
    assert min(found) >= 20.0
    assert max(found) <= 31.0
    assert len(set(found)) > 3


async def test_a_bound_from_the_config_is_kept(autojump_clock):
    async with open_reaper(config(**{"reaper.reaps_per_second": "50"})) as r:
        found = await ends(r, 5.0, 500)
    assert max(found) - min(found) >= 8.0


async def test_an_argument_beats_the_config(autojump_clock):
    async with open_reaper(config(**{"reaper.jitter": "0.5"}), jitter=0.0) as r:
        assert len(set(await ends(r, 20.0, 50))) == 1


async def test_without_settings_nothing_is_spread(autojump_clock):
    async with open_reaper(config()) as r:
        assert len(set(await ends(r, 20.0, 50))) == 1
