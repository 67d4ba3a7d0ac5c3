"""One engine answers the pipeline's questions once, in a process of its own. Run by
`run`, not by hand.

    python -m benchmarks.pipeline.worker ENGINE EVENTS OUT

ENGINE `duckdb` and `hand` are SQL written by hand, on DuckDB and on Spark; `floor` asks
Spark as little as any program could: it starts, answers a question
about one row, and reads every value of the files once.

The last line on stdout is JSON: seconds of each step, by the clock and of processor
time; the most memory in GiB; and a digest of each answer, in one form for all engines.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq

from benchmarks.pipeline.rivals import Duck, Lateness, Sparks, Verdicts
from reaper.pipeline.read.inputs import Inputs, check

Answer = Any
SECONDS: dict[str, float] = {}
CPU: dict[str, float] = {}
"""Of each step: of all threads, Java's included. On a busy machine only these can be
compared.
"""


def timed(step: str, work: Callable[[], Any]) -> Any:
    """Do *work*; note how many seconds it took."""
    before, spent = time.perf_counter(), used()
    result = work()
    SECONDS[step], CPU[step] = time.perf_counter() - before, used() - spent
    SECONDS["GiB"] = held()
    return result


def used() -> float:
    """Processor seconds of this process and its children so far."""
    me = psutil.Process()
    taken = [each.cpu_times() for each in (me, *me.children(recursive=True))]
    return float(sum(times.user + times.system for times in taken))


def held() -> float:
    """The most memory that this process and its children (Spark's Java) have held so
    far, GiB.
    """
    me = psutil.Process()
    states = (
        Path(f"/proc/{each.pid}/status").read_text() for each in (me, *me.children(recursive=True))
    )
    return (
        sum(int(found[1]) for state in states if (found := re.search(r"VmHWM:\s*(\d+)", state)))
        / 2**20
    )


def form_of_audit(verdicts: Verdicts, lateness: Lateness) -> Answer:
    """Verdicts and lateness per listener; listeners go without their names, which one
    engine knows as hashes.
    """
    listeners: dict[Any, list[Any]] = {}
    for (listener, verdict), count in sorted(verdicts.items(), key=lambda item: item[0][1]):
        listeners.setdefault(listener, []).append([verdict, count])
    return sorted(
        [found, list(lateness.get(listener) or ())] for listener, found in listeners.items()
    )


def run_rival(inputs: Inputs, out: Path) -> dict[str, Answer]:
    engine = timed("session", lambda: Duck(inputs))
    with closing(engine.con):
        return {
            "audit": form_of_audit(
                *timed("audit", lambda: engine.audit(out / "connections.parquet"))
            )
        }


def form_of_connections(target: Path) -> Answer:
    """The audit's table, summed up once more: not timed."""
    table = pq.read_table(target, columns=["listener", "verdict", "lateness_ns"])
    cells = table.group_by(["listener", "verdict"]).aggregate([([], "count_all")]).to_pylist()
    late = (
        table.group_by("listener")
        .aggregate([("lateness_ns", "min"), ("lateness_ns", "max")])
        .to_pylist()
    )
    return form_of_audit(
        {(row["listener"], row["verdict"]): row["count_all"] for row in cells},
        {
            row["listener"]: (row["lateness_ns_min"], row["lateness_ns_max"])
            for row in late
            if row["lateness_ns_min"] is not None
        },
    )


def run_product(engine: str, inputs: Inputs, out: Path) -> dict[str, Answer]:
    """The product's own program on *engine*: spark or embedded."""
    from reaper.pipeline import engine as engines
    from reaper.pipeline.advise.run import Policy, advise
    from reaper.pipeline.audit.run import Settings, audit
    from reaper.pipeline.engine import embedded

    engines.use(engine)
    opened: Any = (
        embedded.open_session() if engine == "embedded" else engines.open_session("benchmark")
    )
    with ExitStack() as stack:
        spark = timed("session", lambda: stack.enter_context(opened))
        if engine == "spark":
            engines.expect(spark, sum(facts.rows for facts in inputs.files))
        timed("audit", lambda: audit(spark, inputs, None, out, Settings()))
        advice = timed("advise", lambda: advise(spark, inputs, None, Policy()))
    advised = re.sub(
        r"(\.\d{6})\d+", r"\1", json.dumps(advice, sort_keys=True)
    )  # sums of floats differ in their order
    return {"audit": form_of_connections(out / "connections"), "advise": advised}


def run_hand(inputs: Inputs, out: Path) -> dict[str, Answer]:
    """The audit by SQL written by hand, in a Spark with the product's settings."""
    from reaper.pipeline import engine as engines
    from reaper.pipeline.read.file import EVENTS

    engines.use("spark")
    opened = engines.open_session("benchmark")
    with ExitStack() as stack:
        spark = timed("session", lambda: stack.enter_context(opened))
        engines.expect(spark, sum(facts.rows for facts in inputs.files))

        def read(files: list[str]) -> Any:
            return engines.here().read_parquet(spark, list(map(Path, files)), EVENTS)

        target = out / "connections.parquet"
        answer = timed("audit", lambda: Sparks(spark, inputs).audit(read, target))
    return {"audit": form_of_audit(*answer)}


def run_floor(inputs: Inputs) -> None:
    """As little as a program on Spark can do with the files."""
    from pyspark.sql import functions

    from reaper.pipeline import engine as engines
    from reaper.pipeline.read.file import EVENTS

    engines.use("spark")
    opened = engines.open_session("benchmark")
    with ExitStack() as stack:
        spark = timed("session", lambda: stack.enter_context(opened))
        timed("first query", lambda: spark.range(1).count())
        files = [facts.path for facts in inputs.files]
        events = engines.here().read_parquet(spark, files, EVENTS)
        # A count of rows alone would read nothing but footers.
        values = [functions.count(name) for name in EVENTS.names]
        timed("read", lambda: events.agg(*values).collect())


def main(engine: str, events: str, out: str) -> None:
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    inputs = timed("check", lambda: check([Path(events)]))
    if inputs.quarantined:
        raise SystemExit(f"put aside: {inputs.quarantined[0]}")
    answers: dict[str, Answer] = {}
    if engine == "floor":
        run_floor(inputs)
    elif engine == "duckdb":
        answers = run_rival(inputs, folder)
    elif engine == "hand":
        answers = run_hand(inputs, folder)
    else:
        answers = run_product(engine, inputs, folder)
    digests = {
        name: hashlib.sha256(json.dumps(answer).encode()).hexdigest()
        for name, answer in answers.items()
    }
    print(json.dumps({"s": SECONDS, "cpu": CPU, "answers": digests}))


if __name__ == "__main__":
    main(*sys.argv[1:])
