"""What one audit of a small journal costs: from cold, with what makes it cheaper, and in a session that stays.

    python -m benchmarks.pipeline.start --rounds 3 --json benchmarks/results/pipeline-start.json

Each way runs the command itself, `python -m reaper.pipeline audit`, in a process of its own, in turn with the others.
Seconds are those until it ends; CPU seconds are those of everything that it started, also of what ended after it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT
from benchmarks.pipeline.generate.run import Plan, generate
from benchmarks.pipeline.run import engines_machine

SCHEMA = "reaper-pipeline-start/1"
EVENTS = 20_000
ADOPT_CHILDREN = 36
"""prctl's PR_SET_CHILD_SUBREAPER: Spark's Java outlives the command by a moment, and its CPU time counts."""

OWN_MIND = "-Xshare:auto -XX:+UseG1GC -XX:+TieredCompilation"
"""Java's own defaults, given by the user: none of the flags that the pipeline would add."""

COLD = {
    "plain": {"JAVA_TOOL_OPTIONS": OWN_MIND},
    "flags": {"JAVA_TOOL_OPTIONS": "-Xshare:auto"},
    "archive": {},
}
"""Which environment makes a command start Java in which way."""


def run(arguments: list[str], environment: dict[str, str]) -> float:
    """Run one command of the pipeline to its end: seconds.

    Raises:
        RuntimeError: it failed.
    """
    began = time.perf_counter()
    command = [sys.executable, "-m", "reaper.pipeline", *arguments]
    with tempfile.TemporaryFile("w+") as said:
        status = subprocess.run(command, env=environment, cwd=ROOT, stdout=said, stderr=said, check=False).returncode
        seconds = time.perf_counter() - began
        if status:
            said.seek(0)
            raise RuntimeError(f"{' '.join(arguments)} ended with {status}: {said.read()[-2000:]}")
    return seconds


def whole(arguments: list[str], environment: dict[str, str]) -> dict[str, float]:
    """`run`: its seconds, and CPU seconds once the last process that it left behind has ended."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = run(arguments, environment)
    with suppress(ChildProcessError):
        while True:
            os.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"s": seconds, "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def measure(rounds: int, note: Any) -> list[dict[str, Any]]:
    """A sample per way and round."""
    samples: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="pipeline-start-") as place:
        journal, out = Path(place, "journal"), Path(place, "out")
        generate(Plan(EVENTS, writers=2, days=0.05), journal)
        here = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(Path(place, "cache"))}
        asked = ["audit", "--events", str(journal), "--out", str(out), "--quiet"]
        quiet = {"REAPER_SESSION": str(Path(place, "none"))}
        note("the first of all: it writes the archive")
        samples.append({"way": "first", "round": 0, **whole(asked, here | quiet)})
        for number in range(rounds):
            for way, environment in COLD.items():
                samples.append({"way": way, "round": number, **whole(asked, here | quiet | environment)})
                note(f"{way}: {samples[-1]['s']:.1f} s, {samples[-1]['cpu_s']:.1f} s of CPU")
        staying = here | {"REAPER_SESSION": str(Path(place, "session"))}
        samples.append({"way": "start", "round": 0, "s": run(["session", "start", "--quiet"], staying)})
        try:
            for number in range(rounds + 2):  # the first two warm it
                seconds = run(asked, staying)
                samples.append({"way": "session" if number > 1 else "warming", "round": number, "s": seconds})
                note(f"in the session: {seconds:.1f} s")
        finally:
            whole(["session", "stop", "--quiet"], staying)
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="default 3")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where every sample goes; default: stdout")
    arguments = parser.parse_args()
    ctypes.CDLL(None).prctl(ADOPT_CHILDREN, 1, 0, 0, 0)
    load = os.getloadavg()[0]
    samples = measure(arguments.rounds, lambda text: print(text, file=sys.stderr, flush=True))
    text = json.dumps(
        {"schema": SCHEMA, "machine": engines_machine(), "events": EVENTS, "load_before": load, "samples": samples},
        indent=1,
    )
    if arguments.json is None:
        print(text)
    else:
        arguments.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
