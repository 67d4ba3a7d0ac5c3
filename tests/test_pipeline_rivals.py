"""DuckDB's SQL written by hand and the pipeline answer alike about simulated journals, to the last cell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("duckdb")

from benchmarks.pipeline.rivals import Duck
from benchmarks.pipeline.worker import Listener, form_of_connections, form_of_rival
from loadgen.cli import main
from loadgen.journals import NAMES
from reaper.pipeline.advise.run import Policy, advise
from reaper.pipeline.audit.run import Settings, audit
from reaper.pipeline.read.inputs import check


@pytest.mark.slow
def test_sql_written_by_hand_gives_the_answers_of_the_pipeline_which_are_what_was_planted(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every fault, by the command that users have, among stalls that excuse what would be a violation."""
    faults = tmp_path / "faults.toml"
    faults.write_text("[faults]\n" + "".join(f"{name} = {i + 1}\n" for i, name in enumerate(NAMES)))
    plan = "--side server --writers 2 --events 60k --seed 5 --duration 20m --timeout 30s --stalls 5 --quiet --json"
    assert main(["simulate", "--journal", str(tmp_path), "--faults", str(faults), *plan.split()]) == 0
    made = json.loads(capsys.readouterr().out)
    journal = check([tmp_path / "server"])
    summary = audit(spark, journal, None, tmp_path / "out", Settings()).summary
    with Listener() as heard:
        advise(spark, journal, None, Policy())
    wanted = {name: count for name, count in made["verdicts"].items() if count}
    assert {name: count for name, count in summary["verdicts"].items() if count} == wanted
    assert (summary["connections"], summary["lost_without_a_row"]) == (made["connections"], 0)
    assert summary["stalls"]["count"] > 3
    rival = Duck(journal)
    assert form_of_rival(rival.audit(tmp_path / "connections.parquet")) == form_of_connections(
        tmp_path / "out" / "connections"
    )
    assert form_of_rival(rival.advise()) == heard.form()
    rival.close()
