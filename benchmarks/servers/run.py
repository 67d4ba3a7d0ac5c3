"""What a request costs on a busy server: ours, and others with the same answer, asked
by wrk.

*The server's CPU time is what is compared, not the clock on the wall*: a client that
shares the machine is then not in the figure. All servers run at once, each in a process
of its own, and are asked in turn, round by round.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.tools import Missing, tool

from ..common import Note, Scale, by_scale, figure, markdown, ratios, spread, times
from .apps import PATH
from .process import BUSY, KINDS, Server, not_here, running

OURS = "ours-parked"


def run(
    scale: Scale, note: Note, rounds: int = 0, only: Sequence[str] = tuple(KINDS)
) -> dict[str, Any]:
    """`results[server]`: cpu_us per request, and what wrk says; `ratios[theirs][ours]`:
    of CPU; `not_run`: name -> why.

    Raises:
        RuntimeError: A server does not answer correctly.
    """
    try:
        tool("wrk")
    except Missing as missing:
        return {"absent": str(missing)}
    rounds = rounds or by_scale(scale, 1, 2, 9)
    not_run = not_here(only)
    names = [name for name in only if name not in not_run]
    taken: dict[str, dict[str, list[float]]] = {name: {} for name in names}
    with tempfile.TemporaryDirectory(prefix="reaper-servers-") as folder:
        note(f"starting {', '.join(names)}")
        with running(names, 4 * BUSY, Path(folder)) as servers:
            for turn in range(rounds):
                note(f"round {turn + 1} of {rounds}")
                first = turn % len(names)
                for name in names[first:] + names[:first]:
                    for measure, value in asked(servers[name]).items():
                        taken[name].setdefault(measure, []).append(value)
    compared: dict[str, dict[str, Any]] = {}
    for name in names:
        ours, theirs = (name, stock) if (stock := KINDS[name].stock) else (OURS, name)
        if ours in names and theirs in names and ours != theirs:
            compared.setdefault(theirs, {})[ours] = ratios(
                taken[ours]["cpu_us"], taken[theirs]["cpu_us"]
            )
    results = {
        name: {measure: spread(each) for measure, each in found.items()}
        for name, found in taken.items()
    }
    return {
        "rounds": rounds,
        "busy": BUSY,
        "results": results,
        "ratios": compared,
        "not_run": not_run,
    }


def asked(server: Server, seconds: int = 1) -> dict[str, float]:
    """What wrk finds in so many *seconds*, and the server's CPU per request."""
    command = [
        tool("wrk"),
        "-t1",
        f"-c{BUSY}",
        f"-d{seconds}s",
        "--latency",
        f"http://127.0.0.1:{server.port}{PATH}",
    ]
    used = server.cpu_ns()
    found = read_wrk(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return {"cpu_us": (server.cpu_ns() - used) / 1000 / found.pop("requests"), **found}


def read_wrk(text: str) -> dict[str, float]:
    """Read the figures that wrk prints. Raises ValueError: one is missing, or an answer
    failed.
    """
    if "Non-2xx" in text or "Socket errors" in text:
        raise ValueError(f"wrk met errors: {text}")
    requests = re.search(r"^\s*(\d+) requests in ", text, re.MULTILINE)
    rate = re.search(r"^Requests/sec:\s+([\d.]+)", text, re.MULTILINE)
    latency = re.search(r"^\s+99%\s+([\d.]+)(us|ms|s)\s*$", text, re.MULTILINE)
    if requests is None or rate is None or latency is None:
        raise ValueError(f"this is not what wrk prints: {text}")
    p99 = float(latency[1]) * {"us": 1e-3, "ms": 1.0, "s": 1e3}[latency[2]]
    return {
        "requests": float(requests[1]),
        "requests_per_second": float(rate[1]),
        "latency_ms_p99": p99,
    }


def table(found: dict[str, Any]) -> str:
    """A row per server; how ours compare with it."""
    rows = []
    for name, each in found["results"].items():
        kind, compared = KINDS[name], found["ratios"]
        ours, stock = compared.get(name, {}).get(OURS), compared.get(kind.stock, {}).get(name)
        ratio = f"{times(stock)} of stock" if stock else f"ours {times(ours)}" if ours else ""
        shown = [
            figure(each[measure]["median"])
            for measure in ("cpu_us", "requests_per_second", "latency_ms_p99")
        ]
        rows.append(
            [f"**{kind.about}**" if name == OURS else kind.about, shown[0], ratio, *shown[1:]]
        )
    head = ["", "CPU us per request", "compared, of its CPU", "requests per s", "p99, ms"]
    said = [f"NOT RUN: {name}: {why}." for name, why in found["not_run"].items()]
    return "\n\n".join([markdown(head, rows), *said])
