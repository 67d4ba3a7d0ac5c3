"""The loop's worst pause while 100,000 connections with a task each fall due in one instant. No sockets: the reaping.

    python benchmarks/mass_cancel.py [--connections 100000] [--default-gc]

Every connection is a task inside `watch()`. All are touched at once, so all fall due at once. An instrument notes how
long each scheduling pass lasts. The collector is on, tuned as in `server_example/workers.py` unless told otherwise.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).parent.parent))

from reaper.trio import open_reaper


class Passes(trio.abc.Instrument):
    """Notes the length of scheduling passes while `noting`."""

    def __init__(self) -> None:
        self.noting = False
        self.began = 0.0
        self.seconds: list[float] = []

    def after_io_wait(self, timeout: float) -> None:
        self.began = time.perf_counter()

    def before_io_wait(self, timeout: float) -> None:
        if self.noting:
            self.seconds.append(time.perf_counter() - self.began)


async def main(connections: int) -> None:
    """Open, touch all, wait for the end, print."""
    passes = Passes()
    trio.lowlevel.add_instrument(passes)
    watched = []
    ended = 0
    async with open_reaper(tick=1.0) as r, trio.open_nursery() as nursery:

        async def body() -> None:
            nonlocal ended
            with r.watch(None, idle=20) as connection:
                watched.append(connection)
                await trio.sleep_forever()
            ended += 1

        for index in range(connections):
            nursery.start_soon(body)
            if index % 1000 == 0:
                await trio.lowlevel.checkpoint()
        while len(watched) < connections:
            await trio.sleep(0.1)
        for connection in watched:
            connection.touch()
        await trio.sleep(2)
        passes.noting = True
        first = None
        while ended < connections:
            await trio.sleep(0.01)
            if ended and first is None:
                first = time.perf_counter()
        elapsed = time.perf_counter() - (first or 0.0)
    seconds = sorted(passes.seconds)
    print(
        f"{connections} connections fell due in one instant: all ended in {elapsed:.2f} s, {len(seconds)} passes, "
        f"p99 {seconds[len(seconds) * 99 // 100] * 1e3:.1f} ms, worst {seconds[-1] * 1e3:.1f} ms"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=100_000, metavar="N")
    parser.add_argument("--default-gc", action="store_true", help="the collector's usual thresholds")
    options = parser.parse_args()
    if not options.default_gc:
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)
    trio.run(main, options.connections)
