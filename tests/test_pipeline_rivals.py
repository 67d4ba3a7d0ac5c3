"""Spark, DuckDB and Polars answer the same questions about generated journals, to the last cell."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")
pytest.importorskip("polars")
if shutil.which("java") is None:
    pytest.skip("Spark needs Java 17 (Debian: apt-get install openjdk-17-jre-headless)", allow_module_level=True)

import pyarrow.parquet as pq
from pipeline_traffic import WALL
from test_pipeline_audit import EXPECTED, write_traps

from benchmarks.pipeline.generate.faults import FAULTS
from benchmarks.pipeline.generate.run import Plan, generate
from benchmarks.pipeline.rivals import ENGINES
from benchmarks.pipeline.worker import Listener, form_of_connections, form_of_rival
from reaper.pipeline.advise.run import Policy, advise
from reaper.pipeline.audit.run import Settings, audit
from reaper.pipeline.read.inputs import Inputs, check

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> tuple[Inputs, dict[str, Any]]:
    """A journal with every fault in it, and with a stall that excuses (of this seed) what would be a violation."""
    out = tmp_path_factory.mktemp("journal")
    faults = {name: i + 1 for i, name in enumerate(FAULTS)}
    summary = generate(Plan(60_000, seed=5, writers=2, days=0.06, faults=faults), out)
    inputs = check([out])
    return inputs, summary


@pytest.fixture(scope="module")
def spark_says(
    spark: Any, journal: tuple[Inputs, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], Any, Any]:
    """The audit's summary, and both answers in the form that all engines share."""
    out = tmp_path_factory.mktemp("out")
    summary = audit(spark, journal[0], None, out, Settings()).summary
    connections = form_of_connections(out / "connections")
    with Listener() as heard:
        advise(spark, journal[0], None, Policy())
    return summary, connections, heard.form()


def test_the_audit_finds_on_a_generated_journal_exactly_what_was_planted(
    journal: tuple[Inputs, dict[str, Any]], spark_says: tuple[dict[str, Any], Any, Any]
) -> None:
    summary = spark_says[0]
    wanted = {name: count for name, count in journal[1]["verdicts"].items() if count}
    assert {name: count for name, count in summary["verdicts"].items() if count} == wanted
    assert summary["connections"] == journal[1]["connections"]
    assert summary["stalls"]["count"] > 3
    assert summary["lost_without_a_row"] == 0


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_a_rival_gives_the_answers_of_spark(
    engine: str, journal: tuple[Inputs, dict[str, Any]], spark_says: tuple[dict[str, Any], Any, Any], tmp_path: Path
) -> None:
    _, connections, advice = spark_says
    rival = ENGINES[engine](journal[0])
    assert form_of_rival(rival.audit(tmp_path / "connections.parquet")) == connections
    assert form_of_rival(rival.advise()) == advice
    rival.close()


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_a_rival_gives_each_trap_of_the_audit_its_verdict(engine: str, tmp_path: Path) -> None:
    named = write_traps(tmp_path / "server")
    rival = ENGINES[engine](check([tmp_path / "server"], now_ns=WALL))
    rival.audit(tmp_path / "connections.parquet")
    rival.close()
    rows = pq.read_table(tmp_path / "connections.parquet", columns=["conn", "verdict"]).to_pylist()
    assert {named[row["conn"]]: row["verdict"] for row in rows} == {
        trap.__name__: verdict for trap, verdict in EXPECTED.items()
    }


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_silences_recomputed_from_a_right_journal_are_those_that_were_logged(engine: str, tmp_path: Path) -> None:
    generate(Plan(30_000, writers=2, days=0.25), tmp_path)
    inputs = check([tmp_path])
    rival = ENGINES[engine](inputs)
    assert form_of_rival(rival.recompute()) == form_of_rival(rival.advise())
    rival.close()
