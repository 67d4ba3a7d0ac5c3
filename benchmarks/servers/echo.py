"""An echo server with the reaper and without, and without once more: real sockets, one process, interleaved rounds.

    python -m benchmarks.servers.echo [--quick] [--count]

`plain` is `trio.serve_tcp`, as are all but `serve_tcp(idle=30)`, which is `reaper.trio.serve_tcp`; `watched()` is
`trio.serve_tcp` with a handler wrapped by `TrioReaper.watched`. How far `plain, again` is from 1.00 is the error of the
others. `--count` counts instructions and system calls instead (`exchanges.py`): that no neighbour can disturb.

One rule: what is compared is the server's CPU time a request, for that is where the reaper could hide; the time on the
wall, which the client shares, is reported next to it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import sys
import time
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection as Pipe
from typing import Any

import trio

import reaper.trio

from ..common import Note, Scale, by_scale, ratios, spread
from . import exchanges
from .handlers import echo_move_on, echo_touching

KINDS = exchanges.COMPARED
IDLE = 30.0
DATA = b"x" * 64


async def echo(stream: trio.abc.Stream) -> None:
    """The handler."""
    while data := await stream.receive_some(4096):
        await stream.send_all(data)


async def echo_again(stream: trio.abc.Stream) -> None:
    """The same; a function of its own, because CPython specialises code by what it has seen."""
    while data := await stream.receive_some(4096):
        await stream.send_all(data)


async def echo_under_serve(stream: reaper.trio.streams.WatchedSocket) -> None:
    """The same, given a stream that touches by itself."""
    while data := await stream.receive_some(4096):
        await stream.send_all(data)


async def echo_watched(stream: trio.abc.Stream) -> None:
    """The same, given a stream around trio's that touches by itself."""
    while data := await stream.receive_some(4096):
        await stream.send_all(data)


def run(scale: Scale, note: Note) -> dict[str, Any]:
    """`results[kind]`: cpu_ns and wall_ns a request, and round by round their ratios to the plain handler."""
    connections, turns, rounds = by_scale(scale, (5, 10, 3), (20, 40, 25), (50, 40, 101))
    cpu, wall = trio.run(_measure, connections, turns, rounds, note)
    return {
        "results": {
            kind: {
                "cpu_ns": spread(cpu[kind]),
                "wall_ns": spread(wall[kind]),
                "cpu_to_plain": ratios(cpu[kind], cpu["plain"]),
                "wall_to_plain": ratios(wall[kind], wall["plain"]),
            }
            for kind in KINDS
        },
        "connections": connections,
        "requests_a_round": connections * turns,
        "rounds": rounds,
    }


async def _measure(
    connections: int, turns: int, rounds: int, note: Note
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    cpu: dict[str, list[float]] = {kind: [] for kind in KINDS}
    wall: dict[str, list[float]] = {kind: [] for kind in KINDS}
    async with reaper.trio.open_reaper(tick=1.0) as r, trio.open_nursery() as nursery:
        servers = (
            partial(trio.serve_tcp, echo),
            partial(trio.serve_tcp, echo_again),
            partial(reaper.trio.serve_tcp, echo_under_serve, idle=IDLE, tick=1.0),
            partial(trio.serve_tcp, r.watched(echo_watched, IDLE)),
            partial(trio.serve_tcp, partial(echo_touching, IDLE, r)),
            partial(trio.serve_tcp, partial(echo_move_on, IDLE)),
        )
        ports = []
        for serve in servers:
            listeners = await nursery.start(partial(serve, port=0, host="127.0.0.1"))
            ports.append(listeners[0].socket.getsockname()[1])
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        client = multiprocessing.get_context("spawn").Process(target=_client, args=(theirs, ports, connections, turns))
        client.start()
        theirs.close()  # so that a client that dies is noticed
        try:
            await _answer(ours)  # all are connected
            for turn in range(-1, rounds):  # the first round warms up
                note(f"echo, {len(KINDS)} servers: round {max(turn, 0) + 1} of {rounds}")
                first = turn % len(KINDS)
                for index in [*range(first, len(KINDS)), *range(first)]:
                    used, began = time.process_time_ns(), time.perf_counter_ns()
                    ours.send(index)
                    await _answer(ours)
                    used, took = time.process_time_ns() - used, time.perf_counter_ns() - began
                    if turn >= 0:
                        cpu[KINDS[index]].append(used / (connections * turns))
                        wall[KINDS[index]].append(took / (connections * turns))
            ours.send(None)
        finally:
            client.join(10)
            client.terminate()
            nursery.cancel_scope.cancel()
    return cpu, wall


async def _answer(pipe: Pipe) -> None:
    await trio.lowlevel.wait_readable(pipe.fileno())
    pipe.recv()


def _client(pipe: Pipe, ports: list[int], connections: int, turns: int) -> None:
    """Sends on all connections of one server, then reads them all, *turns* times; told which server by *pipe*."""
    dialled = [[socket.create_connection(("127.0.0.1", port)) for _ in range(connections)] for port in ports]
    pipe.send("ready")
    while (index := pipe.recv()) is not None:
        for _ in range(turns):
            for one in dialled[index]:
                one.sendall(DATA)
            for one in dialled[index]:
                received = 0
                while received < len(DATA):
                    received += len(one.recv(4096))
        pipe.send("done")
    for group in dialled:
        for one in group:
            one.close()


def table(report: dict[str, Any]) -> str:
    """One line per kind: CPU per request, and its ratio to the plain server round by round."""
    lines = [f"{'':22}{'cpu us/request':>16}{'/ plain':>9}{'p10':>8}{'p90':>8}{'wall / plain':>14}"]
    for kind, found in report["results"].items():
        ratio = found["cpu_to_plain"]
        lines.append(
            f"{kind:22}{found['cpu_ns']['median'] / 1e3:16.2f}{ratio['median']:9.3f}{ratio['p10']:8.3f}"
            f"{ratio['p90']:8.3f}{found['wall_to_plain']['median']:14.3f}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print the table. Exit status 0; 2 for bad arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.servers.echo", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="a quarter of the rounds")
    parser.add_argument("--count", action="store_true", help="count instructions and calls (needs valgrind and strace)")
    options = parser.parse_args(arguments)
    if options.count:
        return exchanges.main(exchanges.ECHOES)
    print(table(run("quick" if options.quick else "full", lambda text: None)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
