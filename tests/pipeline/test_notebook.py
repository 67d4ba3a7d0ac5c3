"""DataFrame in, DataFrame out: the same questions from a notebook, on both engines."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb")

import reaper.pipeline as rooms
from reaper.errors import InvalidArgument
from reaper.pipeline import notebook
from reaper.pipeline.losses.run import REQUESTS
from reaper.pipeline.read.file import EVENTS
from tests.helpers.pipeline_traffic import on_spark, only, write
from tests.pipeline.test_losses import ASKED, CUT, written

ask: Any = rooms
"""The rooms can be called, which no checker of types can see."""

FAULTS = {"early": 3, "missed": 2}


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    write(tmp_path / "server", connections=60, faults=FAULTS)
    return tmp_path / "server"


def asked(session: Any, journal: Path, out: Path, lines: Any) -> dict[str, Any]:
    """Ask every question of *session*."""
    events = ask.events(session, journal)
    return told(
        events,
        ask.audit(events, out=out),
        ask.advise(events, max_cut=0.05),
        ask.losses(lines, "nginx"),
    )


def told(events: Any, connections: Any, advice: Any, requests: Any) -> dict[str, Any]:
    """What came of each question."""
    return {
        "columns": [events.columns, advice.columns, requests.columns],
        "rows": events.count(),
        "verdicts": sorted(tuple(row) for row in connections.groupBy("verdict").count().collect()),
        "result": ask.summary(connections)["result"],
        "advice": [tuple(row) for row in advice.orderBy("listener", "timeout_s").collect()],
        "listeners": sorted(ask.summary(advice)["listeners"]),
        "lost": requests.where("outcome = 'lost'").count(),
    }


def check_answer(found: dict[str, Any]) -> None:
    events, advice, requests = found["columns"]
    assert events == [*EVENTS.names, "code"]
    assert (advice, requests) == (notebook.ADVICE.names, REQUESTS.names)
    assert found["rows"] > 60
    assert FAULTS.items() <= dict(found["verdicts"]).items()
    assert (found["result"], found["listeners"], found["lost"]) == ("fail", ["echo"], 2)
    assert found["advice"]


def test_a_notebook_asks_of_frames_what_the_commands_ask_of_files(
    spark: Any, journal: Path, tmp_path: Path
) -> None:
    from reaper.pipeline.engine import embedded

    log = written(tmp_path / "log", "nginx", (*ASKED, CUT))
    check_answer(asked(spark, journal, tmp_path / "out", embedded.read_lines(spark, [log])))


@on_spark
def test_the_example_notebook_gets_the_same_on_spark_and_its_session_is_as_it_was(
    real_spark: Any, journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"JOURNAL": journal, "OUT": tmp_path / "out"}
    given["PROXY_LOG"] = written(tmp_path / "log", "nginx", (*ASKED, CUT))
    for name, value in given.items():
        monkeypatch.setenv(name, str(value))
    kept = tmp_path / "out" / "days" / "day=2020-01-01"
    kept.mkdir(parents=True)
    before = dict(real_spark.conf.getAll)
    notebook_of = Path(__file__).parents[2] / "examples" / "journals.ipynb"
    found: dict[str, Any] = {}
    for cell in json.loads(notebook_of.read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), found)
    names = ("events", "connections", "advice", "requests")
    check_answer(told(*(found[name] for name in names)))
    rows = found["rows_of_early"].collect()
    assert len({row.conn for row in rows}) == FAULTS["early"]
    assert {row.verdict for row in rows} == {"early"}
    days = real_spark.read.parquet(str(kept.parent))
    assert days.count() == found["connections"].count()
    assert kept.exists()  # a day that is not of this answer
    assert dict(real_spark.conf.getAll) == before


def test_the_page_names_every_column_of_the_connections(spark: Any, tmp_path: Path) -> None:
    write(tmp_path / "server", tmp_path / "client", connections=10)
    server, client = (ask.events(spark, tmp_path / side) for side in ("server", "client"))
    page = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text()
    section = page.split("### The columns of `connections/`\n")[1].split("\n## ")[0]
    cells = [row.split("|")[1] for row in section.splitlines() if row.startswith("| `")]
    named = [re.findall("`([a-z_]+)`", cell) for cell in cells]
    frame = ask.audit(server, client, out=tmp_path / "out")
    assert sorted(name for names in named for name in names) == sorted(frame.columns)


def test_a_frame_of_unknown_files_is_refused(spark: Any, journal: Path) -> None:
    events = ask.events(spark, [journal])
    with pytest.raises(InvalidArgument, match="as it was given"):
        ask.audit(events.where("code = 0"))
    with pytest.raises(InvalidArgument, match="what audit or advise gave"):
        ask.summary(events)
    with pytest.raises(InvalidArgument, match="log_format 'apache'"):
        ask.losses(events, "apache")


def test_a_file_that_is_put_aside_is_warned_of(spark: Any, journal: Path) -> None:
    only(journal).write_bytes(b"no Parquet")
    with pytest.warns(UserWarning, match="put aside: .*"):
        ask.events(spark, journal)


def test_importing_the_pipeline_imports_no_engine() -> None:
    code = (
        "import sys, reaper.pipeline\n"
        "print(sorted({'pyspark', 'duckdb', 'pyarrow'} & set(sys.modules)))\n"
        "assert all(map(callable, (reaper.pipeline.audit, reaper.pipeline.losses)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
