"""What a connect, an exchange, a close and doing nothing cost the example server and the load generator, in CPU time.

    python -m benchmarks.exchange [--connections 12000] [--processes 12] [--json FILE]

Parked echo connections, as many workers as client processes. All are silent in the first run: connects, closes, and
what the processes use while nothing happens. In the others half of them speak, each at its own instant, and all
together with a beat: the difference is the exchanges'. What a plan of `make demo` reckons with (`scripts/limits.py`)
is from here.

One rule: *counts are the plan's and times are the scheduler's*. Nothing is timed on the wall, so that a neighbour
disturbs the caches and nothing else.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from loadgen.units import parse_count
from scripts.serving import ROOT, Server, example, serving, tree

from .common import machine

TIMEOUT = 40.0
RATE = 3000
BEAT = TIMEOUT / 100
MEAN_GAP = 0.35 * TIMEOUT  # of a chatty client
BEGUN = 100
"""Sockets of the machine, more than before, by which the opening has begun."""
REST = 1.5
"""Seconds kept clear of the edges of each part."""


def used(pid: int) -> float:
    """Seconds of CPU of *pid* and all that came from it, and that still run."""
    total = 0
    for each in tree(pid):
        with suppress(OSError):
            total += int(Path(f"/proc/{each}/schedstat").read_text().split()[0])
    return total / 1e9


def sockets() -> int:
    """TCP sockets in use on this machine."""
    found = re.search(r"TCP: inuse (\d+)", Path("/proc/net/sockstat").read_text())
    return int(found[1]) if found else 0


def most_open(server: Server) -> int:
    """How many connections it says are open, at the most so far."""
    return max(map(int, re.findall(r"^open (\d+)", server.said(), re.MULTILINE)), default=0)


class Used(NamedTuple):
    """Seconds of CPU of both sides, kernel included, in each part of a run, and how many seconds that took."""

    opening: tuple[float, float]
    holding: tuple[float, float]
    closing: tuple[float, float]
    held: float
    closed: float


def run(connections: int, processes: int, mix: str, beat: float = 0.0) -> Used:
    """Drive the server with *mix* and read what both sides used.

    Raises:
        RuntimeError: the load generator ended before its time, or was too slow.
    """
    load = [sys.executable, "-m", "loadgen", "run", "--connections", str(connections), "--connect-rate", str(RATE)]
    load += f"--timeout {TIMEOUT:g}s --tick 1s --duration {1.25 * TIMEOUT:g}s --mix {mix}".split()
    load += f"--processes {processes} --seed 1 --quiet --beat {beat * 1e3:g}ms".split()
    flags = f"--idle {TIMEOUT:g}s --tick 1s --workers {processes} --connections {connections}"
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(example("echo", *flags.split()), Path(folder) / "log") as server,
        subprocess.Popen([*load, "--target", server.target], cwd=ROOT, stdout=subprocess.DEVNULL) as clients,
    ):
        try:
            before = sockets()
            while sockets() < before + BEGUN and clients.poll() is None:
                time.sleep(0.005)
            began = time.monotonic()
            opened = began + connections / RATE
            marks = [(began, used(server.pid), used(clients.pid))]
            for instant in (opened + REST, began + TIMEOUT - REST, opened + TIMEOUT + 2 * REST):
                time.sleep(max(instant - time.monotonic(), 0.0))
                if clients.poll() is not None:
                    raise RuntimeError(f"the load generator ended with status {clients.returncode}")
                marks.append((time.monotonic(), used(server.pid), used(clients.pid)))
            if most_open(server) < connections:
                raise RuntimeError(f"only {most_open(server):,} connections were open at once")
        finally:
            clients.terminate()
    opening, holding, closing = ((after[1] - before[1], after[2] - before[2]) for before, after in pairwise(marks))
    return Used(opening, holding, closing, marks[2][0] - marks[1][0], marks[3][0] - marks[2][0])


def measure(connections: int, processes: int) -> dict[str, dict[str, float]]:
    """What each costs -> side -> seconds of CPU; of `resting` the share of a processor per process."""
    silent = run(connections, processes, "silent=99,drip=1")  # a run ends with its last client
    pace = connections / 2 / MEAN_GAP
    found: dict[str, dict[str, float]] = {}
    exchanging = {"exchange": 0.0, "exchange, together": BEAT}
    speaking = {name: run(connections, processes, "silent=50,chatty=50", beat) for name, beat in exchanging.items()}
    for column, side in enumerate(("server", "clients")):
        resting = silent.holding[column] / silent.held
        figures = {"connect": silent.opening[column] / connections}
        for name, spoke in speaking.items():
            figures[name] = (spoke.holding[column] / spoke.held - resting) / pace
        figures["close"] = (silent.closing[column] - resting * silent.closed) / connections
        figures["resting"] = resting / processes
        for name, value in figures.items():
            found.setdefault(name, {})[side] = value
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.exchange", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--connections", type=parse_count, default=12_000, metavar="N")
    parser.add_argument("--processes", type=parse_count, default=12, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here as well")
    options = parser.parse_args(arguments)
    results = measure(options.connections, options.processes)
    for name, sides in results.items():
        shown = {
            side: f"{value:.2%}" if name == "resting" else f"{value * 1e6:.0f} us" for side, value in sides.items()
        }
        print(f"{name:<20}" + "".join(f"{side:>9} {text:>7}" for side, text in shown.items()))
    if options.json:
        document = {"schema": "reaper-exchange/1", "machine": machine(), "results": results}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
