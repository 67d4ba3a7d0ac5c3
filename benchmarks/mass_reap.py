"""The loop's worst pause while everybody falls due in one instant: parked connections, and connections with a task.

    python benchmarks/mass_reap.py [--connections 9000] [--idle 3s]

Real TCP connections on loopback, both ends in this process (two descriptors each), opened within one epoch so that all
are due together. A task that wakes every millisecond notes how late it is. The garbage collector is off while that is
noted, as `--gc` undoes: its pauses grow with the objects of the whole program, not with what the reaper does.
"""

from __future__ import annotations

import argparse
import functools
import gc
import resource
import socket
import sys
import time

import trio

import reaper.trio
from reaper.durations import parse_duration


async def handler(stream: trio.abc.Stream) -> None:
    """Reads and forgets."""
    async for _ in stream:
        pass


async def probe(worst: list[float]) -> None:
    """Note the longest pause between two looks at the clock that are to be a millisecond apart."""
    while True:
        before = time.perf_counter()
        await trio.sleep(0.001)
        worst[0] = max(worst[0], time.perf_counter() - before - 0.001)


async def measure(count: int, idle: float, *, parks: bool) -> tuple[float, float, float]:
    """(worst pause, seconds from the first reap to the last, CPU of the reaper's task)"""
    worst = [0.0]
    clients = []
    async with reaper.trio.open_reaper(tick=1.0) as r, r.parking_lot(handler, idle, parks=parks) as lot:
        with socket.create_server(("127.0.0.1", 0), backlog=4096) as listening:
            for _ in range(count):
                clients.append(socket.create_connection(listening.getsockname()))
                lot.add(listening.accept()[0])
        await trio.sleep(idle / 2)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(probe, worst)
            while len(lot) == count:
                await trio.sleep(0.005)
            start = time.perf_counter()
            while len(lot):
                await trio.sleep(0.005)
            took = time.perf_counter() - start
            nursery.cancel_scope.cancel()
        cpu = r.statistics().cpu
    for client in clients:
        client.close()
    return worst[0], took, cpu


def main() -> int:
    """Measure both and print a line each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, default=9000)
    parser.add_argument("--idle", default="3s")
    parser.add_argument("--gc", action="store_true", help="leave the garbage collector on")
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if not arguments.gc:
        gc.disable()
    for name, parks in (("parked", True), ("a task each", False)):
        run = functools.partial(measure, arguments.connections, parse_duration(arguments.idle), parks=parks)
        worst, took, cpu = trio.run(run)
        print(
            f"{name:12} {arguments.connections} due at once: worst pause {worst * 1e3:.1f} ms, "
            f"all gone in {took:.2f} s, reaper {cpu / arguments.connections * 1e6:.1f} us CPU each"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
