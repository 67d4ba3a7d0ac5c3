"""What thousands of keep-alive clients cost that come all at once: after a deploy, or a reconnect storm.

    python -m benchmarks.servers.burst [--clients 4000,12000] [--only NAMES] [--json FILE]

One rule: *the same burst for every server, in one run*. Each client connects as soon as the one before has, asks once
and falls silent; the server's memory is looked at before the first and when all have been silent for a while, and then
some are asked again, to see that they are still there.

- `bytes_per_idle_connection`: resident memory afterwards, less that of before, per client.
- `peak_bytes_per_connection`: the most it was meanwhile, likewise.
- `cpu_us`: server CPU per client, for its connection and its one request.
- `busy`: server CPU per request at 50 busy clients, ours parked / ours with a task each, round by round.
"""

from __future__ import annotations

import argparse
import select
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loadgen.drive.connecting import IP_BIND_ADDRESS_NO_PORT

from ..common import machine, ratios, spread
from .command import chosen, flags, room_for, show
from .process import KINDS, REQUEST, Certificate, Server, running, without_their_tool
from .run import BUSY, WARM_UP, Size, busy_rounds

BURSTS = (4000, 12_000)
SERVERS = ("ours-parked", "ours", "nginx", "hypercorn", "uvicorn", "aiohttp")
IN_FLIGHT = 256
"""Clients that wait for the kernel or for their answer: fewer than any server's backlog holds."""
PATIENCE = 60.0
SILENCE = 5.0
"""Seconds from the last answer to the look at memory."""
ROUNDS = 15
REQUESTS = 3000


def run(
    bursts: Sequence[int],
    note: Callable[[str], None],
    *,
    only: Sequence[str] = SERVERS,
    silence: float = SILENCE,
    rounds: int = ROUNDS,
) -> dict[str, Any]:
    """`results[server][clients]` and `busy`; a server whose tool is missing is named under `not_run`.

    Raises:
        RuntimeError: A server does not answer correctly, or not all of its clients.
    """
    not_run = without_their_tool(only)
    names = [name for name in only if name not in not_run]
    results: dict[str, dict[str, Any]] = {name: {} for name in names}
    room_for(max(bursts), "clients")
    for number, clients in enumerate(bursts):
        for name in names:
            note(f"{clients:,} clients at once: {name}")
            # A fresh server per burst: what one burst leaves behind would hide the next.
            with tempfile.TemporaryDirectory(prefix="reaper-burst-") as folder, one(name, clients, folder) as server:
                results[name][str(clients)] = burst(server, clients, f"127.0.2.{number + 1}", silence)
    pair = [name for name in ("ours", "ours-parked") if name in names]
    busy: dict[str, Any] = {}
    if len(pair) == 2:
        size = Size(0, 0.0, REQUESTS, rounds, 0)
        with (
            tempfile.TemporaryDirectory(prefix="reaper-burst-") as folder,
            running(pair, 2 * BUSY, Path(folder)) as servers,
        ):
            found = busy_rounds(servers, size, note)
        busy = {name: spread(each) for name, each in found.items()}
        busy["parked / not"] = ratios(found["ours-parked"], found["ours"])
    return {"machine": machine(), "results": results, "busy": busy, "silence_s": silence, "not_run": not_run}


@contextmanager
def one(name: str, clients: int, folder: str, tls: Certificate | None = None) -> Iterator[Server]:
    """That server alone, warm: what it needs once is no connection's share."""
    with running([name], clients + 2 * BUSY, Path(folder), tls) as servers:
        server = servers[name]
        warm = [server.dial() for _ in range(BUSY)]
        for _ in range(WARM_UP):
            server.ask(warm)
        for client in warm:
            client.close()
        time.sleep(1.0)  # while it tidies up after them
        yield server


