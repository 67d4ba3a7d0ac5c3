"""What a request costs on a busy server: ours, and others with the same answer.

*The server's CPU time is what counts, not the clock on the wall*: a client that shares the machine is then not in the
figure. All servers run at once, each in a process of its own, and are asked in turn, round by round, by one client.
`cpu_us` is server CPU per request with some connections that ask again and again; `wrk` what wrk makes of it, where it
is installed. Ratios are ours / theirs, of cost: below one is better for us.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from scripts.tools import Missing, tool

from ..common import Note, Scale, by_scale, figure, markdown, ratios, spread, times
from .apps import PATH
from .process import KINDS, Server, not_here, running

BUSY = 50
"""Connections that ask again and again."""
OURS = {False: "ours-parked", True: "ours-echo-parked"}
"""Whether it echoes -> ours."""


class Size(NamedTuple):
    """How much is measured."""

    requests: int  # a round and server
    rounds: int
    wrk_rounds: int  # of one second each


def run(scale: Scale, note: Note, size: Size | None = None, only: Sequence[str] | None = None) -> dict[str, Any]:
    """`results[server]`: cpu_us, wrk; `ratios[theirs][ours]`: cpu, wrk_time; `not_run`: name -> why.

    Raises:
        RuntimeError: A server does not answer correctly.
    """
    size = size or by_scale(scale, Size(400, 2, 0), Size(1_000, 3, 1), Size(3_000, 9, 5))
    not_run = not_here(only or KINDS)
    try:
        tool("wrk")
    except Missing as missing:
        not_run["wrk"] = str(missing)
    names = [name for name in only or KINDS if name not in not_run]
    with tempfile.TemporaryDirectory(prefix="reaper-servers-") as folder:
        note(f"starting {', '.join(names)}")
        with running(names, 4 * BUSY, Path(folder)) as servers:
            busy = busy_rounds(servers, size, note)
            http = {name: server for name, server in servers.items() if not server.echo}
            wrk = wrk_rounds({} if "wrk" in not_run else http, size, note)
    results: dict[str, Any] = {name: {"cpu_us": spread(busy[name])} for name in names}
    for name, found in wrk.items():
        results[name]["wrk"] = {each: spread(samples) for each, samples in found.items()}
    return {
        "size": size._asdict() | {"busy": BUSY},
        "results": results,
        "ratios": _compared(names, busy, wrk),
        "not_run": not_run,
    }


def busy_rounds(servers: dict[str, Server], size: Size, note: Note) -> dict[str, list[float]]:
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


def wrk_rounds(servers: dict[str, Server], size: Size, note: Note) -> dict[str, dict[str, list[float]]]:
    """What wrk finds: requests per second, the 99th percentile of latency, CPU per request."""
    found: dict[str, dict[str, list[float]]] = {}
    for turn in range(size.wrk_rounds):
        note(f"wrk: round {turn + 1} of {size.wrk_rounds}")
        for name in _rotated(servers, turn):
            server = servers[name]
            command = [tool("wrk"), "-t1", f"-c{BUSY}", "-d1s", "--latency"]
            used = server.cpu_ns()
            done = subprocess.run(
                [*command, f"http://127.0.0.1:{server.port}{PATH}"], capture_output=True, text=True, check=True
            )
            figures = read_wrk(done.stdout)
            figures["cpu_us"] = (server.cpu_ns() - used) / 1000 / figures.pop("requests")
            for each, value in figures.items():
                found.setdefault(name, {}).setdefault(each, []).append(value)
    return found


def read_wrk(text: str) -> dict[str, float]:
    """The figures in what wrk prints. ValueError if one is missing, or if an answer was an error."""
    if "Non-2xx" in text or "Socket errors" in text:
        raise ValueError(f"wrk met errors: {text}")
    requests = re.search(r"^\s*(\d+) requests in ", text, re.MULTILINE)
    rate = re.search(r"^Requests/sec:\s+([\d.]+)", text, re.MULTILINE)
    latency = re.search(r"^\s+99%\s+([\d.]+)(us|ms|s)$", text, re.MULTILINE)
    if requests is None or rate is None or latency is None:
        raise ValueError(f"this is not what wrk prints: {text}")
    p99 = float(latency[1]) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[latency[2]]
    return {"requests": float(requests[1]), "requests_per_second": float(rate[1]), "latency_ms_p99": p99}


def _rotated(servers: dict[str, Server], turn: int) -> list[str]:
    """All of them, in an order that begins with another one each time."""
    names = list(servers)
    first = turn % max(1, len(names))
    return names[first:] + names[:first]


def _compared(
    names: Sequence[str], busy: dict[str, list[float]], wrk: dict[str, dict[str, list[float]]]
) -> dict[str, dict[str, Any]]:
    """Ratios of cost, round by round: ours to all others', HTTP with HTTP; and each guarded server to the stock one."""
    found: dict[str, dict[str, Any]] = {}
    pairs = [(OURS[KINDS[name].echo], name) for name in names if not KINDS[name].stock]
    pairs += [(name, KINDS[name].stock) for name in names if KINDS[name].stock]
    for ours, theirs in pairs:
        if ours in names and theirs in names and ours != theirs:
            ratio = found.setdefault(theirs, {}).setdefault(ours, {"cpu": ratios(busy[ours], busy[theirs])})
            if ours in wrk and theirs in wrk:
                ratio["wrk_time"] = ratios(wrk[theirs]["requests_per_second"], wrk[ours]["requests_per_second"])
    return found


def table(found: dict[str, Any]) -> str:
    """A row per server; how ours compare with it."""
    rows = []
    for name, each in found["results"].items():
        wrk, kind = each.get("wrk"), KINDS[name]
        shown = (wrk["requests_per_second"]["median"], wrk["latency_ms_p99"]["median"]) if wrk else (None, None)
        ours = found["ratios"].get(name, {}).get(OURS[kind.echo])
        stock = found["ratios"].get(kind.stock, {}).get(name)
        about = f"**{kind.about}**" if name.startswith("ours") else kind.about
        ratio = f"{times(stock['cpu'])} of stock" if stock else f"ours {times(ours['cpu'])}" if ours else ""
        rows.append([about, figure(each["cpu_us"]["median"]), ratio, *(figure(value) for value in shown)])
    head = ["", "CPU us per request", "compared, of its CPU", "wrk: requests per s", "p99, ms"]
    said = [f"NOT RUN: {name}: {why}." for name, why in found["not_run"].items()]
    return "\n\n".join([markdown(head, rows), *said])
