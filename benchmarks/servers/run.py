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

from ..common import Note, Scale, by_scale, figure, markdown, ratios, spread, times
from .apps import PATH
from .process import KINDS, Server, installed, running, without_their_tool

BUSY = 50
"""Connections that ask again and again."""
OURS = ("ours-parked",)
OURS_ECHO = ("ours-echo-parked",)


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
    not_run = without_their_tool(only or KINDS)
    if installed("wrk") is None:
        not_run["wrk"] = "wrk is not installed"
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
            for each, value in figures.items():
                found.setdefault(name, {}).setdefault(each, []).append(value)
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
    names: Sequence[str], busy: dict[str, list[float]], wrk: dict[str, dict[str, list[float]]]
) -> dict[str, dict[str, Any]]:
    """Ours / theirs, of cost, round by round; HTTP with HTTP, echo with echo."""
    found: dict[str, dict[str, Any]] = {}
    for theirs in names:
        for ours in OURS_ECHO if KINDS[theirs].echo else OURS:
            if ours not in names or theirs in OURS + OURS_ECHO:
                continue
            ratio = {"cpu": ratios(busy[ours], busy[theirs])}
            if ours in wrk and theirs in wrk:
                ratio["wrk_time"] = ratios(wrk[theirs]["requests_per_second"], wrk[ours]["requests_per_second"])
            found.setdefault(theirs, {})[ours] = ratio
    return found


def table(found: dict[str, Any]) -> str:
    """A row per server; how ours compare with it."""
    rows = []
    for name, each in found["results"].items():
        wrk = each.get("wrk")
        shown = (wrk["requests_per_second"]["median"], wrk["latency_ms_p99"]["median"]) if wrk else (None, None)
        ratio = found["ratios"].get(name, {})
        ours = [times(ratio[who]["cpu"]) if who in ratio else "" for who in (OURS_ECHO if KINDS[name].echo else OURS)]
        about = f"**{KINDS[name].about}**" if name in OURS + OURS_ECHO else KINDS[name].about
        rows.append([about, figure(each["cpu_us"]["median"]), *ours, *(figure(value) for value in shown)])
    head = ["", "CPU us per request", "ours / it", "wrk: requests per s", "p99, ms"]
    said = [f"NOT RUN: {name}: {why}." for name, why in found["not_run"].items()]
    return "\n\n".join([markdown(head, rows), *said])
