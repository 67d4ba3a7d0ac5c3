"""How long the pipeline takes on a generated journal: on Spark, embedded, and, the
audit, in SQL written by hand for either.

Every engine reads the same files, in a fresh process, in interleaved rounds; only
ratios within a round are believed, and of those the ratios of processor time also where
others share the machine. *Answers are compared, and a difference ends the run.* Reading
the files' facts (`check`) and starting an engine (`session`) are reported apart. Needs
Java, and room for 20 bytes per event.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from reaper.journal.schema import SEQUENCE_BITS

from ..common import ROOT, Note, Scale, by_scale, figure, markdown, ratios, short, spread, times

ENGINES = ("spark", "hand", "floor", "embedded", "duckdb")
"""`hand`: SQL written by hand on Spark. `floor`: what Spark takes for as little as any
program could ask of it, see `worker`.
"""
STEPS = ("check", "session", "first query", "read", "audit", "advise", "GiB")
QUESTIONS = {"audit": "duckdb", "advise": "embedded"}
"""And whose seconds the others' are divided by: no SQL was written by hand for the
advice.
"""
TO_THE_AUDIT = ("check", "session", "audit")
"""The steps of whoever asks for an audit alone."""
BY_HAND = {"spark": "hand", "embedded": "duckdb"}
"""Of each engine of the product: the SQL by hand that runs on the same."""
BY_SPARK = ("spark", "hand")
NAMES = {"floor": "Spark's floor", "hand": "Spark by hand", "duckdb": "DuckDB"}
SAID = (
    "DuckDB, Spark by hand: SQL written by hand for the audit, one pass over the files: how fast "
    "either can answer it. From the start to the audit: the processor time of check, session and "
    "audit together, by that of the SQL by hand on the same engine."
)
SAID_OF_FLOOR = (
    " Spark's floor: a program that starts Spark, asks for one row, and reads every value once. "
    "Beside it stand the seconds of session and audit. The goal at 50M is twice the floor, which "
    "the SQL by hand does not reach either."
)
FLOOR = ("session", "first query", "read")
SIMULATED = 10_000_000
"""Events up to which a journal is simulated. A larger one is this one, of several times
as many servers: simulating 50 million took longer than all engines together.
"""
WRITERS = 2
PATIENCE = 3600.0
"""Seconds for one process; a run that takes longer is broken."""


def run(scale: Scale, note: Note) -> dict[str, Any]:
    """`sizes[events][engine]`: seconds of each step, and GiB held at most;
    `cpu[events][engine]`: processor seconds of each step.

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
    found: dict[str, Any] = {"sizes": {}, "cpu": {}, "rounds": [rounds for _, rounds in plan]}
    with tempfile.TemporaryDirectory(prefix="reaper-pipeline-") as folder:
        for events, rounds in plan:
            # Sizes above `SIMULATED` add servers to the journal of the size before.
            journal = Path(folder, str(min(events, SIMULATED)))
            note(f"writing {events:,} events")
            made(events, journal)
            samples = measured(journal, rounds, note)
            for name, unit in (("sizes", "s"), ("cpu", "cpu")):
                found[name][str(events)] = {
                    engine: {
                        step: spread([each[unit][step] for each in taken])
                        for step in STEPS
                        if step in taken[0][unit]
                    }
                    for engine, taken in samples.items()
                }
    return found


def compared(engines: dict[str, Any], engine: str, question: str) -> str:
    """How many times as long as the rival of `QUESTIONS` *engine* took, round by round;
    *engines*: spreads of each.
    """
    theirs, ours = engines.get(QUESTIONS[question], {}), engines.get(engine, {})
    if engine == QUESTIONS[question] or question not in theirs or question not in ours:
        return "-"
    return times(ratios(ours[question]["samples"], theirs[question]["samples"]))


def to_the_audit(cpu: dict[str, Any], engine: str) -> str:
    """How many times the processor time of the SQL by hand *engine* took until it had
    the audit, everything included; *cpu*: spreads of each engine.
    """
    rival = BY_HAND.get(engine)
    if rival not in cpu or engine not in cpu:
        return "-"
    return times(ratios(summed(cpu[engine], TO_THE_AUDIT), summed(cpu[rival], TO_THE_AUDIT)))


