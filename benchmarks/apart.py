"""What an exchange costs where every client acts at its own instant, and what is the
machine's part.

    python -m benchmarks.apart [--connections N] [--beat DURATION] [--timeout DURATION]

The same clients of the load generator, all of whom talk and none of whom is closed,
meet two servers in turn: our parked echo, and `peers/bare.py`, which does nothing but
read and write. With a beat clients act together, and a process that is woken finds many
sockets to read; without one it is woken for one packet, and finds nothing cached. The
bare peer has a timer in each process, which does nothing: how late that comes is the
least that a close can be late on this machine. The CPU is that of the server's
processes from the first connection to the last answer, per exchange. It takes minutes,
so `run` leaves it out.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil

from loadgen.cli_options import COUNT, DURATION_OR_0, option
from scripts.limits import Machine, make_plan
from scripts.serving import example, load, serving, tree

from .common import ROOT, figure, markdown

SERVERS = ("bare", "parked")


def measure(server: str, connections: int, beat: float, timeout: float, out: Path) -> list[str]:
    """A row of the table: *connections* clients of *server*, who act at multiples of
    *beat*.
    """
    plan = make_plan(connections, Machine.here().descriptors)
    limit = timeout or plan.timeout
    if server == "bare":
        command = [sys.executable, "-m", "benchmarks.peers.bare", str(plan.workers)]
    else:
        flags = f"--idle {limit}s --vanished {max(60, limit)}s --connections {connections}"
        command = example("echo", *flags.split(), "--workers", str(plan.workers))
    report = out / "report.json"
    with serving(command, out / f"{server}.log") as started:
        flags = (
            f"--connections {connections} --connect-rate {plan.rate} --timeout {limit}s "
            f"--duration {2 * limit}s --mix chatty=100 --beat {beat * 1e3:g}ms --quiet"
        )
        subprocess.run(
            load(started.target, flags, "--report", str(report)),
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            check=False,
        )
        times = [psutil.Process(pid).cpu_times() for pid in tree(started.pid)]
    timers = [
        json.loads(line)
        for line in (out / f"{server}.log").read_text().splitlines()
        if line.startswith('{"timers"')
    ]
    said: dict[str, Any] = json.loads(report.read_text())
    if said["verdict"] != "pass":
        print(f"{server}: the load generator says {said['verdict']}", file=sys.stderr)
    done = said["actions"]["answered"]
    user, system = sum(each.user for each in times), sum(each.system for each in times)
    late, lag = said["latency_s"], said["loadgen"]["lag_s"]
    return [
        "**parked echo**" if server == "parked" else "read and write, no more",
        f"{done:,}",
        figure((user + system) / done * 1e6),
        figure(user / done * 1e6),
        f"{figure(late['p50'] * 1e3)}, {figure(late['p99'] * 1e3)}",
        f"{figure(lag['p99'] * 1e3)}, {figure(lag['max'] * 1e3)}",
        timers_said(timers),
    ]


def timers_said(timers: list[dict[str, Any]]) -> str:
    """How many of the timers of all processes came more than a second late, and the
    latest.
    """
    if not timers:
        return "-"
    due, late = sum(each["timers"] for each in timers), sum(each["late"] for each in timers)
    latest = max(each["latest_s"] for each in timers)
    return f"{late:,} of {due:,} ({late / max(due, 1):.2%}), {figure(latest * 1e3)}"


def main() -> int:
    """Measure both, and print the table. Exit status 0."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option(parser, "--connections", COUNT, "how many clients; default 100000", 100_000)
    option(
        parser, "--beat", DURATION_OR_0, "clients act at multiples of this; default 0: apart", 0.0
    )
    option(parser, "--timeout", DURATION_OR_0, "of the parked echo; default: the demo's", 0.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        rows = [
            measure(server, options.connections, options.beat, options.timeout, Path(scratch))
            for server in SERVERS
        ]
    head = [
        f"{options.connections:,} clients, beat {options.beat:g} s",
        "exchanges",
        "CPU us each",
        "of it user",
        "answers p50, p99, ms",
        "clients' own lag p99, max, ms",
        "timers over 1 s late; the latest, ms",
    ]
    print(markdown(head, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
