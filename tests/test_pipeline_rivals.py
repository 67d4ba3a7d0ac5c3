"""DuckDB's SQL written by hand and the pipeline answer alike about simulated journals, to the last cell."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")
if shutil.which("java") is None:
    pytest.skip("Spark needs Java 17 (Debian: apt-get install openjdk-17-jre-headless)", allow_module_level=True)


from benchmarks.pipeline.rivals import Duck
from benchmarks.pipeline.worker import Listener, form_of_connections, form_of_rival
from loadgen.journals import NAMES
from reaper.pipeline.advise.run import Policy, advise
from reaper.pipeline.audit.run import Settings, audit
from reaper.pipeline.read.inputs import Inputs, check

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def simulated(out: Path, *more: str) -> dict[str, Any]:
    """A server's journal, by the command that users have; what it says it wrote."""
    command = [sys.executable, "-m", "loadgen", "simulate", "--journal", str(out), "--side", "server", "--writers", "2"]
    command += ["--quiet", "--json", *more]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> tuple[Inputs, dict[str, Any]]:
    """A journal with every fault in it, and stalls that excuse what would be a violation."""
    out = tmp_path_factory.mktemp("journal")
    (out / "faults.toml").write_text("[faults]\n" + "".join(f"{name} = {i + 1}\n" for i, name in enumerate(NAMES)))
    plan = ["--events", "60k", "--seed", "5", "--duration", "20m", "--timeout", "30s", "--stalls", "5"]
    summary = simulated(out / "made", *plan, "--faults", str(out / "faults.toml"))
    return check([out / "made" / "server"]), summary


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


def test_sql_written_by_hand_gives_the_answers_of_spark(
    journal: tuple[Inputs, dict[str, Any]], spark_says: tuple[dict[str, Any], Any, Any], tmp_path: Path
) -> None:
    _, connections, advice = spark_says
    rival = Duck(journal[0])
    assert form_of_rival(rival.audit(tmp_path / "connections.parquet")) == connections
    assert form_of_rival(rival.advise()) == advice
    rival.close()
