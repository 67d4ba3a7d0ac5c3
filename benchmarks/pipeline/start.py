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
import sys
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.pipeline.generate.run import Plan, generate
from benchmarks.pipeline.run import engines_machine
from benchmarks.pipeline.staying import ask, leave_alone, none, staying

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


def whole(arguments: list[str], environment: dict[str, str]) -> dict[str, float]:
    """`ask`: its seconds, and CPU seconds once the last process that it left behind has ended."""
    _alone()  # the Java of a session that was stopped is no part of this
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = ask(arguments, environment)
    _alone()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"s": seconds, "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime}


def _alone() -> None:
    """Wait until every process that was started has ended."""
    with suppress(ChildProcessError):
        while True:
            os.wait()


def measure(rounds: int, note: Any) -> list[dict[str, Any]]:
    """A sample per way and round."""
    samples: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="pipeline-start-") as place:
        journal, out = Path(place, "journal"), Path(place, "out")
        generate(Plan(EVENTS, writers=2, days=0.05), journal)
        here = none(Path(place)) | {"XDG_CACHE_HOME": str(Path(place, "cache"))}
        asked = ["audit", "--events", str(journal), "--out", str(out), "--quiet"]
        note("the first of all: it writes the archive")
        samples.append({"way": "first", "round": 0, **whole(asked, here)})
        for number in range(rounds):
            for way, environment in COLD.items():
                samples.append({"way": way, "round": number, **whole(asked, here | environment)})
                note(f"{way}: {samples[-1]['s']:.1f} s, {samples[-1]['cpu_s']:.1f} s of CPU")
            for way, place_of in (("at once", "new"), ("left alone", "left")):
                samples += in_a_session(way, number, asked, here, Path(place, f"{place_of}-{number}"))
                found = ", ".join(f"{sample['way']} {sample['s']:.1f} s" for sample in samples[-4:])
                note(f"in a session: {found}")
    return samples


def in_a_session(
    way: str, number: int, asked: list[str], environment: dict[str, str], place: Path
) -> list[dict[str, Any]]:
    """The samples of one session: its start, how long it was left alone, and its first two answers."""
    samples: list[dict[str, Any]] = []

    def sample(of: str, seconds: float) -> None:
        samples.append({"way": of, "round": number, "s": seconds})

    with staying(place, environment, partial(sample, "start")) as inside:
        if way == "left alone":
            sample("warm", leave_alone(place))
        for again in ("", ", again"):
            sample(f"{way}{again}", ask(asked, inside))
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
