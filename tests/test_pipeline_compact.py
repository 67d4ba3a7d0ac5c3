"""A compacted table answers as its files did, moves and sorts no row, and is refused when it is not whole."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

pytest.importorskip("pyspark")
if shutil.which("java") is None:
    pytest.skip("Spark needs Java 17 (Debian: apt-get install openjdk-17-jre-headless)", allow_module_level=True)

import pyarrow.parquet as pq
from pipeline_traffic import WALL, S, journal, write
from pyspark.sql.readwriter import DataFrameWriter

from reaper.pipeline import cli
from reaper.pipeline.advise.run import NotFull, Policy, advise
from reaper.pipeline.audit.run import Settings, audit
from reaper.pipeline.read import compact as module
from reaper.pipeline.read.compact import Occupied, buckets_for, compact
from reaper.pipeline.read.inputs import Inputs, check
from reaper.pipeline.read.manifest import BUCKETS, MANIFEST, Unsound

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FAULTS = {"early": 2, "late": 1, "missed": 1, "lost": 2, "duplicate": 1, "activity_after_end": 1, "missing_touch": 1}


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two listeners, a stall, every kind of fault, a file that must be put aside, and one that is still written to."""
    directory = tmp_path_factory.mktemp("raw")
    write(directory, connections=150, faults=FAULTS, listeners=("echo", "http"))
    with journal(directory, 8) as ours:
        ours.stall(10 * S, 3 * S)
        ours.open(S, 6000, "echo").reap(10 * S, 7 * S)
        spared = ours.open(S, 6000, "echo")
        spared.averted(7 * S)
        spared.touch(7 * S)
        spared.close_peer(8 * S)
        quick = ours.open(S, 6000, "http")
        quick.touch(S)  # at the instant of its opening
        quick.close_app(S)
    (directory / "reaper-half.parquet").write_bytes(b"PAR1")
    (directory / ".growing.arrows").write_bytes(b"")
    return directory


