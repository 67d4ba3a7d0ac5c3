"""What a Python start below `reaper run` costs beside one without: machine
instructions, and time.

Every Python that a command starts imports the hook, also one that serves nothing. Under
callgrind no neighbour disturbs the count (valgrind; Debian: apt-get install valgrind).
The times are of starts in turn, of both kinds and of the bare one again, as a control.
"""

from __future__ import annotations

import os
import py_compile
import shutil
import subprocess
import sys
import time
from typing import Any

from reaper.run.command import HOOK
from reaper.run.report import LENIENT, RUN

from .common import Note, Scale, by_scale, callgrind, markdown, spread

GOAL_MS = 10
"""What a start below `reaper run` may cost more, at most."""

HOOKED = f"""
import os, sys
os.environ[{RUN!r}] = {LENIENT!r}
sys.path.insert(0, {str(HOOK)!r})
try:
    import sitecustomize
except ImportError:  # as `site` has it: there is no other
    pass
"""


def count() -> dict[str, int]:
    """Instructions of a start, bare and with the hook.

    Raises RuntimeError as `callgrind`.
    """
    # In a fresh checkout the first Python compiles the hook, once; that is not what a
    # start costs.
    py_compile.compile(str(HOOK / "sitecustomize.py"), doraise=True)
    return {
        "bare": callgrind(["-I", "-c", "pass"]),
        "below reaper run": callgrind(["-I", "-c", HOOKED]),
    }


def timed(environment: dict[str, str]) -> tuple[float, float]:
    """Milliseconds of one start: (CPU of user and system, wall)."""
    before, begun = os.times(), time.monotonic()
    subprocess.run([sys.executable, "-c", "pass"], env=environment, check=True)
    wall, after = time.monotonic() - begun, os.times()
    used = after.children_user + after.children_system
    return (used - before.children_user - before.children_system) * 1e3, wall * 1e3


def run(scale: Scale, note: Note) -> dict[str, Any]:
    """Milliseconds of starts in turn; instructions (None: no valgrind)."""
    rounds, starts = by_scale(scale, (2, 2), (10, 5), (30, 10))
    bare = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    hooked = bare | {RUN: LENIENT, "PYTHONPATH": str(HOOK)}
    ways = {"bare": bare, "below reaper run": hooked, "bare, again": bare}
    py_compile.compile(str(HOOK / "sitecustomize.py"), doraise=True)
    cpu: dict[str, list[float]] = {way: [] for way in ways}
    wall: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds):
        note(f"round {number + 1} of {rounds}")
        for way, environment in ways.items():
            # The clock of children counts in hundredths: a sample is the mean of
            # several starts.
            each = [timed(environment) for _ in range(starts)]
            cpu[way].append(sum(one for one, _ in each) / starts)
            wall[way].append(sum(one for _, one in each) / starts)
    return {
        "rounds": rounds,
        "starts": starts,
        "instructions": count() if shutil.which("valgrind") else None,
        "results": {
            way: {
                "cpu_ms": spread(cpu[way]),
                "wall_ms": spread(wall[way]),
                "more_cpu_ms": spread([a - b for a, b in zip(cpu[way], cpu["bare"], strict=True)]),
                "more_wall_ms": spread(
                    [a - b for a, b in zip(wall[way], wall["bare"], strict=True)]
                ),
            }
            for way in ways
        },
    }


def table(found: dict[str, Any]) -> str:
    """Times, what they are more than of a bare start, and instructions."""
    rows = []
    for way, each in found["results"].items():
        more = (each["more_cpu_ms"], each["more_wall_ms"])
        counted = (found["instructions"] or {}).get(way)
        rows.append(
            [
                way,
                *(f"{each[name]['median']:.1f}" for name in ("cpu_ms", "wall_ms")),
                *(f"{one['median']:+.1f} ({one['p10']:+.1f} to {one['p90']:+.1f})" for one in more),
                "-" if counted is None else f"{counted:,}",
            ]
        )
    head = ["a start of Python, ms", "CPU", "wall", "more CPU", "more wall", "instructions"]
    return f"{markdown(head, rows)}\n\nThe goal is {GOAL_MS} ms more, at most."
