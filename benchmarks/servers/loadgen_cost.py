"""What the load generator costs: memory per connection, CPU per action, its own lag, at a given load.

    python -m benchmarks run --only loadgen
    python -m benchmarks.servers.loadgen_cost --connections 100000 --rate 20000

The server is `bare`, the least there can be, so that what is measured is the generator, sharing the machine with
it. All clients are chatty, with gaps that add up to the wanted rate.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from loadgen.plan.capacity import SPARE_DESCRIPTORS
from scripts.serving import serving

from ..common import ROOT, Note, Scale, by_scale, machine

MEAN_GAP = 0.35
"""Of the timeout: the mean of a chatty client's gaps, drawn between 0.2 and 0.5 of it."""


def measure(connections: int, rate: float, seconds: float, output: int | None = None) -> dict[str, object]:
    """Run the load, its words to *output*; returns the load generator's report."""
    timeout = connections / rate / MEAN_GAP
    seconds = max(seconds, 1.2 * timeout + 1)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    # The kernel spreads connections over the listeners by hash, not evenly: a tenth more than would just do.
    count = -(-connections * 11 // 10 // (hard - SPARE_DESCRIPTORS)) if connections > 5000 else 1
    with tempfile.TemporaryDirectory() as folder:
        server = [sys.executable, "-m", "benchmarks.servers.bare", str(count)]
        with serving(server, Path(folder, "server.log")) as started:
            path = Path(folder, "report.json")
            command = [
                sys.executable, "-m", "loadgen", "run", "--target", started.target, "--mix", "chatty",
                "--connections", str(connections), "--timeout", f"{timeout:.3f}s", "--tick", "1s",
                "--duration", f"{seconds:.0f}s", "--report", str(path), "--quiet",
            ]  # fmt: skip
            subprocess.run(command, cwd=ROOT, stdout=output, check=True)
            report: dict[str, object] = json.loads(path.read_text())
            return report


def run(scale: Scale, note: Note) -> dict[str, Any]:
    """`report`: what of the load generator's report tells about itself."""
    connections, rate, seconds = by_scale(scale, (50, 100, 1), (500, 2_000, 3), (10_000, 10_000, 10))
    note(f"{connections:,} clients, {rate:,} actions a second, for {seconds} s or more")
    report = measure(connections, rate, seconds, subprocess.DEVNULL)
    wanted = ("connections", "actions", "loadgen", "latency_s", "verdict", "elapsed_s")
    return {"report": {name: report[name] for name in wanted if name in report}, "rate": rate}


def main() -> None:
    """Measure once and print the figures as JSON, with what they were measured on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=100_000)
    parser.add_argument("--rate", type=float, default=20_000, help="actions per second, all connections together")
    parser.add_argument("--seconds", type=float, default=20, help="at least; default 20")
    options = parser.parse_args()
    about = machine()
    report = measure(options.connections, options.rate, options.seconds)
    wanted = ("connections", "actions", "loadgen", "latency_s", "verdict", "elapsed_s")
    print(json.dumps({"machine": about, **{name: report[name] for name in wanted if name in report}}, indent=1))


if __name__ == "__main__":
    main()
