"""The parts of the suite, and how one is run: each in a process of its own, so that none inherits another's memory.

One rule: what a part found is written with what it was found on, or not at all.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .common import ROOT, Note, Scale, machine

SCHEMA = "reaper-benchmarks/1"


@dataclass(frozen=True)
class Part:
    """One subject. Its module has `run(scale, note)`, or `run(quick, note)` if `binary`."""

    name: str
    module: str
    about: str
    seconds: int
    """About, on the machine at hand, at full scale."""
    quick_seconds: int
    binary: bool = False


PARTS = [
    Part("touch", "heart.touch", "a touch: ours, the floors, every peer", 165, 32),
    Part("ticks", "heart.ticks", "register, release, ticks of every peer", 120, 8),
    Part("steady", "heart.steady", "a million connections under traffic", 30, 3),
    Part("pauses", "heart.pauses", "all due in one instant", 45, 3),
    Part("outliers", "heart.outliers", "what slow slices are", 30, 4),
    Part("memory", "heart.memory", "bytes per connection", 100, 8),
    Part("accuracy", "heart.accuracy", "early, late, exactly once", 60, 16),
    Part("echo", "servers.echo", "an echo server with and without", 50, 8),
    Part("mass", "heart.mass", "all due in one instant, under trio", 45, 10),
    Part("journal", "heart.journal_cost", "the journal", 15, 4),
    Part("timers", "heart.timers", "the wheel compared with heapq, the purgatory", 50, 2),
    Part("loadgen", "servers.loadgen_cost", "the load generator itself", 20, 8),
    Part("instructions", "instructions", "machine instructions (needs valgrind)", 60, 40),
    Part("exchanges", "servers.exchanges", "instructions and calls of an exchange (needs valgrind, strace)", 120, 80),
    Part("jvm", "peers.jvm", "the JVM's timers (needs Java)", 240, 28, binary=True),
    Part("servers", "servers.run", "other servers (needs nginx and wrk)", 200, 25, binary=True),
]
"""In the order they are run."""


def present(part: Part) -> bool:
    """Whether its module is there."""
    return importlib.util.find_spec(f"benchmarks.{part.module}") is not None


def chosen(only: Sequence[str] | None) -> list[Part]:
    """The parts to run. ValueError names what is unknown."""
    known = {part.name: part for part in PARTS if present(part)}
    for name in only or ():
        if name not in known:
            raise ValueError(f"--only {name}: must be of {', '.join(known)}")
    return [part for name, part in known.items() if not only or name in only]


def perform(part: Part, scale: Scale, note: Note) -> dict[str, Any]:
    """Run *part* here and return what is to be written."""
    run = importlib.import_module(f"benchmarks.{part.module}").run
    about = machine()
    began = time.monotonic()
    found: dict[str, Any] = run(scale != "full", note) if part.binary else run(scale, note)
    usage = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "schema": SCHEMA,
        "part": part.name,
        "scale": scale,
        "about": about,
        "seconds": time.monotonic() - began,
        "peak_rss_bytes": max(usage) * 1024,
        **found,
    }


def run_all(parts: Sequence[Part], scale: Scale, out: Path) -> list[str]:
    """Run *parts* one after the other into *out*; returns those that failed. Progress goes to stderr."""
    out.mkdir(parents=True, exist_ok=True)
    failed = []
    for index, part in enumerate(parts):
        rest = sum(each.seconds if scale == "full" else each.quick_seconds for each in parts[index:])
        print(f"[{index + 1}/{len(parts)}] {part.name}: {part.about} (about {_minutes(rest)} to go)", file=sys.stderr)
        if not _in_a_process(part, scale, out, rest):
            failed.append(part.name)
            print(f"    {part.name} FAILED; its old results, if any, stay", file=sys.stderr)
    return failed


def _in_a_process(part: Part, scale: Scale, out: Path, rest: float) -> bool:
    command = [sys.executable, "-m", "benchmarks", "part", part.name, "--scale", scale, "--out", str(out)]
    began = time.monotonic()
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            left = max(0.0, rest - (time.monotonic() - began))
            if "NOT RUN" in line:
                print(f"    {line.rstrip()}", file=sys.stderr, flush=True)
            elif sys.stderr.isatty():
                print(f"\r\x1b[K    {line.rstrip()} ({_minutes(left)} to go)", end="", file=sys.stderr, flush=True)
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    return process.returncode == 0


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def run_part(name: str, scale: Scale, out: Path) -> None:
    """What the child does: notes to stdout, a line each, and the results into *out*."""
    part = next(part for part in PARTS if part.name == name)

    def note(text: str) -> None:
        print(text, flush=True)

    found = perform(part, scale, note)
    whole = out / f"{part.name}.json"
    partial = whole.with_suffix(".json.part")
    partial.write_text(json.dumps(found) + "\n")
    partial.rename(whole)
