"""Many lifetimes through real servers: the load generator judges every close, and nothing may grow.

One rule: *flat is measured after the same load*: each round plays the same plan, is followed by the same quiet, and is
compared with the rounds at the beginning.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from ..interop.tools import metrics
from ..serving import ROOT, Server, example, serving
from .trials import Outcome, Say

ROUNDS = ((600, 18_000), (120, 10_000), (0, 2_000))
"""From how many seconds on, so many connections per round; an hour's campaign plays a million lifetimes."""
SHARE = {"echo": 1, "http": 6}
"""One worker answers so many times fewer clients: a saturated server is late, and that is no growth."""
GROWTH_BYTES = 4 << 20
"""That one worker may grow by after its first rounds: what the allocator keeps differs from round to round."""

PLANS = {
    "echo": ["--mix", "silent=40,chatty=20,leave=30,mute=10"],
    "http": ["--protocol", "http", "--mix", "silent=40,chatty=20,leave=30,mute=10"],
}


def lifetimes(kind: str, folder: Path, seconds: float, say: Say) -> Outcome:
    """Rounds of connections against one server of *kind* until *seconds* have passed."""
    figures: dict[str, Any] = {"lifetimes": 0, "reaps": 0, "early": 0, "late": 0, "missed": 0, "false": 0}
    failures: list[str] = []
    sizes: list[int] = []
    descriptors: list[int] = []
    leases: list[float] = []
    connections = next(count for least, count in ROUNDS if seconds > least) // SHARE[kind]
    flags = ["--idle", "2s", "--keep-alive", "2s", "--first-byte", "2s", "--tick", "500ms", "--max-requests", "100000"]
    with serving(example(kind, "--workers", "1", *flags), folder / f"{kind}.log", session=True) as server:
        until = time.monotonic() + seconds
        count = doubtful = 0
        while count < 3 or time.monotonic() < until:
            count += 1
            report = played(server, kind, connections, folder / f"{kind}.json")
            figures["lifetimes"] += report["connections"]["established"]
            figures["reaps"] += report["reaps"]["observed"]
            for name in ("early", "late", "missed", "false"):
                figures[name] += report["reaps"][name]
            if report["verdict"] == "fail":
                failures.append(f"round {count}: {'; '.join(report['reasons'])}")
            doubtful += report["verdict"] == "inconclusive"
            time.sleep(4.0)  # longer than any timeout: every connection has ended
            worker = psutil.Process(server.pid).children()[0]
            sizes.append(worker.memory_info().rss)
            descriptors.append(worker.num_fds())
            if kind == "http":
                leases.append(metrics(server.address)["reaper_leases"])
            say(f"{figures['lifetimes']:,} lifetimes, {sizes[-1] / 1e6:.1f} MB, {descriptors[-1]} descriptors")
    began, ended = statistics.median(sizes[1:3]), statistics.median(sizes[-3:])
    figures["rounds"] = count
    if doubtful:  # the load generator itself was too late, on a machine that does other things
        figures["rounds not judged"] = doubtful
    if 2 * doubtful > count:
        failures.append(f"{doubtful} of {count} rounds could not be judged: {'; '.join(report['reasons'])}")
    figures["memory after the first rounds, MB"] = round(began / 1e6, 1)
    figures["memory after the last rounds, MB"] = round(ended / 1e6, 1)
    figures["descriptors, first and last"] = f"{descriptors[0]}, {descriptors[-1]}"
    if leases:
        figures["leases, first and last"] = f"{leases[0]:.0f}, {leases[-1]:.0f}"
        if leases[-1] > leases[0]:
            failures.append(f"leases grew from {leases[0]:.0f} to {leases[-1]:.0f}")
    if ended > began + GROWTH_BYTES:
        failures.append(f"memory grew by {(ended - began) / 1e6:.1f} MB in {count} rounds")
    if descriptors[-1] > descriptors[0]:
        failures.append(f"descriptors grew from {descriptors[0]} to {descriptors[-1]}")
    return Outcome(not failures, figures, failures)


def played(server: Server, kind: str, connections: int, report: Path) -> dict[str, Any]:
    """One round: the load generator's report."""
    command = [sys.executable, "-m", "loadgen", "run", "--target", server.target, "--connections", str(connections)]
    command += ["--timeout", "2s", "--tick", "500ms", "--duration", "6s", "--connect-rate", "2000", "--quiet"]
    done = subprocess.run(
        [*command, *PLANS[kind], "--report", str(report)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"the load generator ended with status {done.returncode}: {done.stderr[-300:]}")
    found: dict[str, Any] = json.loads(report.read_text())
    return found