def over_the_floor(engines: dict[str, Any], engine: str) -> str:
    """How many times Spark's floor *engine* took for its session and the audit;
    *engines*: spreads of each, seconds.
    """
    if engine not in BY_SPARK or not {engine, "floor"} <= engines.keys():
        return "-"
    ours = summed(engines[engine], ("session", "audit"))
    return times(ratios(ours, summed(engines["floor"], FLOOR)))


def summed(of: dict[str, Any], steps: Sequence[str]) -> list[float]:
    """*steps* together, round by round; *of*: their spreads."""
    return [sum(each) for each in zip(*(of[step]["samples"] for step in steps), strict=True)]


def made(events: int, folder: Path) -> None:
    """About *events* rows of servers' journals below *folder*; what is simulated there
    already is not simulated again.
    """
    server = folder / "journal" / "server"
    if not server.exists():
        simulated(min(events, SIMULATED), folder)
    files = sorted(server.glob("*.parquet"))
    for copy in range(1, round(events / SIMULATED)):
        for path in files:
            as_another_server(path, copy * WRITERS)


def as_another_server(path: Path, further: int) -> None:
    """Write the journal file at *path* once more beside it, as the writer *further* ids
    on.
    """
    table = pq.read_table(path)
    said = dict(table.schema.metadata)
    writer, run = int(said[b"reaper.writer"]), said[b"reaper.run"].decode()
    other = f"{further:04x}{run[4:]}"
    said[b"reaper.writer"] = str(writer + further).encode()
    said[b"reaper.run"] = other.encode()
    first = int(said[b"reaper.first_conn"]) + (further << SEQUENCE_BITS)
    said[b"reaper.first_conn"] = str(first).encode()
    place = table.schema.get_field_index("conn")
    conn = pc.add(table["conn"], pa.scalar(further << SEQUENCE_BITS, pa.int64()))
    moved = table.set_column(place, table.schema.field(place), conn).replace_schema_metadata(said)
    name = path.name.replace(f"w{writer:07}", f"w{writer + further:07}").replace(run, other)
    pq.write_table(moved, path.with_name(name), compression="zstd", write_page_checksum=True)


def simulated(events: int, folder: Path) -> None:
    """About *events* rows of a server's journal below *folder*, by the load
    generator.
    """
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
    command += ["--events", str(events), "--writers", str(WRITERS), "--quiet"]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def measured(folder: Path, rounds: int, note: Note) -> dict[str, list[dict[str, Any]]]:
    """Of each step, per engine and round: `s` and `cpu`."""
    samples: dict[str, list[dict[str, Any]]] = {engine: [] for engine in ENGINES}
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
            samples[engine].append(sample)
    return samples


def table(found: dict[str, Any]) -> str:
    """Two tables with a row per size and engine, of seconds and of what they are beside
    others; no column that has no figure.
    """
    sizes, cpu = found["sizes"], found.get("cpu")
    steps = [
        step for step in STEPS if any(step in each for of in sizes.values() for each in of.values())
    ]
    heads, units = [], [(sizes, ""), *([(cpu, ", CPU")] if cpu else [])]
    for question, rival in QUESTIONS.items():
        heads += [f"{question} / {NAMES.get(rival, rival)}{unit}" for _, unit in units]
    if cpu:
        heads.append("from the start to the audit, CPU")
    floor = any("floor" in engines for engines in sizes.values())
    if floor:
        heads.append("session and audit / Spark's floor")
    took, beside = [], []
    for events, engines in sizes.items():
        for engine, each in engines.items():
            name = f"{short(events)}, {NAMES.get(engine, engine)}"
            seconds = [figure(each[step]["median"]) if step in each else "-" for step in steps]
            took.append([name, *seconds])
            cells = []
            for question in QUESTIONS:
                cells += [compared(of[events], engine, question) for of, _ in units]
            cells += [to_the_audit(cpu[events], engine)] if cpu else []
            cells += [over_the_floor(engines, engine)] if floor else []
            if {*cells} != {"-"}:
                beside.append([name, *cells])
    text = markdown(["events, engine; seconds", *steps], took)
    text += "\n\n" + markdown(["events, engine", *heads], beside)
    return f"{text}\n\n{SAID}{SAID_OF_FLOOR if floor else ''}"
