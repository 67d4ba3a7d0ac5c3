"""What an idle connection costs, and a request on a busy one: our servers, and others with the same answer.

    python -m benchmarks.servers.run [--quick] [--only NAMES] [--connections N] [--json FILE]

One rule: *the server's CPU time is what counts, not the clock on the wall*: a client that shares the machine is then
not in the figure. All servers run at once, each in a process of its own, and are asked in turn, round by round, by the
same client; a server that is not asked sleeps.

- `bytes_per_idle_connection`: each of many connections asks once and falls silent; resident memory of the server when
  all have been silent for a while, against that before the first, when the server has answered some others; and the
  same for each quarter of them.
- `cpu_us`: server CPU per request, with some connections that ask again and again, one request in flight each.
- `wrk`: what wrk makes of it, where that is installed: requests a second of wall time and the CPU of each.

Ratios are ours / theirs, of cost: below one is better for us.
"""

from __future__ import annotations

import argparse
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..common import machine, ratios, spread
from .apps import PATH
from .command import at_least, chosen, descriptors, flags, show
from .process import KINDS, Server, installed, running, without_their_tool

BUSY = 50
"""Connections that ask again and again."""
WARM_UP = 5
"""Requests on each of them before anything is measured."""
RATE = 400
"""Connections a second that come to a server, at most: few enough for those before them to have fallen silent."""
QUARTERS = 4

OURS = ("ours", "ours-parked")
OURS_ECHO = ("ours-echo", "ours-echo-parked")


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    connections: int  # idle ones, of each server
    silence: float  # seconds
    requests: int  # a round and server
    rounds: int
    wrk_rounds: int  # of one second each


LEAST_US = 0.1
"""Taken where a server's clock shows nothing for a few requests: the kernel books what was used with some delay."""

TINY = Size(40, 0.2, 400, 2, 0)
QUICK = Size(200, 1.0, 1_000, 3, 1)
FULL = Size(1_800, 3.0, 3_000, 9, 5)


