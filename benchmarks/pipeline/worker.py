"""One engine answers the pipeline's questions once, in a process of its own. Run by `run`, not by hand.

    python -m benchmarks.pipeline.worker ENGINE EVENTS OUT QUESTION ...

The last line on stdout is JSON: seconds of each step, the most memory in GiB, and a digest of each answer, in one form
for all engines.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq

from benchmarks.pipeline.rivals import Counted, Duck, Judged
from reaper.pipeline.read.inputs import Inputs, check

Answer = Any
SECONDS: dict[str, float] = {}


def timed(step: str, work: Callable[[], Any]) -> Any:
    """Do *work*; note how many seconds it took."""
    before = time.perf_counter()
    result = work()
    SECONDS[step] = time.perf_counter() - before
    SECONDS["GiB"] = held()
    return result


def held() -> float:
    """The most memory that this process and its children (Spark's Java) have held so far, GiB."""
    me = psutil.Process()
    states = (Path(f"/proc/{each.pid}/status").read_text() for each in (me, *me.children(recursive=True)))
    return sum(int(found[1]) for state in states if (found := re.search(r"VmHWM:\s*(\d+)", state))) / 2**20


def form_of_audit(verdicts: dict[tuple[Any, str], int], lateness: dict[Any, tuple[int, int]]) -> Answer:
    """Verdicts and lateness per listener; listeners go without their names, which one engine knows as hashes."""
    listeners: dict[Any, list[Any]] = {}
    for (listener, verdict), count in sorted(verdicts.items(), key=lambda item: item[0][1]):
        listeners.setdefault(listener, []).append([verdict, count])
    return sorted([found, list(lateness.get(listener) or ())] for listener, found in listeners.items())


def form_of_advice(cells: dict[Any, dict[int, list[int]]], table: dict[Any, dict[str, Any]], span_s: float) -> Answer:
    """Per listener every bucket of silences and every figure of the candidates; means to a millionth."""
    found = []
    for listener, buckets in cells.items():
        facts = table[listener]
        numbers = [facts[key] for key in ("connections", "short", "cut", "peak")]
        means = [f"{mean:.6g}" for mean in facts["mean"]]
        found.append([*numbers, means, sorted([bucket, *ends] for bucket, ends in buckets.items())])
    return [f"{span_s:.6f}", sorted(found)]


def form_of_rival(answer: Judged | Counted) -> Answer:
    """The answer of a rival."""
    if isinstance(answer, Judged):
        return form_of_audit(answer.verdicts, answer.lateness)
    cells: dict[str, dict[int, list[int]]] = {}
    for (listener, bucket, ended), count in answer.cells.items():
        cells.setdefault(listener, {}).setdefault(bucket, [0, 0])[0 if ended else 1] += count
    return form_of_advice(cells, answer.table, answer.span_s)


def run_rival(_: str, inputs: Inputs, out: Path, questions: list[str]) -> dict[str, Answer]:
    engine = timed("session", lambda: Duck(inputs))
    asks = {"audit": lambda: engine.audit(out / "connections.parquet"), "advise": engine.advise}
    try:
        return {question: form_of_rival(timed(question, asks[question])) for question in questions}
    finally:
        engine.close()


# ---- the product -----------------------------------------------------------------------------------------------------


class Listener:
    """Notes what the functions that count for the advice return, so that every cell can be compared."""

    def __init__(self) -> None:
        import reaper.pipeline.advise.run

        module: Any = reaper.pipeline.advise.run
        self.cells: dict[Any, dict[float, tuple[int, int]]] = {}
        self.table: dict[Any, dict[str, Any]] = {}
        self.span_s = 0.0
        self._module, self._own = module, (module.histogram, module.connections)

    def __enter__(self) -> Listener:
        count, weigh = self._own

        def histogram(*args: Any, **options: Any) -> Any:
            found = count(*args, **options)
            self.cells = {key: dict(buckets) for key, buckets in found.items()}  # its caller changes what it got
            return found

        def connections(*args: Any, **options: Any) -> Any:
            found = weigh(*args, **options)
            self.table, self.span_s = found.listeners, found.span_s
            return found

        self._module.histogram, self._module.connections = histogram, connections
        return self

    def __exit__(self, *_: object) -> None:
        self._module.histogram, self._module.connections = self._own

    def form(self) -> Answer:
        cells = {
            key: {round(edge * 1e9): list(ends) for edge, ends in buckets.items()}
            for key, buckets in self.cells.items()
        }
        return form_of_advice(cells, self.table, self.span_s)


def form_of_connections(target: Path) -> Answer:
    """The audit's table, summed up once more: not timed."""
    table = pq.read_table(target, columns=["listener", "verdict", "lateness_ns"])
    cells = table.group_by(["listener", "verdict"]).aggregate([([], "count_all")]).to_pylist()
    late = table.group_by("listener").aggregate([("lateness_ns", "min"), ("lateness_ns", "max")]).to_pylist()
    return form_of_audit(
        {(row["listener"], row["verdict"]): row["count_all"] for row in cells},
        {
            row["listener"]: (row["lateness_ns_min"], row["lateness_ns_max"])
            for row in late
            if row["lateness_ns_min"] is not None
        },
    )


def run_product(engine: str, inputs: Inputs, out: Path, questions: list[str]) -> dict[str, Answer]:
    """The product's own program on *engine*: spark or embedded."""
    from reaper.pipeline import engine as engines
    from reaper.pipeline.advise.run import Policy, advise
    from reaper.pipeline.audit.run import Settings, audit
    from reaper.pipeline.engine import embedded

    rows = sum(facts.rows for facts in inputs.files)
    engines.use(engine)
    opened: Any = embedded.open_session() if engine == "embedded" else engines.open_session("benchmark")
    spark = timed("session", opened.__enter__)
    if engine == "spark":
        engines.expect(spark, rows)
    answers: dict[str, Answer] = {}
    try:
        if "audit" in questions:
            timed("audit", lambda: audit(spark, inputs, None, out, Settings()))
            answers["audit"] = form_of_connections(out / "connections")
        if "advise" in questions:
            with Listener() as heard:
                timed("advise", lambda: advise(spark, inputs, None, Policy()))
            answers["advise"] = heard.form()
    finally:
        opened.__exit__(None, None, None)
    return answers


def main(engine: str, events: str, out: str, *questions: str) -> None:
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    inputs = timed("check", lambda: check([Path(events)]))
    if inputs.quarantined:
        raise SystemExit(f"put aside: {inputs.quarantined[0]}")
    answers = (run_rival if engine == "duckdb" else run_product)(engine, inputs, folder, list(questions))
    digests = {name: hashlib.sha256(json.dumps(answer).encode()).hexdigest() for name, answer in answers.items()}
    print(json.dumps({"s": SECONDS, "answers": digests}))


if __name__ == "__main__":
    main(*sys.argv[1:])
