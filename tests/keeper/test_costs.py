"""What an idle key costs beside its thing: memory, and no task and no timer."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc

import pytest

import reaper.asyncio

MOST_BYTES = 400
KEYS = 20_000


@pytest.mark.slow
def test_an_idle_key_costs_at_most_400_bytes_and_no_task() -> None:
    async def main() -> None:
        keys, thing = [f"key {number}" for number in range(KEYS)], object()

        def end(key: str, ended: object, reason: str) -> None:
            """An end."""

        async with reaper.asyncio.open_keeper(lambda key: thing, end, idle=3600) as keeper:
            gc.collect()
            tracemalloc.start()
            before, _ = tracemalloc.get_traced_memory()
            for key in keys:
                async with keeper.use(key):
                    pass
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert len(keeper) == KEYS
            assert (after - before) / KEYS <= MOST_BYTES
            assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