@pytest.fixture(scope="module")
def table(real_spark: Any, raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("made") / "it's a table"
    summary = compact(real_spark, looked(raw), out, 3)
    assert (summary["buckets"], len(summary["quarantined"]), summary["growing"]) == (3, 1, 1)
    return out


def looked(*directories: Path, checksums: bool = True) -> Inputs:
    return check(directories, now_ns=WALL, checksums=checksums)


def answers(real_spark: Any, inputs: Inputs, out: Path, *, recompute: bool = False) -> tuple[Any, Any, list[Any]]:
    audited = audit(real_spark, inputs, None, out, Settings())
    advice = advise(real_spark, inputs, None, Policy(max_cut=0.05), recompute=recompute).summary
    return audited.summary, advice, sorted(map(tuple, audited.connections.collect()))


def test_audit_and_advice_of_the_table_are_those_of_the_files(
    real_spark: Any, raw: Path, table: Path, tmp_path: Path
) -> None:
    of_files = answers(real_spark, looked(raw), tmp_path / "a")
    of_table = answers(real_spark, looked(table), tmp_path / "b")
    assert of_table == of_files
    verdicts = of_files[0]["verdicts"]
    assert {name: verdicts[name] for name in FAULTS} == FAULTS
    assert of_files[0]["files"]["growing"] == 1
    (path,) = [path for path in raw.iterdir() if "w0000007" in path.name]
    assert sum(pq.read_metadata(file).num_rows for file in (table / BUCKETS).glob("*.parquet")) > 300
    assert path.exists()  # compaction leaves the files alone


def test_the_command_makes_a_table_that_the_commands_read(
    on_spark: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "raw", connections=12)
    raw, table = str(tmp_path / "raw"), str(tmp_path / "table")
    assert cli.main(["compact", "--events", raw, "--out", table, "--buckets", "2", "--quiet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["buckets"] == 2
    assert cli.main(["compact", "--events", raw, "--out", table, "--quiet"]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert cli.main(["audit", "--events", table, "--out", str(tmp_path / "out"), "--quiet"]) == 0
    capsys.readouterr()
    (tmp_path / "table" / MANIFEST).unlink()
    assert cli.main(["audit", "--events", table, "--out", str(tmp_path / "out"), "--quiet"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "no whole compacted table" in said


# ---- the plans ------------------------------------------------------------------------------------------------------


def plans(real_spark: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The physical plan of every query from now on that reads a compacted table."""
    found: list[str] = []
    alone = Lock()  # questions are asked at once, and there is one stdout

    def note(frame: Any) -> None:
        with alone, redirect_stdout(StringIO()) as said:
            frame.explain()
        if "FileScan parquet spark_catalog.default.reaper_" in said.getvalue():
            found.append(said.getvalue())

    def noting(owner: Any, name: str, frame_of: Any) -> None:
        original = getattr(owner, name)

        def noted(self: Any, *args: Any, **options: Any) -> Any:
            note(frame_of(self))
            return original(self, *args, **options)

        monkeypatch.setattr(owner, name, noted)

    dataframe = type(real_spark.range(1))
    for name in ("collect", "count", "first", "toArrow"):
        noting(dataframe, name, lambda frame: frame)
    noting(DataFrameWriter, "parquet", lambda writer: writer._df)
    return found


def subtree(lines: list[str], at: int) -> list[str]:
    """The step at *at* of a plan, with all that feeds it: those below that are indented further."""

    def depth(line: str) -> int:
        return len(line) - len(line.lstrip(" :+-*()0123456789"))

    end = next((i for i in range(at + 1, len(lines)) if depth(lines[i]) <= depth(lines[at])), len(lines))
    return lines[at:end]


def moves_of_events(plan: str) -> list[str]:
    """The steps of *plan* that move or sort rows of the table."""
    lines = plan.splitlines()
    return [
        line
        for at, line in enumerate(lines)
        if re.search(r"\b(Exchange|Sort)\b", line) and any("FileScan" in fed for fed in subtree(lines, at))
    ]


@pytest.mark.parametrize("question", ["audit", "advise", "recompute"])
def test_a_compacted_table_is_asked_without_moving_or_sorting_a_row(
    real_spark: Any, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    inputs = looked(table)
    found = plans(real_spark, monkeypatch)
    if question == "audit":
        audit(real_spark, inputs, None, tmp_path, Settings())
    else:
        advise(real_spark, inputs, None, Policy(), recompute=question == "recompute")
    assert len(found) == {"audit": 2, "advise": 3, "recompute": 4}[question]
    for plan in found:
        moved = moves_of_events(plan)
        if "LocalLimit" in plan:  # silences beyond their timeout, and rows of the writers: the few that are fetched
            assert len(moved) == 1, plan
            assert "SinglePartition" in moved[0], plan
        elif question == "audit":
            assert not moved, plan
        else:  # sums per listener and bucket, already added up in each task
            assert len(moved) <= 1, plan
            lines = plan.splitlines()
            for line in moved:
                assert "Aggregate" in subtree(lines, lines.index(line))[1], plan


# ---- gaps from the times --------------------------------------------------------------------------------------------


def test_silences_recomputed_from_the_times_are_those_that_a_healthy_log_states(
    real_spark: Any, tmp_path: Path
) -> None:
    write(tmp_path / "raw", connections=150, listeners=("echo", "http"))
    inputs = looked(tmp_path / "raw")
    compact(real_spark, inputs, tmp_path / "table", 2)
    stated = advise(real_spark, inputs, None, Policy()).summary
    for source in (inputs, looked(tmp_path / "table")):
        assert advise(real_spark, source, None, Policy(), recompute=True).summary == stated


def test_silences_are_not_recomputed_from_a_log_that_has_not_every_activity(real_spark: Any, tmp_path: Path) -> None:
    write(tmp_path / "raw", connections=4, mode="gaps")
    with pytest.raises(NotFull, match="writer 7 is not in full mode"):
        advise(real_spark, looked(tmp_path / "raw"), None, Policy(), recompute=True)


# ---- whole or not at all --------------------------------------------------------------------------------------------


def test_tables_and_files_merge_and_what_is_in_both_counts_once(real_spark: Any, tmp_path: Path) -> None:
    for name in ("old", "new"):
        with journal(tmp_path / name, 1 if name == "old" else 2) as ours:
            ours.open(S, 5000, name).reap(7 * S, 6 * S)
    compact(real_spark, looked(tmp_path / "old"), tmp_path / "first", 2)
    both = looked(tmp_path / "first", tmp_path / "new", tmp_path / "old")
    assert len(both.files) == 2
    assert "duplicated" in both.quarantined[0]["reason"]
    compact(real_spark, looked(tmp_path / "first", tmp_path / "new"), tmp_path / "second", 2)
    summary = audit(real_spark, looked(tmp_path / "second"), None, tmp_path / "out", Settings()).summary
    assert (summary["result"], summary["connections"], summary["files"]["read"]) == ("pass", 2, 2)
    mixed = audit(real_spark, looked(tmp_path / "first", tmp_path / "new"), None, tmp_path / "out", Settings()).summary
    assert mixed == summary
    with pytest.raises(Unsound, match="both hold the rows"):
        looked(tmp_path / "first", tmp_path / "second")
    with pytest.raises(Unsound, match="name that itself"):
        looked(tmp_path)


def drop_bucket(table: Path) -> None:
    next((table / BUCKETS).glob("*.parquet")).unlink()


def add_bucket(table: Path) -> None:
    path = next((table / BUCKETS).glob("*.parquet"))
    shutil.copy(path, path.with_name(path.name.replace("part-", "part-9")))


def edit_footer(table: Path) -> None:
    path = next((table / BUCKETS).glob("*.parquet"))
    data = path.read_bytes()
    assert b"parquet-mr" in data[-2000:]
    path.write_bytes(data[:-2000] + data[-2000:].replace(b"parquet-mr", b"parquet-mx"))


def edit_manifest(table: Path) -> None:
    path = table / MANIFEST
    path.write_text(path.read_text().replace('"growing": 1', '"growing": 0'))


def cut_manifest(table: Path) -> None:
    path = table / MANIFEST
    path.write_text(path.read_text()[:-20])


def drop_manifest(table: Path) -> None:
    (table / MANIFEST).unlink()


def drop_buckets(table: Path) -> None:
    shutil.rmtree(table / BUCKETS)


@pytest.mark.parametrize(
    "harm", [drop_bucket, add_bucket, edit_footer, edit_manifest, cut_manifest, drop_manifest, drop_buckets]
)
def test_a_table_that_is_not_what_its_manifest_says_is_refused_with_one_line(
    table: Path, tmp_path: Path, harm: Any
) -> None:
    shutil.copytree(table, tmp_path / "copy")
    assert len(looked(tmp_path / "copy").tables) == 1
    harm(tmp_path / "copy")
    with pytest.raises(Unsound) as refused:
        looked(tmp_path / "copy")
    assert "\n" not in str(refused.value)
    assert str(tmp_path / "copy") in str(refused.value)
    if harm is not edit_footer:  # a file of the same size; within the rows, the checksums of the pages tell
        with pytest.raises(Unsound):
            looked(tmp_path / "copy", checksums=False)


@pytest.mark.parametrize("broken", ["write_manifest", "read_events"])
def test_an_interrupted_compaction_leaves_nothing(
    real_spark: Any, raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, broken, interrupt)
    with pytest.raises(KeyboardInterrupt):
        compact(real_spark, looked(raw), tmp_path / "table", 2)
    assert list(tmp_path.iterdir()) == []
    assert not [name for found in real_spark.catalog.listTables() if len(name := found.name) > 30]


def test_a_table_is_never_added_to(real_spark: Any, raw: Path, table: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in table.rglob("*")}
    with pytest.raises(Occupied, match="is not empty"):
        compact(real_spark, looked(raw), table, 2)
    assert {path: path.stat().st_mtime_ns for path in table.rglob("*")} == before
    with pytest.raises(Occupied, match="for a pattern"):
        compact(real_spark, looked(raw), table.parent / "of {any}", 2)


def test_there_is_a_bucket_for_every_two_million_rows() -> None:
    assert [buckets_for(rows) for rows in (0, 8_000_000, 8_000_001, 10**12)] == [4, 4, 5, 4096]
