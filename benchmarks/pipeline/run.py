"""How fast the pipeline is compared with single-machine engines, and how its time and memory grow.

    python -m benchmarks.pipeline.run --events 50M --rounds 3 --json benchmarks/results/pipeline-50M.json
    python -m benchmarks.pipeline.run --growth 1M,3M,10M,30M,100M --json benchmarks/results/pipeline-growth.json

Rules: every engine reads the same generated files; rounds are interleaved, each engine in a fresh process, and only
ratios within a round are believed; answers are compared, and a difference ends the run; reading the files' facts and
starting an engine are reported apart, for all alike.
Needs room below --data: 20 bytes per event, 60 with the table.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.common import ROOT, machine
from benchmarks.pipeline.generate.command import count
from benchmarks.pipeline.rivals import ENGINES

SCHEMA = "reaper-pipeline-benchmark/1"
QUESTIONS = ("audit", "advise", "recompute")
ANSWERED = ("spark", *ENGINES)
SAMPLE_S = 0.05
GAP_NS = 10**9
GAPS_FILES = 4
"""Files from which is worked out what `gaps` mode would have written."""

PATIENCE_S = 3600.0
"""For one process; a run that takes longer is broken."""


class Watch(threading.Thread):
    """Samples the memory of processes and all their children until it ends: the peak while each step ran."""

    def __init__(self, *pids: int) -> None:
        super().__init__(daemon=True)
        self.roots = [psutil.Process(pid) for pid in pids]
        self.step = "start"
        self.peaks: dict[str, int] = {}
        self.java = 0
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(SAMPLE_S):
            total = java = 0
            for root in self.roots:
                with contextlib.suppress(psutil.Error):
                    for process in [root, *root.children(recursive=True)]:
                        with contextlib.suppress(psutil.Error):
                            rss = process.memory_info().rss
                            total += rss
                            java += rss if process.name() == "java" else 0
            self.peaks[self.step] = max(self.peaks.get(self.step, 0), total)
            self.java = max(self.java, java)

    def stop(self) -> None:
        self._over.set()
        self.join()


def run_watched(command: list[str], found: dict[str, Any]) -> Watch:
    """Run *command* to its end; its JSON lines go to *found*: seconds by step, answers by step.

    Raises:
        RuntimeError: it failed or took too long; the message has the end of what it said.
    """
    with tempfile.TemporaryFile("w+") as errors:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "POLARS_MAX_THREADS": "2"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, cwd=ROOT)
        stdout: IO[str] = process.stdout  # type: ignore[assignment]
        timer = threading.Timer(PATIENCE_S, process.kill)
        timer.start()
        watch = Watch(process.pid)
        watch.start()
        try:
            for line in stdout:
                if not line.startswith("{"):
                    continue
                with contextlib.suppress(ValueError):
                    note = json.loads(line)
                    if "begin" in note:
                        watch.step = note["begin"]
                    elif "end" in note:
                        found.setdefault("s", {})[note["end"]] = note["s"]
                        watch.step = "between"
                    elif "answer" in note:
                        found.setdefault("answers", {})[note["answer"]] = note["of"]
            status = process.wait()
        finally:
            timer.cancel()
            if process.poll() is None:
                process.kill()
                process.wait()
            watch.stop()
            stdout.close()
        if status:
            errors.seek(0)
            raise RuntimeError(f"{' '.join(command)} ended with {status}: {errors.read()[-2000:]}")
    return watch


def in_gaps(files: list[Path]) -> dict[str, Any]:
    """Connections per event in *files*; and in `gaps` mode: which share of the rows, and bytes per row."""
    rows = kept = size = opens = 0
    for path in files:
        table = pq.read_table(path)
        opens += pc.sum(pc.equal(table["kind"].cast("string"), "open")).as_py()
        short = pc.and_(pc.equal(table["kind"].cast("string"), "activity"), pc.less_equal(table["idle_ns"], GAP_NS))
        few = table.filter(pc.invert(pc.fill_null(short, False)))
        sink = pa.BufferOutputStream()
        pq.write_table(few, sink, compression="zstd", write_page_checksum=True)
        rows, kept, size = rows + len(table), kept + len(few), size + sink.getvalue().size
    return {"gaps_share": kept / rows, "gaps_bytes_a_row": size / kept, "connections_an_event": opens / rows}


def prepare(events: int, data: Path, seed: int, with_table: bool, note: Any) -> dict[str, Any]:
    """Make the journal and, with the product's own command, its compacted table below *data*."""
    python = [sys.executable, "-m", "reaper.pipeline"]
    raw, table = data / "raw", data / "table"
    facts: dict[str, Any] = {}
    if not raw.exists():
        note(f"generating {events:,} events")
        before = time.perf_counter()
        command = [sys.executable, "-m", "benchmarks.pipeline.generate", "--events", str(events)]
        command += ["--seed", str(seed), "--out", str(raw)]
        made = subprocess.run([*command, "--json", "--quiet"], cwd=ROOT, capture_output=True, text=True, check=False)
        if made.returncode:
            raise RuntimeError(f"generate ended with {made.returncode}: {made.stderr[-2000:]}")
        facts["generated_s"] = time.perf_counter() - before
        facts["generated"] = json.loads(made.stdout)
    files = sorted(raw.glob("*.parquet"))
    facts |= in_gaps(files[:GAPS_FILES])
    facts["files"], facts["bytes"] = len(files), sum(path.stat().st_size for path in files)
    if with_table:
        note("compacting")
        before = time.perf_counter()
        compact = [*python, "compact", "--events", str(raw), "--out", str(table), "--quiet"]
        watch = run_watched(compact, {})
        facts["compact_s"] = time.perf_counter() - before
        facts["compact_peak_bytes"] = max(watch.peaks.values(), default=0)
    parts = [path for path in table.rglob("*.parquet") if path.is_file()]
    facts["table_files"], facts["table_bytes"] = len(parts), sum(path.stat().st_size for path in parts)
    return facts


