"""A keeper: memory of an idle key, a use, a tick with nothing due, and all keys due at
once.

One rule: a wake of an event loop is not the keeper's. So beside its ticks stand as many
of a loop whose timer rings as often and does nothing.
"""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from collections.abc import Coroutine
from typing import Any

import reaper.asyncio
from reaper.testing.on_asyncio import VirtualLoop

from ..common import Note, Scale, by_scale, figure, markdown, short, spread

TICK = 1.0
WAKES_PER_TICK = 2
"""Of every driver: half a tick stays in hand for a loop that wakes late."""


def make(key: object) -> object:
    """A thing."""
    return key


def end(key: object, thing: object, reason: str) -> None:
    """Its end."""


class Door:
    """The least that an `async with` costs."""

    async def __aenter__(self) -> Door:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass


async def fill(keeper: Any, count: int) -> None:
    """Use *count* keys once each."""
    for key in range(count):
        async with keeper.use(key):
            pass


async def bytes_of(count: int) -> float:
    """Bytes of an idle key beside its thing, its number included."""
    async with reaper.asyncio.open_keeper(make, end, idle=1e6, tick=TICK) as keeper:
        gc.collect()
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        await fill(keeper, count)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return (after - before) / count


async def uses(count: int, turns: int) -> tuple[float, float]:
    """CPU us of a use of one of *count* keys, and of an `async with` that does
    nothing.
    """
    async with reaper.asyncio.open_keeper(make, end, idle=1e6, tick=TICK) as keeper:
        await fill(keeper, count)
        began = time.process_time()
        for turn in range(turns):
            async with keeper.use(turn % count):
                pass
        between = time.process_time()
        for _ in range(turns):
            async with Door():
                pass
        return (between - began) / turns * 1e6, (time.process_time() - between) / turns * 1e6


async def ticks(count: int, turns: int) -> float:
    """CPU us of a tick with *count* idle keys, nothing due."""
    async with reaper.asyncio.open_keeper(make, end, idle=1e6, tick=TICK) as keeper:
        await fill(keeper, count)
        await asyncio.sleep(3 * TICK)
        began = time.process_time()
        await asyncio.sleep(turns * TICK)
        return (time.process_time() - began) / turns * 1e6


async def bare_ticks(turns: int) -> float:
    """CPU us of as many wakes of a loop that has nothing to do."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    left = turns * WAKES_PER_TICK

    def ring() -> None:
        nonlocal left
        left -= 1
        if left:
            loop.call_later(TICK / WAKES_PER_TICK, ring)
        else:
            done.set()

    ring()
    began = time.process_time()
    await done.wait()
    return (time.process_time() - began) / turns * 1e6


async def all_due(count: int) -> tuple[float, float]:
    """The longest pass of a loop of the real clock while *count* keys come due in one
    instant, CPU ms; and seconds until the last of them was ended.
    """
    loop, passes = asyncio.get_running_loop(), list[float]()
    idle = 0.5
    async with reaper.asyncio.open_keeper(make, end, idle=idle, tick=0.2) as keeper:
        await fill(keeper, count)
        for key in range(count):
            keeper.touch(key)  # all in one epoch
        touched = time.monotonic()
        await asyncio.sleep(idle / 2)
        last = time.thread_time()

        def look() -> None:
            nonlocal last
            now = time.thread_time()
            passes.append(now - last)
            last = now
            if len(keeper) or keeper.statistics().ending:
                loop.call_soon(look)

        look()
        while len(keeper) or keeper.statistics().ending:
            await asyncio.sleep(0.01)
        return max(passes) * 1e3, time.monotonic() - touched - idle


def played(body: Coroutine[Any, Any, Any], loop: Any = VirtualLoop) -> Any:
    """The result of *body*, on a loop of its own."""
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(body)


def run(scale: Scale, note: Note) -> dict[str, Any]:
    """`results[n]`: bytes, use_us, door_us, tick_us, bare_us, pause_ms, ended_s; each a
    spread.
    """
    rounds = by_scale(scale, 1, 3, 3)
    turns = by_scale(scale, 50, 1_000, 2_000)
    results: dict[str, Any] = {}
    for count in by_scale(scale, [1, 100], [1, 10_000], [1, 100_000]):
        samples: dict[str, list[float]] = {}
        for turn in range(rounds):
            note(f"{count:,} keys: round {turn + 1} of {rounds}")
            use, door = played(uses(count, 10 * turns))
            pause, ended = played(all_due(count), None)
            for name, value in {
                "use_us": use,
                "door_us": door,
                "tick_us": played(ticks(count, turns)),
                "bare_us": played(bare_ticks(turns)),
                "pause_ms": pause,
                "ended_s": ended,
                "bytes": played(bytes_of(count)),
            }.items():
                samples.setdefault(name, []).append(value)
        results[str(count)] = {name: spread(each) for name, each in samples.items()}
    return {"results": results}


COLUMNS = {
    "bytes a key": "bytes",
    "a use, us": "use_us",
    "an `async with`, us": "door_us",
    "a tick, nothing due, us": "tick_us",
    "two wakes of a bare loop, us": "bare_us",
    "all due: longest pass, ms": "pause_ms",
    "...all ended after, s": "ended_s",
}


def table(found: dict[str, Any]) -> str:
    """A row per number of keys."""
    rows = [
        [short(count), *(figure(each[key]["median"]) for key in COLUMNS.values())]
        for count, each in found["results"].items()
    ]
    return markdown(["idle keys", *COLUMNS], rows) + (
        "\n\nOn asyncio, CPU time. A tick is two wakes, which notice that the loop has stood still; "
        "it holds those of the loop itself, which stand beside it."
    )
