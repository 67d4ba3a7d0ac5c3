"""The loop's longest pause while all fall due in one instant, under trio: parked, a
task each, without sockets.

One rule: the collector is on, tuned as in `server_example/workers.py`, in a process of
its own; a pause of the collector is a pause. The usual way, `trio.move_on_after` in
each task, is measured beside it.
"""

from __future__ import annotations

import gc
import math
import socket
import time
from typing import Any

import trio

import reaper.trio
from loadgen.plan.capacity import raise_descriptor_limit

from ..common import Note, Scale, by_scale, figure, markdown


class Passes(trio.abc.Instrument):
    """Notes how long each scheduling pass lasts while `noting`."""

    def __init__(self) -> None:
        self.noting = False
        self.began = 0.0
        self.seconds: list[float] = []

    def after_io_wait(self, timeout: float) -> None:
        self.began = time.perf_counter()

    def before_io_wait(self, timeout: float) -> None:
        if self.noting:
            self.seconds.append(time.perf_counter() - self.began)


async def handler(stream: trio.abc.Stream) -> None:
    """Reads and forgets."""
    async for _ in stream:
        pass


async def sockets(count: int, idle: float, parks: bool) -> dict[str, float]:
    """Real TCP connections, both ends in this process, opened within one epoch."""
    passes = Passes()
    trio.lowlevel.add_instrument(passes)
    clients = []
    async with (
        reaper.trio.open_reaper(tick=1.0) as r,
        r.parking_lot(handler, idle, parks=parks) as lot,
    ):
        with socket.create_server(("127.0.0.1", 0), backlog=4096) as listening:
            for _ in range(count):
                clients.append(socket.create_connection(listening.getsockname()))
                lot.add(listening.accept()[0])
        await trio.sleep(idle / 2)
        passes.noting, began = True, time.perf_counter()
        while len(lot) == count:
            began = time.perf_counter()
            await trio.sleep(0.005)
        while len(lot):
            await trio.sleep(0.005)
        took = time.perf_counter() - began
    for client in clients:
        client.close()
    return _summary(passes, count, took)


async def tasks(count: int, idle: float, watched: bool) -> dict[str, float]:
    """A task each, without sockets, inside `watch()`, or else `move_on_after`: what is
    left is the ending.
    """
    passes = Passes()
    trio.lowlevel.add_instrument(passes)
    deadline = trio.current_time() + 2 * idle  # of those that are not watched: one instant for all
    begun, ended = list[Any](), list[None]()
    async with reaper.trio.open_reaper(tick=1.0) as r, trio.open_nursery() as nursery:

        async def body() -> None:
            if watched:
                with r.watch(None, idle=idle) as connection:
                    begun.append(connection)
                    await trio.sleep(
                        math.inf
                    )  # not sleep_forever: what follows is reached, for a reap is swallowed
            else:
                with trio.move_on_at(deadline):
                    begun.append(None)
                    await trio.sleep_forever()
            ended.append(None)

        for index in range(count):
            nursery.start_soon(body)
            if index % 1000 == 0:
                await trio.lowlevel.checkpoint()
        while len(begun) < count:
            await trio.sleep(0.1)
        for connection in begun if watched else ():
            connection.touch()
        await trio.sleep(idle / 4)
        passes.noting, began = True, time.perf_counter()
        while not ended:
            began = time.perf_counter()
            await trio.sleep(0.01)
        while len(ended) < count:
            await trio.sleep(0.01)
        took = time.perf_counter() - began
    return _summary(passes, count, took)


def _summary(passes: Passes, count: int, took: float) -> dict[str, float]:
    ordered = sorted(passes.seconds)
    return {
        "connections": count,
        "all_gone_s": took,
        "passes": len(ordered),
        "p99_ms": ordered[(len(ordered) - 1) * 99 // 100] * 1e3,
        "worst_ms": ordered[-1] * 1e3,
    }


def run(scale: Scale, note: Note) -> dict[str, Any]:
    """`results[kind]`: the passes from before the first reap to after the last, ms."""
    hard = raise_descriptor_limit()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    count = min(by_scale(scale, 50, 1_000, 9_000), (hard - 200) // 2)
    idle = by_scale(scale, 0.5, 1.0, 3.0)
    many, long = by_scale(scale, (200, 0.5), (5_000, 2.0), (100_000, 20.0))
    results = {}
    for name, parks in (("sockets, parked", True), ("sockets, a task each", False)):
        note(f"{count:,} {name}")
        results[name] = trio.run(sockets, count, idle, parks)
    for name, watched in (
        ("tasks without sockets", True),
        ("the same by `trio.move_on_at`", False),
    ):
        note(f"{many:,} {name}")
        results[name] = trio.run(tasks, many, long, watched)
    return {"results": results}


def table(found: dict[str, Any]) -> str:
    """One row per kind."""
    rows = [
        [
            name,
            f"{each['connections']:,}",
            figure(each["p99_ms"]),
            figure(each["worst_ms"]),
            figure(each["all_gone_s"]),
        ]
        for name, each in found["results"].items()
    ]
    return markdown(
        ["scheduling passes", "connections", "p99, ms", "worst, ms", "all closed in, s"], rows
    )
