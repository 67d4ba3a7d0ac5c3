"""How long the pipeline takes on a generated journal: on Spark, embedded, and in DuckDB's SQL written by hand.

Every engine reads the same files, in a fresh process, in interleaved rounds; only ratios within a round are believed.
*Answers are compared, and a difference ends the run.* Reading the files' facts (`check`) and starting an engine
(`session`) are reported apart. Needs Java, and room for 20 bytes per event.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from ..common import ROOT, Note, Scale, by_scale, figure, markdown, ratios, short, spread, times

ENGINES = ("spark", "embedded", "duckdb")
QUESTIONS = ("audit", "advise")
STEPS = ("check", "session", *QUESTIONS)
PATIENCE = 3600.0
"""Seconds for one process; a run that takes longer is broken."""


def run(scale: Scale, note: Note) -> dict[str, Any]:
    """`sizes[events][engine]`: seconds of each step, peak bytes; `ratios[events][question][engine]`: / duckdb's.

    Raises:
        RuntimeError: an engine failed, or two of them answered differently.
    """
    if shutil.which("java") is None:
        return {"absent": "java is not installed (Debian: apt-get install openjdk-17-jre-headless)"}
    plan = by_scale(
        scale, [(20_000, 1)], [(20_000, 3), (1_000_000, 2)], [(20_000, 3), (10_000_000, 3), (50_000_000, 3)]
    )
    found: dict[str, Any] = {"sizes": {}, "ratios": {}, "rounds": [rounds for _, rounds in plan]}
    for events, rounds in plan:
        with tempfile.TemporaryDirectory(prefix="reaper-pipeline-") as folder:
            note(f"writing {events:,} events")
            simulated(events, Path(folder))
            samples = measured(Path(folder), rounds, note)
        found["sizes"][str(events)] = {
            engine: {
                "s": {step: spread([each["s"][step] for each in taken]) for step in STEPS},
                "peak_bytes": max(each["peak_bytes"] for each in taken),
            }
            for engine, taken in samples.items()
        }
        seconds = {name: {q: [each["s"][q] for each in taken] for q in QUESTIONS} for name, taken in samples.items()}
        found["ratios"][str(events)] = {
            question: {name: ratios(seconds[name][question], seconds["duckdb"][question]) for name in ENGINES[:-1]}
            for question in QUESTIONS
        }
    return found


def simulated(events: int, folder: Path) -> None:
    """About *events* rows of a server's journal below *folder*, by the load generator."""
    command = [sys.executable, "-m", "loadgen", "simulate", "--journal", str(folder / "journal"), "--side", "server"]
    command += ["--events", str(events), "--writers", "2", "--quiet"]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def measured(folder: Path, rounds: int, note: Note) -> dict[str, list[dict[str, Any]]]:
    """A sample per engine and round."""
    samples: dict[str, list[dict[str, Any]]] = {engine: [] for engine in ENGINES}
    right: dict[str, str] = {}
    for number in range(rounds):
        first = number % len(ENGINES)
        for engine in ENGINES[first:] + ENGINES[:first]:
            note(f"round {number + 1} of {rounds}: {engine}")
            shutil.rmtree(folder / "out", ignore_errors=True)
            sample = watched(engine, folder)
            for step, answer in sample.pop("answers").items():
                digest = hashlib.sha256(json.dumps(answer).encode()).hexdigest()
                if right.setdefault(step, digest) != digest:
                    raise RuntimeError(f"{engine} answers {step} differently: a comparison is void")
            samples[engine].append(sample)
    return samples


def watched(engine: str, folder: Path) -> dict[str, Any]:
    """Seconds and answers of one process, and the most memory that it and its children had."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.pipeline.worker",
        engine,
        "--events",
        str(folder / "journal" / "server"),
    ]
    command += ["--out", str(folder / "out"), "--steps", ",".join(QUESTIONS)]
    found: dict[str, Any] = {"s": {}, "answers": {}, "peak_bytes": 0}
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT)
        timer = threading.Timer(PATIENCE, process.kill)
        over = threading.Event()
        watch = threading.Thread(target=_watch, args=(process.pid, found, over))
        timer.start()
        watch.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("{"):
                    step = json.loads(line)
                    if "end" in step:
                        found["s"][step["end"]] = step["s"]
                    elif "answer" in step:
                        found["answers"][step["answer"]] = step["of"]
            status = process.wait()
        finally:
            timer.cancel()
            over.set()
            watch.join()
            if process.poll() is None:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()
        if status:
            errors.seek(0)
            raise RuntimeError(f"{engine} ended with {status}: {errors.read()[-2000:]}")
    return found


def _watch(pid: int, found: dict[str, Any], over: threading.Event) -> None:
    while not over.wait(0.05):
        try:
            root = psutil.Process(pid)
            total = sum(process.memory_info().rss for process in [root, *root.children(recursive=True)])
        except psutil.Error:
            time.sleep(0.05)
            continue
        found["peak_bytes"] = max(found["peak_bytes"], total)


def table(found: dict[str, Any]) -> str:
    """A row per size and engine."""
    rows = []
    for events, engines in found["sizes"].items():
        for engine, each in engines.items():
            seconds = [figure(each["s"][step]["median"]) for step in STEPS]
            ratio = [found["ratios"][events][question].get(engine) for question in QUESTIONS]
            compared = [times(one) if one else "" for one in ratio]
            rows.append([f"{short(events)}, {engine}", *seconds, *compared, figure(each["peak_bytes"] / 1e6)])
    compared = [f"{question} / DuckDB" for question in QUESTIONS]
    text = markdown(["events, engine; seconds", *STEPS, *compared, "peak, MB"], rows)
    return text + "\n\n`duckdb` is SQL written by hand for these questions: how fast one machine can answer them."
