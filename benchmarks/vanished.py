"""What `vanished` costs for connections that are silent, beside the same server without
it.

Four servers at once, so that the machine's moods meet all of them: `vanished` on and
off, each with `idle = 60s` and with `idle = 10m`. Where the limit is a minute, every
client speaks at the beginning of a round and is silent for the rest of it; where it is
ten minutes, nobody ever speaks. The figure is the CPU time of the server's process,
which carries the packets of both ends of a connection: a keep-alive and its answer are
in it.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import psutil

import reaper.asyncio
from loadgen.plan.capacity import raise_descriptor_limit
from reaper.config import ReaperConfig
from scripts.serving import serving

from .common import Note, Scale, by_scale, figure, markdown, spread

GOALS = {"60s": 0.1, "10m": 0.3}
"""By `idle`: microseconds a second and connection."""
CONNECTED = 2.0
"""Seconds after the clients have spoken that are not measured."""


class Echo(asyncio.Protocol):
    """Sends back what comes."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


async def serve(address: str, idle: str, vanished: str) -> None:
    """The server: an echo whose connections are guarded."""
    raise_descriptor_limit()
    config = ReaperConfig.load(
        environ={}, overrides={"timeouts.idle": idle, "timeouts.vanished": vanished}
    )
    loop = asyncio.get_running_loop()
    async with reaper.asyncio.open_reaper(config) as r:
        factory = reaper.asyncio.guard(Echo, reaper=r)
        server = await loop.create_server(factory, address, 0, backlog=4096)
        host, port = server.sockets[0].getsockname()
        print(f"listening on {host}:{port}", flush=True)
        await server.serve_forever()


def hold(host: str, port: int, count: int) -> None:
    """The clients: they connect, and each speaks once for every line that is read."""
    raise_descriptor_limit()
    clients = [socket.create_connection((host, port)) for _ in range(count)]
    print("ready", flush=True)
    for _ in sys.stdin:
        for client in clients:
            client.send(b"x")
        for client in clients:
            if client.recv(1) != b"x":
                raise RuntimeError("the server has closed a client that spoke in time")
        print("spoke", flush=True)


class Site:
    """A server and its clients."""

    def __init__(self, stack: ExitStack, folder: Path, idle: str, after: str, count: int) -> None:
        name = f"{idle}-{after}"
        me = [sys.executable, "-m", "benchmarks.vanished"]
        # An address of its own: a port at the clients' end for each.
        address = f"127.0.3.{len(list(folder.iterdir())) + 1}"
        server = stack.enter_context(serving([*me, "serve", address, idle, after], folder / name))
        self.process = psutil.Process(server.pid)
        self.clients = stack.enter_context(
            Popen(
                [*me, "hold", server.host, str(server.port), str(count)],
                stdin=PIPE,
                stdout=PIPE,
                text=True,
            )
        )
        stack.callback(self.clients.kill)
        self.told("ready")

    def told(self, word: str) -> None:
        """Wait until the clients have said *word*."""
        assert self.clients.stdout is not None
        if self.clients.stdout.readline() != f"{word}\n":
            raise RuntimeError(f"the clients ended before they were {word}")

    def speak(self) -> None:
        """Have every client speak, and hear."""
        assert self.clients.stdin is not None
        self.clients.stdin.write("\n")
        self.clients.stdin.flush()
        self.told("spoke")

    def cpu(self) -> float:
        """CPU seconds that the server has used."""
        used = self.process.cpu_times()
        return float(used.user + used.system)


def run(scale: Scale, note: Note) -> dict[str, Any]:
    """Microseconds a second and connection: of each server, and what `vanished`
    adds.
    """
    count, after, rounds = by_scale(scale, (100, 3, 1), (2_000, 15, 2), (12_000, 60, 4))
    # A busy machine may keep clients from speaking within three seconds.
    idles = by_scale(scale, ("10m",), ("10m", "60s"), ("10m", "60s"))
    quiet = after * 0.75
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        note(f"{count:,} connections to each of four servers, vanished {after} s")
        sites = {}
        for idle in idles:
            for on in (f"{after}s", "0s"):
                limit = f"{after}s" if idle == "60s" else idle
                sites[idle, on] = Site(stack, Path(scratch), limit, on, count)
            if idle == "10m":
                time.sleep(after)  # the first questions set the keep-alives up
        added: dict[str, list[float]] = {idle: [] for idle in idles}
        bare: dict[str, list[float]] = {idle: [] for idle in idles}
        for number in range(rounds):
            note(f"round {number + 1} of {rounds}: {after} s of silence")
            for (idle, _), site in sites.items():
                if idle == "60s":
                    site.speak()
            time.sleep(min(CONNECTED, after / 10))
            begun = time.monotonic()
            before = {key: site.cpu() for key, site in sites.items()}
            time.sleep(quiet)
            seconds = time.monotonic() - begun
            used = {
                key: (site.cpu() - before[key]) * 1e6 / seconds / count
                for key, site in sites.items()
            }
            for idle in idles:
                added[idle].append(used[idle, f"{after}s"] - used[idle, "0s"])
                bare[idle].append(used[idle, "0s"])
    return {
        "connections": count,
        "vanished_s": after,
        "results": {
            idle: {"added_us": spread(added[idle]), "bare_us": spread(bare[idle])} for idle in idles
        },
    }


def table(found: dict[str, Any]) -> str:
    """What `vanished` adds, next to what the server takes without it."""
    rows = []
    for idle, each in found["results"].items():
        added = each["added_us"]
        rows.append(
            [
                f"`idle = {idle}`",
                figure(max(each["bare_us"]["median"], 0.0)),
                f"{added['median']:.3f} ({added['min']:.3f} to {added['max']:.3f})",
                f"{GOALS[idle]:g}",
            ]
        )
    head = [
        f"{found['connections']:,} silent connections, us a second and connection",
        "without `vanished`",
        f"`vanished = {found['vanished_s']}s` adds",
        "goal",
    ]
    return markdown(head, rows)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        asyncio.run(serve(*sys.argv[2:]))
    else:
        hold(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
