"""The longest pause of a server's loop with as many connections as a process may have descriptors.

    python -m benchmarks.servers.pauses [--connections 18000] [--tasks 100000] [--only NAMES] [--json FILE]

One rule: *whatever falls due or speaks, all of it does so at once*. All clients connect as fast as they can, then all
speak in one instant, then all are silent and fall due together. They are in a process of their own. Next to the time on
the wall stands the CPU time of the same pass: what is long on the wall only, the machine took away. The collector is
tuned as `open_reaper(tame_gc=True)` does it, and a pause of the collector is a pause.

- `echo parked`: no task while silent. `echo watched`: a task each, `serve_tcp`. `http parked`: the example server.
- `tasks`: a task each inside `watch()`, without sockets.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import select
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from multiprocessing.connection import Connection as Pipe
from typing import Any

import trio

import reaper.trio
from loadgen.plan.capacity import raise_descriptor_limit
from reaper.config import ReaperConfig
from reaper.driver import tamed_collector

from ..common import machine
from .command import at_least, chosen, flags, room_for, show
from .process import REQUEST

CONNECTIONS, TASKS = 18_000, 100_000
IDLE = 6.0
"""Seconds of silence allowed, at least; more where so many speak that it takes longer."""
SPOKEN_PER_SECOND = 1000
"""What any server here answers, however busy the machine."""
SOURCES = 12_000
"""Clients per source address: more of them and connect(2) searches for ports."""
GOAL_MS = 50.0


class Passes(trio.abc.Instrument):
    """How long each scheduling pass lasted, on the wall and of CPU, since it was last asked."""

    def __init__(self) -> None:
        self._began = self._used = 0
        self.milliseconds: list[tuple[float, float]] = []

    def after_io_wait(self, timeout: float) -> None:
        self._began, self._used = time.perf_counter_ns(), time.thread_time_ns()

    def before_io_wait(self, timeout: float) -> None:
        if self._began:
            wall, used = time.perf_counter_ns() - self._began, time.thread_time_ns() - self._used
            self.milliseconds.append((wall / 1e6, used / 1e6))

    def told(self) -> dict[str, float]:
        """Of the passes since it was last asked."""
        passes, self.milliseconds = self.milliseconds, []
        walls, used = sorted(wall for wall, _ in passes), sorted(used for _, used in passes)
        return {
            "passes": len(passes),
            "p99_ms": walls[(len(walls) - 1) * 99 // 100],
            "worst_ms": walls[-1],
            "worst_cpu_ms": used[-1],
        }


async def echo(stream: trio.abc.Stream) -> None:
    """The handler."""
    try:
        while data := await stream.receive_some(4096):
            await stream.send_all(data)
    except trio.BrokenResourceError:
        pass


@asynccontextmanager
async def echo_parked(idle: float) -> AsyncIterator[tuple[int, Callable[[], int]]]:
    """The port, and how many are open."""
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as listening:
        async with (
            reaper.trio.open_reaper() as r,
            r.parking_lot(echo, idle) as lot,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(reaper.trio.accepting.accept, listening, lot.add)
            yield listening.getsockname()[1], lambda: len(lot)
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def echo_watched(idle: float) -> AsyncIterator[tuple[int, Callable[[], int]]]:
    """The port, and how many are open."""
    open_now = 0

    async def counted(stream: trio.abc.Stream) -> None:
        nonlocal open_now
        open_now += 1
        try:
            await echo(stream)
        finally:
            open_now -= 1

    async with trio.open_nursery() as nursery:
        serve = partial(reaper.trio.serve_tcp, counted, 0, idle=idle, host="127.0.0.1", backlog=4096)
        listeners = await nursery.start(serve)
        yield listeners[0].socket.getsockname()[1], lambda: open_now
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def http_parked(idle: float) -> AsyncIterator[tuple[int, Callable[[], int]]]:
    """The port, and how many are open."""
    from server_example.http import HttpServer

    overrides = {"timeouts.keep_alive": idle, "timeouts.first_byte": 600, "limits.max_connections": 10**6}
    config = ReaperConfig.load(environ={}, overrides=overrides)
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as listening:
        async with reaper.trio.open_reaper(config) as r, trio.open_nursery() as nursery:
            server = HttpServer(config, r)
            async with server.parking():
                nursery.start_soon(reaper.trio.accepting.accept, listening, server.admitting(nursery))
                yield listening.getsockname()[1], lambda: server.open
                nursery.cancel_scope.cancel()


SERVERS = {"echo parked": echo_parked, "echo watched": echo_watched, "http parked": http_parked}
NAMES = (*SERVERS, "tasks")


async def sockets(name: str, count: int, idle: float) -> dict[str, dict[str, float]]:
    """The passes while all connect, while all speak, and while all fall due."""
    passes = Passes()
    ours, theirs = multiprocessing.Pipe()
    client = multiprocessing.get_context("spawn").Process(target=clients, args=(theirs,), daemon=True)
    client.start()
    theirs.close()  # so that a client that dies is noticed
    told = {}
    try:
        async with SERVERS[name](idle) as (port, open_now):
            trio.lowlevel.add_instrument(passes)
            ours.send((port, count))
            await _answer(ours)
            told["connect"] = passes.told()
            ours.send("speak")
            await _answer(ours)
            told["all speak"] = passes.told()
            await trio.sleep(idle / 3)
            passes.told()
            while open_now():
                await trio.sleep(0.01)
            told["all due"] = passes.told()
            trio.lowlevel.remove_instrument(passes)
            ours.send("end")
            await _answer(ours)
    finally:
        client.terminate()
        client.join()
    return told


async def _answer(pipe: Pipe) -> None:
    await trio.lowlevel.wait_readable(pipe.fileno())
    said = pipe.recv()
    if said != "done":
        raise RuntimeError(said)


def clients(pipe: Pipe) -> None:
    """Connect, speak and read the answers, all at once; said what to do by *pipe*."""
    raise_descriptor_limit()
    port, count = pipe.recv()
    dialled = []
    for number in range(count):
        one = socket.socket()
        one.bind((f"127.0.3.{1 + number // SOURCES}", 0))
        one.connect(("127.0.0.1", port))
        dialled.append(one)
    pipe.send("done")
    pipe.recv()
    poller = select.epoll()
    for one in dialled:
        one.setblocking(False)
        poller.register(one.fileno(), select.EPOLLIN | select.EPOLLONESHOT)
    for one in dialled:
        one.send(REQUEST)
    answered = 0
    until = time.monotonic() + 60
    while answered < count and time.monotonic() < until:
        answered += len(poller.poll(1.0, 4096))
    pipe.send("done" if answered == count else f"{answered} of {count} clients were answered within 60 s")
    pipe.recv()
    pipe.send("done")


async def tasks(count: int, idle: float) -> dict[str, dict[str, float]]:
    """The passes while as many tasks without sockets fall due in one instant."""
    passes = Passes()
    living = 0
    watched = []
    async with reaper.trio.open_reaper() as r, trio.open_nursery() as nursery:

        async def body() -> None:
            nonlocal living
            with r.watch(None, idle=600) as connection:
                watched.append(connection)
                living += 1
                await trio.sleep(math.inf)  # not sleep_forever: a reap is swallowed
            living -= 1

        for index in range(count):
            nursery.start_soon(body)
            if index % 1000 == 0:
                await trio.lowlevel.checkpoint()
        while living < count:
            await trio.sleep(0.1)
        for index, connection in enumerate(watched):
            connection.retime(idle)
            if index % 1000 == 0:
                await trio.lowlevel.checkpoint()
        for connection in watched:
            connection.touch()
        watched.clear()
        await trio.sleep(idle / 4)
        trio.lowlevel.add_instrument(passes)
        while living:
            await trio.sleep(0.01)
        trio.lowlevel.remove_instrument(passes)
    return {"all due": passes.told()}


def run(
    connections: int,
    many: int,
    note: Callable[[str], None],
    *,
    only: Sequence[str] = NAMES,
    idle: float = IDLE,
) -> dict[str, Any]:
    """`results[name][what]`: passes, p99_ms, worst_ms, worst_cpu_ms.

    Raises:
        RuntimeError: more connections than a process may have descriptors, or clients that were not answered.
    """
    room_for(connections, "connections")
    results: dict[str, Any] = {}
    for name in only:
        note(f"{many if name == 'tasks' else connections:,}: {name}")
        with tamed_collector():
            if name == "tasks":
                results[name] = trio.run(tasks, many, max(idle, many / 5000))
            else:
                results[name] = trio.run(sockets, name, connections, max(idle, connections / SPOKEN_PER_SECOND))
    return {"machine": machine(), "connections": connections, "tasks": many, "results": results}


def table(report: dict[str, Any]) -> str:
    """One line per server and event."""
    lines = [f"{'':14}{'':12}{'passes':>9}{'p99 ms':>9}{'worst ms':>10}{'of CPU':>9}"]
    for name, each in report["results"].items():
        for what, found in each.items():
            lines.append(
                f"{name:14}{what:12}{found['passes']:9,}{found['p99_ms']:9.2f}{found['worst_ms']:10.1f}"
                f"{found['worst_cpu_ms']:9.1f}"
            )
    worst = max(found["worst_ms"] for each in report["results"].values() for found in each.values())
    lines.append(f"longest pass {worst:.1f} ms (goal {GOAL_MS:g})")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, and write everything if asked. Exit status 0; 1 if it cannot; 2 for bad
    arguments; 130 for Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.servers.pauses", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--connections", type=int, default=CONNECTIONS, metavar="N", help=f"default {CONNECTIONS}")
    parser.add_argument("--tasks", type=int, default=TASKS, metavar="N", help=f"default {TASKS}")
    flags(parser, NAMES, NAMES)
    options = parser.parse_args(arguments)
    only = chosen(parser, options.only, NAMES)
    connections, many = options.connections, options.tasks
    at_least(parser, 1, {"--connections": connections, "--tasks": many})
    return show(lambda note: run(connections, many, note, only=only), table, options.json)


if __name__ == "__main__":
    sys.exit(main())
