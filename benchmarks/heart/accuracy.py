"""How late a close is, and that none is early: the load generator's judge, on virtual time and on real sockets.

*Lateness is counted from the last byte plus the timeout, by code that does not ask the reaper.*
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from scripts.serving import example, serving

from ..common import ROOT, Note, Scale, by_scale, figure, markdown

WANTED = ("connections", "reaps", "lateness_s", "verdict", "elapsed_s")


def run(scale: Scale, note: Note) -> dict[str, Any]:
    """`simulated` and `real`: what the load generator reports."""
    n, long = by_scale(scale, (200, "3m"), (2_000, "10m"), (50_000, "30m"))
    real, timeout, short = by_scale(scale, (40, "1s", "3s"), (200, "2s", "6s"), (3_000, "3s", "15s"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        note("python -m loadgen simulate")
        plan = ["simulate", "--connections", f"{n}", "--duration", long, "--timeout", "30s", "--stalls", "10"]
        simulated = report(plan, folder / "simulated.json")
        note("python -m loadgen run against python -m server_example echo")
        with serving(example("echo", "--idle", timeout, "--workers", "1"), folder / "server.log") as server:
            plan = ["run", "--target", server.target, "--connections", f"{real}", "--timeout", timeout]
            found = report([*plan, "--duration", short], folder / "real.json")
    return {"simulated": {"duration": long, **simulated}, "real": {"timeout": timeout, "duration": short, **found}}


def report(plan: list[str], path: Path) -> dict[str, Any]:
    """Run the load generator. RuntimeError if it leaves no report."""
    command = [sys.executable, "-m", "loadgen", *plan, "--seed", "1", "--quiet", "--report", str(path)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if not path.exists():
        raise RuntimeError(f"{' '.join(command)} left no report, exit status {done.returncode}: {done.stderr[-500:]}")
    whole: dict[str, Any] = json.loads(path.read_text())
    return {name: whole[name] for name in WANTED if name in whole}


def table(found: dict[str, Any]) -> str:
    """One row for virtual time, one for sockets."""
    rows = []
    for key, name in (("simulated", "`loadgen simulate`, 10 stalls"), ("real", "`loadgen run`, real sockets")):
        each = found[key]
        reaps, lateness = each["reaps"], each["lateness_s"]
        counts = [f"{reaps[kind]:,}" for kind in ("observed", "early", "false", "late")]
        spread = [figure(lateness[kind], " s") for kind in ("p50", "p99", "max")]
        rows.append([f"{name}: {each['verdict']}", *counts, *spread])
    return markdown(["", "closes", "early", "false", "late", "lateness p50", "p99", "max"], rows)
