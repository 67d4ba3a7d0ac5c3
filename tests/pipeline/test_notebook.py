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
from reaper.pipeline.engine import F
from reaper.pipeline.losses.run import REQUESTS
from reaper.pipeline.read.file import EVENTS, Refused
from reaper.pipeline.read.inputs import check
from reaper.pipeline.read.table import SAID, said_of
from reaper.pipeline.read.table import told as told_of
from tests.helpers.pipeline_traffic import S, on_spark, only, play, write
from tests.helpers.pipeline_traffic import journal as by_hand
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
    cells = json.loads(notebook_of.read_text())["cells"]
    code = {cell["id"]: "".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"}
    real_spark.sql("DROP TABLE IF EXISTS journal")
    for source in code.values():
        exec(source, found)
    exec(code["cell-table-kept"], found)  # as on the next day: no file is new
    rows = real_spark.table("journal")
    assert rows.count() == found["events"].count()
    assert ask.summary(found["of_table"]) == ask.summary(found["connections"])
    real_spark.sql("DROP TABLE journal")
    names = ("events", "connections", "advice", "requests")
    check_answer(told(*(found[name] for name in names)))
    rows = found["rows_of_early"].collect()
    assert len({row.conn for row in rows}) == FAULTS["early"]
    assert {row.verdict for row in rows} == {"early"}
    days = real_spark.read.parquet(str(kept.parent))
    assert days.count() == found["connections"].count()
    assert kept.exists()  # a day that is not of this answer
    assert dict(real_spark.conf.getAll) == before


def shortened(rows: Any, writer: int) -> Any:
    """*rows* without the opening of *writer*'s connection."""
    return rows.where(f"NOT (kind = 'open' AND shiftright(conn, 43) = {writer})")


@on_spark
def test_a_table_is_judged_file_by_file_and_whole(real_spark: Any, tmp_path: Path) -> None:
    for writer in range(1, 5):
        with by_hand(tmp_path / "server", writer) as ours:
            play("open 0 5; touch 3; reap 8.5 8", S, ours)
    rows = ask.table(real_spark, tmp_path / "server")
    assert [*rows.columns] == [*EVENTS.names, "file", "day"]
    assert {str(row.day) for row in rows.select("day").distinct().collect()} == {"2026-09-21"}
    of = "shiftright(conn, 43)"
    changed = rows.withColumn("file", F.expr(f"IF({of} = 3, '{{}}', file)"))
    bad = shortened(changed, 1).unionByName(rows.where(f"{of} = 2"))
    with pytest.warns(UserWarning, match="put aside: .*") as said:
        events = ask.events(real_spark, bad)
    reasons = [str(each.message).partition(": ")[2] for each in said]
    assert sorted(re.sub("run [0-9a-f]+", "run R", reason) for reason in reasons) == [
        "3 rows of the table: its column file has another text than reaper.pipeline.table gave",
        "file 1 of run R of writer 1: 2 rows are in the table, 3 were in the file",
        "file 1 of run R of writer 2: 6 rows are in the table, 3 were in the file",
    ]
    assert events.count() == 3
    connections = ask.audit(events, out=tmp_path / "out")
    assert [(row.conn >> 43, row.verdict) for row in connections.collect()] == [(4, "ok_reaped")]
    assert ask.summary(connections)["result"] == "inconclusive"
    with pytest.raises(InvalidArgument, match="column file is missing, expected string"):
        ask.events(real_spark, rows.drop("file"))
    with pytest.raises(InvalidArgument, match="column t is string, expected bigint"):
        ask.events(real_spark, rows.withColumn("t", rows.t.cast("string")))


def test_the_embedded_engine_refuses_a_table(spark: Any, journal: Path) -> None:
    with pytest.raises(InvalidArgument, match="a table needs Spark"):
        ask.table(spark, journal)
    with pytest.raises(InvalidArgument, match="a table needs Spark"):
        ask.events(spark, ask.events(spark, journal))


def test_the_text_of_a_file_says_what_its_footer_says(journal: Path) -> None:
    (facts,) = check([journal]).files
    found = told_of(said_of(facts))
    assert {name: getattr(found, name) for name in SAID} == {
        name: getattr(facts, name) for name in SAID
    }
    assert found.said == said_of(facts)
    wrong = ("", "[]", "{}", said_of(facts).replace('"serial": 1', '"serial": "1"'))
    for text in (*wrong, said_of(facts).replace('"anchors": [', '"anchors": ["x", ')):
        with pytest.raises(Refused, match="another text"):
            told_of(text)


@on_spark
def test_the_blocks_of_the_page_run_as_printed(
    real_spark: Any, journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its order; what a reader has, a session, a lake, a log and a frame, is put
    in.
    """
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text()
    section = page.split("## From a notebook\n")[1].split("\n### The columns")[0]
    written(tmp_path / "losses.log", "nginx", (*ASKED, CUT))
    real_spark.sql("DROP TABLE IF EXISTS journal")
    seen = [("a", float(at)) for at in range(20)]
    names: dict[str, Any] = {
        "spark": real_spark,
        "sessions": real_spark.createDataFrame(seen, "id string, seen double"),
    }
    for text in re.findall(r"```\n(.*?)```", section, re.DOTALL):
        given = text.replace("s3a://lake/reaper", str(journal)).replace("s3a:/", str(tmp_path))
        exec(given.replace("losses.log", f"{tmp_path}/losses.log"), names)
        if "read.text" in text:
            assert names["events"].count() > 60
    assert real_spark.table("journal").count() > 60
    real_spark.sql("DROP TABLE journal")


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