def run(
    quick: bool, note: Callable[[str], None], *, size: Size | None = None, only: Sequence[str] | None = None
) -> dict[str, Any]:
    """Compare all servers; those that cannot be run are named under `not_run`.

    Args:
        quick: Small: some 20 s instead of some three minutes.
        note: Called with what is being done.
        size: Instead of what *quick* chooses.
        only: Names of `KINDS` instead of all.
    Returns:
        machine, servers (name -> what it is), results, ratios (theirs -> ours -> bytes, cpu, wrk), not_run.
    Raises:
        RuntimeError: A server does not answer correctly.
    """
    size = size or (QUICK if quick else FULL)
    not_run = without_their_tool(only or KINDS)
    if installed("wrk") is None:
        not_run["wrk"] = "wrk is not installed"
    for name, why in not_run.items():
        note(f"{name} NOT RUN: {why}")
    names = [name for name in only or KINDS if name not in not_run]
    most = descriptors()  # of which every server inherits as many
    with tempfile.TemporaryDirectory(prefix="reaper-servers-") as folder:
        note(f"starting {', '.join(names)}")
        with running(names, size.connections + 2 * BUSY, Path(folder)) as servers:
            memory = idle_memory(servers, size, max(1, most // size.connections), note)
            busy = busy_rounds(servers, size, note)
            http = {name: server for name, server in servers.items() if not server.echo}
            wrk = wrk_rounds({} if "wrk" in not_run else http, size, note)
    results: dict[str, Any] = {}
    for name in names:
        results[name] = memory[name] | {
            "cpu_us": spread(busy[name]),
            "requests_per_cpu_second": spread([1e6 / max(each, LEAST_US) for each in busy[name]]),
        }
        if name in wrk:
            results[name]["wrk"] = {figure: spread(samples) for figure, samples in wrk[name].items()}
    return {
        "machine": machine(),
        "servers": {name: KINDS[name].about for name in names},
        "size": vars(size) | {"busy": BUSY},
        "results": results,
        "ratios": _compared(results, busy, wrk),
        "not_run": not_run,
    }


def idle_memory(
    servers: dict[str, Server], size: Size, at_once: int, note: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """Resident bytes an idle connection, as many servers at a time as this process has descriptors for."""
    found = {}
    names = list(servers)
    # What a server needs once, for its first burst, is no connection's share: two megabytes of ours is such.
    for server in servers.values():
        with ExitStack() as stack:
            clients = [stack.enter_context(server.dial()) for _ in range(BUSY)]
            for _ in range(WARM_UP):
                server.ask(clients)
    for first in range(0, len(names), at_once):
        group = [servers[name] for name in names[first : first + at_once]]
        time.sleep(size.silence)
        points = {server.name: [server.rss()] for server in group}
        with ExitStack() as stack:
            idle: dict[str, list[socket.socket]] = {server.name: [] for server in group}
            for quarter in range(1, QUARTERS + 1):
                count = size.connections * quarter // QUARTERS
                note(f"idle memory: {count:,} connections each to {len(group)} servers")
                _open(group, idle, count, stack)
                time.sleep(size.silence)
                for server in group:
                    points[server.name].append(server.rss())
            for server in group:
                server.ask(idle[server.name][:BUSY])  # they are all still there
        for name, (empty, *filled) in points.items():
            steps = [after - before for before, after in zip([empty, *filled], filled, strict=False)]
            found[name] = {
                "bytes_per_idle_connection": (filled[-1] - empty) / size.connections,
                "bytes_by_quarter": [step * QUARTERS / size.connections for step in steps],
                "rss_empty_bytes": empty,
            }
        time.sleep(min(size.silence, 1.0))  # while they tidy up after so many
    return found


def _open(group: Sequence[Server], clients: dict[str, list[socket.socket]], count: int, stack: ExitStack) -> None:
    start, before = time.monotonic(), len(clients[group[0].name])
    for index in range(before, count):
        for server in group:
            client = stack.enter_context(server.dial())
            server.ask([client])
            clients[server.name].append(client)
        time.sleep(max(0.0, start + (index - before) / RATE - time.monotonic()))


def busy_rounds(servers: dict[str, Server], size: Size, note: Callable[[str], None]) -> dict[str, list[float]]:
    """Microseconds of server CPU per request, a sample a round."""
    found: dict[str, list[float]] = {name: [] for name in servers}
    with ExitStack() as stack:
        clients = {name: [stack.enter_context(server.dial()) for _ in range(BUSY)] for name, server in servers.items()}
        for turn in range(size.rounds):
            note(f"busy connections: round {turn + 1} of {size.rounds}")
            for name in _rotated(servers, turn):
                server, each = servers[name], clients[name]
                server.ask(each)  # not counted: the others had the caches until now
                asked = max(1, size.requests // BUSY)
                used = server.cpu_ns()
                for _ in range(asked):
                    server.ask(each)
                found[name].append((server.cpu_ns() - used) / 1000 / (asked * BUSY))
    return found


def wrk_rounds(
    servers: dict[str, Server], size: Size, note: Callable[[str], None]
) -> dict[str, dict[str, list[float]]]:
    """What wrk finds: requests per second, the median and the 99th percentile of latency, CPU per request."""
    found: dict[str, dict[str, list[float]]] = {}
    for turn in range(size.wrk_rounds):
        note(f"wrk: round {turn + 1} of {size.wrk_rounds}")
        for name in _rotated(servers, turn):
            server = servers[name]
            command = [installed("wrk") or "wrk", "-t1", f"-c{BUSY}", "-d1s", "--latency"]
            used = server.cpu_ns()
            done = subprocess.run(
                [*command, f"http://127.0.0.1:{server.port}{PATH}"], capture_output=True, text=True, check=True
            )
            figures = read_wrk(done.stdout)
            figures["cpu_us"] = (server.cpu_ns() - used) / 1000 / figures.pop("requests")
            for figure, value in figures.items():
                found.setdefault(name, {}).setdefault(figure, []).append(value)
    return found


def read_wrk(text: str) -> dict[str, float]:
    """The figures in what wrk prints. ValueError if one is missing, or if an answer was an error."""
    if "Non-2xx" in text or "Socket errors" in text:
        raise ValueError(f"wrk met errors: {text}")
    requests = re.search(r"^\s*(\d+) requests in ", text, re.MULTILINE)
    rate = re.search(r"^Requests/sec:\s+([\d.]+)", text, re.MULTILINE)
    latency = {at: re.search(rf"^\s+{at}%\s+([\d.]+)(us|ms|s)$", text, re.MULTILINE) for at in (50, 99)}
    if requests is None or rate is None:
        raise ValueError(f"this is not what wrk prints: {text}")
    figures = {"requests": float(requests[1]), "requests_per_second": float(rate[1])}
    for at, match in latency.items():
        if match is None:
            raise ValueError(f"wrk reported no {at} % latency: {text}")
        figures[f"latency_ms_p{at}"] = float(match[1]) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[match[2]]
    return figures


def _rotated(servers: dict[str, Server], turn: int) -> list[str]:
    """All of them, in an order that begins with another one each time."""
    names = list(servers)
    first = turn % max(1, len(names))
    return names[first:] + names[:first]


def _compared(
    results: dict[str, Any], busy: dict[str, list[float]], wrk: dict[str, dict[str, list[float]]]
) -> dict[str, dict[str, Any]]:
    """Ours / theirs, of cost, round by round; HTTP with HTTP, echo with echo."""
    found: dict[str, dict[str, Any]] = {}
    for theirs in results:
        echo = KINDS[theirs].echo
        for ours in OURS_ECHO if echo else OURS:
            if ours not in results or theirs in OURS + OURS_ECHO:
                continue
            mine, other = results[ours], results[theirs]
            ratio: dict[str, Any] = {"cpu": ratios(busy[ours], busy[theirs])}
            if other["bytes_per_idle_connection"] > 0:
                ratio["bytes"] = mine["bytes_per_idle_connection"] / other["bytes_per_idle_connection"]
            if ours in wrk and theirs in wrk:
                ratio["wrk_cpu"] = ratios(wrk[ours]["cpu_us"], wrk[theirs]["cpu_us"])
                ratio["wrk_time"] = ratios(wrk[theirs]["requests_per_second"], wrk[ours]["requests_per_second"])
            found.setdefault(theirs, {})[ours] = ratio
    return found


def table(report: dict[str, Any]) -> str:
    """The medians, one line per server, and the ratios."""
    lines = [f"{'':18}{'bytes/idle':>11}{'empty MiB':>11}{'cpu us/request':>16}{'wrk requests/s':>16}{'p99 ms':>9}"]
    for name, found in report["results"].items():
        wrk = found.get("wrk")
        rate = f"{wrk['requests_per_second']['median']:16,.0f}{wrk['latency_ms_p99']['median']:9.2f}" if wrk else ""
        lines.append(
            f"{name:18}{found['bytes_per_idle_connection']:11,.0f}{found['rss_empty_bytes'] / 2**20:11.1f}"
            f"{found['cpu_us']['median']:16.1f}{rate}"
        )
    lines.append("")
    lines.append(f"{'ours / theirs':38}{'bytes':>8}{'cpu':>8}{'p10':>8}{'p90':>8}{'wrk time':>10}")
    for theirs, each in report["ratios"].items():
        for ours, ratio in each.items():
            cpu, wrk = ratio["cpu"], ratio.get("wrk_time")
            size = f"{ratio['bytes']:8.3f}" if "bytes" in ratio else f"{'-':>8}"
            lines.append(
                f"{ours + ' / ' + theirs:38}{size}{cpu['median']:8.3f}{cpu['p10']:8.3f}{cpu['p90']:8.3f}"
                + (f"{wrk['median']:10.3f}" if wrk else "")
            )
    lines += [f"NOT RUN: {name}: {why}" for name, why in report["not_run"].items()]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print the medians, and write everything if asked. Exit status 0; 1 if it cannot; 2 for bad
    arguments; 130 for Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.servers.run", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="small: does it run?")
    parser.add_argument("--connections", type=int, metavar="N", help="idle ones of each server")
    flags(parser, KINDS)
    options = parser.parse_args(arguments)
    only = chosen(parser, options.only, KINDS) if options.only else None
    size = QUICK if options.quick else FULL
    if options.connections is not None:
        at_least(parser, QUARTERS, {"--connections": options.connections})
        size = replace(size, connections=options.connections)
    return show(lambda note: run(options.quick, note, size=size, only=only), table, options.json)


if __name__ == "__main__":
    sys.exit(main())
