"""One engine answers the pipeline's questions once, in a process of its own. Run by `run`, not by hand.

It tells on stdout, a JSON line each, which step begins, and what a step took and answered; who started it watches the
memory meanwhile. Answers are put into one form in which those of different engines are equal or not.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.pipeline.rivals import ENGINES, Counted, Judged
from reaper.pipeline.read.inputs import Inputs, check

Answer = Any


def tell(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def timed(step: str, work: Callable[[], Any]) -> Any:
    """Do *work*; tell that it begins and how many seconds it took."""
    tell(begin=step)
    before = time.perf_counter()
    result = work()
    tell(end=step, s=time.perf_counter() - before)
    return result


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
        numbers = [facts[key] for key in ("connections", "reaps", "short", "cut", "peak")]
        means = [f"{mean:.6g}" for mean in facts["mean"]]
        found.append([*numbers, means, sorted([bucket, *ends] for bucket, ends in buckets.items())])
    return [f"{span_s:.6f}", sorted(found)]


# ---- the rivals ------------------------------------------------------------------------------------------------------


def form_of_rival(answer: Judged | Counted) -> Answer:
    """The answer of a rival."""
    if isinstance(answer, Judged):
        return form_of_audit(answer.verdicts, answer.lateness)
    cells: dict[str, dict[int, list[int]]] = {}
    for (listener, bucket, ended), count in answer.cells.items():
        cells.setdefault(listener, {}).setdefault(bucket, [0, 0])[0 if ended else 1] += count
    return form_of_advice(cells, answer.table, answer.span_s)


def run_rival(name: str, inputs: Inputs, out: Path, steps: list[str]) -> None:
    engine = timed("session", lambda: ENGINES[name](inputs))
    try:
        for step in steps:
            work = {
                "audit": lambda: engine.audit(out / "connections.parquet"),
                "advise": engine.advise,
            }[step]
            tell(answer=step, of=form_of_rival(timed(step, work)))
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


def run_product(engine: str, inputs: Inputs, out: Path, steps: list[str]) -> None:
    """The product's own program on *engine*: spark or embedded."""
    from reaper.pipeline import engine as engines
    from reaper.pipeline.advise.run import Policy, advise
    from reaper.pipeline.audit.run import Settings, audit

    rows = sum(facts.rows for facts in inputs.files)
    engines.use(engine)
    if engine == "embedded":
        from reaper.pipeline.engine import embedded

        session: Any = embedded.open_session()
    else:
        session = engines.open_session("benchmark", rows=rows)
    spark = timed("session", session.__enter__)
    try:
        for step in steps:
            if step == "audit":
                timed(step, partial(audit, spark, inputs, None, out, Settings()))
                tell(answer=step, of=form_of_connections(out / "connections"))
            else:
                with Listener() as heard:
                    timed(step, partial(advise, spark, inputs, None, Policy()))
                tell(answer=step, of=heard.form())
    finally:
        session.__exit__(None, None, None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=("spark", "embedded", *ENGINES))
    parser.add_argument("--events", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    inputs = timed("check", lambda: check([arguments.events]))
    if inputs.quarantined:
        raise SystemExit(f"put aside: {inputs.quarantined[0]}")
    steps = arguments.steps.split(",")
    if arguments.engine in ENGINES:
        run_rival(arguments.engine, inputs, arguments.out, steps)
    else:
        run_product(arguments.engine, inputs, arguments.out, steps)


if __name__ == "__main__":
    main()