def measure(
    events: int, data: Path, rounds: int, engines: list[str], seed: int, with_table: bool, note: Any
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """All rounds of one size: facts of the files, and a sample per engine and round.

    Raises:
        RuntimeError: an engine failed, or two of them answered differently.
    """
    facts = prepare(events, data, seed, with_table, note)
    samples: list[dict[str, Any]] = []
    right: dict[str, str] = {}
    for number in range(rounds):
        turn = engines[number % len(engines) :] + engines[: number % len(engines)]
        for engine in turn:
            steps = list(QUESTIONS if engine in ENGINES else QUESTIONS[:2])
            if engine == "spark" and with_table:
                steps += [f"table-{question}" for question in QUESTIONS]
            note(f"round {number + 1} of {rounds}: {engine}")
            out = data / "out"
            shutil.rmtree(out, ignore_errors=True)
            command = [sys.executable, "-m", "benchmarks.pipeline.worker", engine, "--events"]
            command += [str(data / "raw"), "--out", str(out), "--steps", ",".join(steps)]
            command += ["--compacted", str(data / "table")] if engine == "spark" and with_table else []
            found: dict[str, Any] = {}
            load = os.getloadavg()[0]
            watch = run_watched(command, found)
            for step, answer in found["answers"].items():
                question = "audit" if step.endswith("audit") else "advice"
                digest = hashlib.sha256(json.dumps(answer).encode()).hexdigest()
                if right.setdefault(question, digest) != digest:
                    raise RuntimeError(f"{engine} answers {step} differently from {engines}: a comparison is void")
            samples.append(
                {
                    "events": events,
                    "engine": engine,
                    "round": number,
                    "s": found["s"],
                    "peak_bytes": watch.peaks,
                    "java_peak_bytes": watch.java,
                    "load_before": load,
                }
            )
            note(", ".join(f"{step} {seconds:.1f} s" for step, seconds in found["s"].items()))
    shutil.rmtree(data / "out", ignore_errors=True)
    return {"events": events, **facts, "answers": right}, samples


def ratio(samples: list[dict[str, Any]], ours: str, step: str, question: str, rival: str) -> float | None:
    """The *step* of *ours*, an engine, over the rival's *question*: the median of the rounds' ratios."""
    by = {(sample["engine"], sample["round"]): sample["s"] for sample in samples}
    found = [
        by[ours, number][step] / by[rival, number][question]
        for engine, number in by
        if engine == rival and step in by.get((ours, number), ())
    ]
    return statistics.median(found) if found else None


def counts(text: str) -> list[int]:
    """`1M,3M` as numbers; for argparse."""
    return [count(part) for part in text.split(",")]


def names(text: str) -> list[str]:
    """`spark,duckdb` as names of engines; for argparse."""
    found = text.split(",")
    if unknown := [name for name in found if name not in ANSWERED]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is no engine; expected {', '.join(ANSWERED)}")
    return found


def without_paths(arguments: list[str]) -> str:
    """The command without the folders of this machine: what another would type."""
    pairs = zip(["", *arguments], arguments, strict=False)
    local = ("--journal", "--data", "--json")
    kept = [argument for before, argument in pairs if argument not in local and before not in local]
    return " ".join(["-m", "benchmarks.pipeline.run", *kept])


def engines_machine() -> dict[str, Any]:
    """`common.machine()`, with the versions of the engines and of Java."""
    found = machine()
    found["packages"] |= {name: version(name) for name in ("duckdb", "polars")}
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr
    found["java"] = java.splitlines()[0] if java else ""
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=count, default=50_000_000, metavar="N", help="default 50M")
    parser.add_argument("--growth", type=counts, metavar="N,N,...", help="these sizes one after the other instead")
    parser.add_argument("--rounds", type=int, metavar="N", help="default 3; 1 with --growth")
    parser.add_argument(
        "--engines", type=names, default=list(ANSWERED), metavar="NAME,...", help=f"default: {','.join(ANSWERED)}"
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="where journals are made; default: a temporary one")
    parser.add_argument("--journal", type=Path, metavar="DIR", help="a generated journal of --events rows to use")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-table", action="store_true", help="no compacted table: Spark reads the files alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where every sample goes; default: stdout")
    arguments = parser.parse_args()
    sizes = arguments.growth or [arguments.events]
    rounds = arguments.rounds or (1 if arguments.growth else 3)
    engines = arguments.engines
    began = time.monotonic()

    def note(text: str) -> None:
        print(f"[{time.monotonic() - began:7.1f} s] {text}", file=sys.stderr, flush=True)

    found = engines_machine()
    result: dict[str, Any] = {
        "schema": SCHEMA,
        "kind": "growth" if arguments.growth else "comparison",
        "machine": found,
        "command": without_paths(sys.argv[1:]),
        "sizes": [],
        "samples": [],
    }
    if arguments.data is not None:
        arguments.data.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pipeline-", dir=arguments.data) as place:
        for size in sizes:
            data = Path(place, str(size))
            data.mkdir()
            if arguments.journal is not None:
                (data / "raw").symlink_to(arguments.journal.resolve())
            facts, samples = measure(size, data, rounds, engines, arguments.seed, not arguments.no_table, note)
            shutil.rmtree(data)
            result["sizes"].append(facts)
            result["samples"] += samples
            if arguments.json is not None:  # at once: what was measured outlives what comes
                arguments.json.parent.mkdir(parents=True, exist_ok=True)
                arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if arguments.json is None:
        print(json.dumps(result, indent=1))
    for ours in (name for name in engines if name not in ENGINES):
        for rival in (name for name in engines if name in ENGINES):
            for step, question in (("audit", "audit"), ("advise", "advise"), ("table-recompute", "recompute")):
                if of := ratio(result["samples"], ours, step, question, rival):
                    note(f"{ours}, {step}: {of:.2f} times {rival}'s")


if __name__ == "__main__":
    main()
