"""How long the pipeline takes on a generated journal: on Spark, embedded, and, the audit, in SQL
written by hand.

Every engine reads the same files, in a fresh process, in interleaved rounds; only ratios within a
round are believed. *Answers are compared, and a difference ends the run.* Reading the files' facts
(`check`) and starting an engine (`session`) are reported apart. Needs Java, and room for 20 bytes
per event.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ..common import ROOT, Note, Scale, by_scale, figure, markdown, ratios, short, spread, times

ENGINES = ("spark", "embedded", "duckdb")
STEPS = ("check", "session", "audit", "advise", "GiB")
PATIENCE = 3600.0
"""Seconds for one process; a run that takes longer is broken."""


def run(scale: Scale, note: Note) -> dict[str, Any]:
    """`sizes[events][engine]`: seconds of each step, GiB held at most;
    `ratios[events]["audit"][engine]`: / duckdb's.

    Raises:
        RuntimeError: an engine failed, or two of them answered differently.
    """
    if shutil.which("java") is None:
        return {"absent": "java is not installed (Debian: apt-get install openjdk-17-jre-headless)"}
    plan = by_scale(
        scale,
        [(20_000, 1)],
        [(20_000, 3), (1_000_000, 2)],
        [(20_000, 3), (10_000_000, 2), (50_000_000, 1)],
    )
    found: dict[str, Any] = {"sizes": {}, "ratios": {}, "rounds": [rounds for _, rounds in plan]}
    for events, rounds in plan:
        with tempfile.TemporaryDirectory(prefix="reaper-pipeline-") as folder:
            note(f"writing {events:,} events")
            simulated(events, Path(folder))
            samples = measured(Path(folder), rounds, note)
        found["sizes"][str(events)] = {
            engine: {
                step: spread([each[step] for each in taken]) for step in STEPS if step in taken[0]
            }
            for engine, taken in samples.items()
        }
        found["ratios"][str(events)] = {
            "audit": {
                name: ratios(
                    [each["audit"] for each in taken], [each["audit"] for each in samples["duckdb"]]
                )
                for name, taken in samples.items()
                if name != "duckdb"
            }
        }
    return found


def simulated(events: int, folder: Path) -> None:
    """About *events* rows of a server's journal below *folder*, by the load generator."""
    command = [
        sys.executable,
        "-m",
        "loadgen",
        "simulate",
        "--journal",
        str(folder / "journal"),
        "--side",
        "server",
    ]
    command += ["--events", str(events), "--writers", "2", "--quiet"]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def measured(folder: Path, rounds: int, note: Note) -> dict[str, list[dict[str, float]]]:
    """Of each step, per engine and round."""
    samples: dict[str, list[dict[str, float]]] = {engine: [] for engine in ENGINES}
    right: dict[str, Any] = {}
    for number in range(rounds):
        first = number % len(ENGINES)
        for engine in ENGINES[first:] + ENGINES[:first]:
            note(f"round {number + 1} of {rounds}: {engine}")
            shutil.rmtree(folder / "out", ignore_errors=True)
            command = [
                sys.executable,
                "-m",
                "benchmarks.pipeline.worker",
                engine,
                str(folder / "journal" / "server"),
            ]
            command += [str(folder / "out")]
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False
            )
            if done.returncode:
                raise RuntimeError(f"{engine} ended with {done.returncode}: {done.stderr[-2000:]}")
            sample = json.loads(done.stdout.splitlines()[-1])
            for question, answer in sample["answers"].items():
                if right.setdefault(question, answer) != answer:
                    raise RuntimeError(
                        f"{engine} answers {question} differently: a comparison is void"
                    )
            samples[engine].append(sample["s"])
    return samples


def table(found: dict[str, Any]) -> str:
    """A row per size and engine."""
    rows = []
    for events, engines in found["sizes"].items():
        for engine, each in engines.items():
            figures = [figure(each[step]["median"]) if step in each else "-" for step in STEPS]
            ratio = found["ratios"][events]["audit"].get(engine)
            rows.append([f"{short(events)}, {engine}", *figures, times(ratio) if ratio else ""])
    text = markdown(["events, engine; seconds", *STEPS, "audit / DuckDB"], rows)
    return (
        text
        + "\n\n`duckdb` is SQL written by hand for the audit: how fast one machine can answer it."
    )