def burst(server: Server, clients: int, source: str, silence: float) -> dict[str, float]:
    """Let *clients* come from *source* at once, and look at the server when they have been silent for *silence* s."""
    empty, used, began = server.rss(), server.cpu_ns(), time.monotonic()
    held, peak = connect(server, clients, source)
    took = time.monotonic() - began
    time.sleep(silence)
    used, full = server.cpu_ns() - used, server.rss()
    server.ask(held[:BUSY])
    server.ask(held[-BUSY:])
    for client in held:
        client.close()
    return {
        "bytes_per_idle_connection": (full - empty) / clients,
        "peak_bytes_per_connection": (max(peak, full) - empty) / clients,
        "cpu_us": used / 1000 / clients,
        "seconds": took,
        "rss_empty_bytes": empty,
    }


def connect(server: Server, clients: int, source: str) -> tuple[list[socket.socket], int]:
    """Connect all, ask once on each and read the answers. Returns the connections and the server's peak memory."""
    poller = select.epoll()
    waiting: dict[int, socket.socket] = {}
    answers: dict[int, bytes] = {}
    done: list[socket.socket] = []
    begun = peak = 0
    until = time.monotonic() + PATIENCE
    looked = 0.0
    while len(done) < clients:
        while begun < clients and len(waiting) < IN_FLIGHT:
            client = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            # The port is chosen at connect, where those that linger in TIME_WAIT to another server do not count.
            client.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
            client.bind((source, 0))
            client.connect(("127.0.0.1", server.port))  # the kernel accepts into the backlog: this does not wait
            client.sendall(REQUEST)
            waiting[client.fileno()] = client
            poller.register(client.fileno(), select.EPOLLIN)
            begun += 1
        for fd, _ in poller.poll(1.0):
            data = waiting[fd].recv(4096)
            if not data:
                raise RuntimeError(f"{server.name} hung up on a client of a burst")
            answers[fd] = answers.get(fd, b"") + data
            if server.is_whole(answers[fd]):
                poller.unregister(fd)
                del answers[fd]
                done.append(waiting.pop(fd))
        now = time.monotonic()
        if now - looked > 0.05:
            looked, peak = now, max(peak, server.rss())
        if now > until:
            raise RuntimeError(f"{server.name} answered {len(done)} of {clients} clients within {PATIENCE:g} s")
    poller.close()
    return done, peak


def table(report: dict[str, Any]) -> str:
    """One line per server and burst, and the pair at work."""
    lines = [f"{'':14}{'clients':>9}{'bytes/idle':>12}{'at peak':>10}{'cpu us':>9}{'seconds':>9}"]
    for name, each in report["results"].items():
        for clients, found in each.items():
            lines.append(
                f"{name:14}{int(clients):9,}{found['bytes_per_idle_connection']:12,.0f}"
                f"{found['peak_bytes_per_connection']:10,.0f}{found['cpu_us']:9.1f}{found['seconds']:9.2f}"
            )
    if report["busy"]:
        ratio = report["busy"]["parked / not"]
        lines.append(
            f"cpu per request at {BUSY} busy clients, parked / a task each: "
            f"{ratio['median']:.3f} ({ratio['p10']:.3f} to {ratio['p90']:.3f})"
        )
    lines += [f"NOT RUN: {name}: {why}" for name, why in report["not_run"].items()]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print the table, and write everything if asked. Exit status 0; 1 if it cannot; 2 for bad
    arguments; 130 for Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.servers.burst", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--clients", default=",".join(map(str, BURSTS)), metavar="N,N", help="default 4000,12000")
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N", help=f"of busy clients; default {ROUNDS}")
    flags(parser, KINDS, SERVERS)
    options = parser.parse_args(arguments)
    only = chosen(parser, options.only, KINDS)
    words = options.clients.split(",")
    for word in words:
        if not word.isdecimal() or int(word) < BUSY:
            parser.error(f"--clients {word}: must be a whole number >= {BUSY}")
    bursts = [int(word) for word in words]
    return show(lambda note: run(bursts, note, only=only, rounds=options.rounds), table, options.json)


if __name__ == "__main__":
    sys.exit(main())
