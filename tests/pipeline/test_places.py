"""Paths are URIs, and files are checked where they lie: through Hadoop's own layer, on
mounts of `viewfs:`.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Ran

pytest.importorskip("pyspark")

import pyarrow.parquet as pq

from reaper.pipeline import places
from reaper.pipeline.places import Remote, Unreachable, files_below, pattern, place, uri, write_text
from reaper.pipeline.read import file as read_file
from reaper.pipeline.read.command import read_inputs
from reaper.pipeline.read.inputs import Inputs, check
from tests.helpers.pipeline_traffic import WALL, S, journal, on_spark, only, write
from tests.pipeline.test_audit import write_traps
from tests.pipeline.test_inputs import HOSTILE, write_judged

NAME = "reaper-tests"
WRITTEN = r"Made [-0-9: ]+ UTC"
"""The minute in a page."""


# ---- without Spark


@pytest.mark.parametrize(
    "text", ["/a/b", "file:/a/b", "file:///a/b", "file://localhost/a/b", "FILE:///a/b"]
)
def test_a_path_without_a_scheme_and_one_of_file_are_this_machines(text: str) -> None:
    assert (place(text), uri(place(text))) == (Path("/a/b"), "file:///a/b")


@pytest.mark.parametrize(
    "text", ["hdfs://h:8020/a", "s3a://bucket/a", "abfs://c@a/b", "viewfs:/a", "hdfs:/a"]
)
def test_any_other_scheme_is_left_to_hadoop(text: str) -> None:
    found = place(f"{text}/")
    assert isinstance(found, Remote)
    assert (uri(found), uri(found / "x"), (found / "x").name) == (text, f"{text}/x", "x")


def test_a_name_with_a_colon_is_no_uri_and_a_host_of_file_is_refused() -> None:
    assert place("10:00.parquet") == Path("10:00.parquet")
    with pytest.raises(ValueError, match="names a host; expected file:///path"):
        place("file://elsewhere/a")


def test_what_spark_takes_for_a_pattern_is_escaped() -> None:
    assert pattern(Path("/a{b}*")) == r"file:///a\{b\}\*"
    assert pattern(Remote("s3a://b/[x]?")) == r"s3a://b/\[x\]\?"


def test_text_replaces_what_was_there_and_leaves_nothing_hidden(tmp_path: Path) -> None:
    for text in ("one", "two"):
        write_text(tmp_path / "a.json", text)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.json", "two")]


def test_without_a_driver_here_a_uri_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
    with pytest.raises(Unreachable, match="URIs need a driver here: Spark Connect has none"):
        Remote("hdfs://h/a").exists()


# ---- through Hadoop


@pytest.fixture
def mounted(real_spark: Any, tmp_path: Path) -> Iterator[str]:
    """`viewfs://reaper-tests/data`, a mount of the test's directory; and the default
    file system is that `viewfs:`.
    """
    settings = real_spark.sparkContext._jsc.hadoopConfiguration()
    root = f"fs.viewfs.mounttable.{NAME}.link./data"
    before = settings.get("fs.defaultFS")
    settings.set(root, f"file://{tmp_path}")
    settings.set("fs.defaultFS", f"viewfs://{NAME}/")
    settings.set("fs.viewfs.impl.disable.cache", "true")  # the mount is another in each test
    try:
        yield f"viewfs://{NAME}/data"
    finally:
        settings.set("fs.defaultFS", before)
        settings.unset(root)


@pytest.fixture
def run(commands_on_spark: None, pipeline: Ran) -> Ran:
    """Run a command in the session of all tests."""
    return pipeline


@on_spark
def test_audit_advice_and_page_are_the_same_through_a_mount(
    mounted: str, run: Ran, tmp_path: Path
) -> None:
    write(tmp_path / "raw" / "a b%20{c}", connections=60, faults={"early": 2})
    for out, events in (
        (tmp_path / "here", tmp_path / "raw"),
        (f"{mounted}/there", f"{mounted}/raw"),
    ):
        status, printed, _ = run("report", "--events", events, "--out", out)
        assert status == 1, printed
        assert f"{out}/report.html" in printed
    there, here = (
        {
            path.name: re.sub(WRITTEN, "", path.read_text())
            for path in (tmp_path / side).glob("[!.]*.*")
        }
        for side in ("there", "here")
    )
    assert there == here
    assert {"audit.json", "audit.txt", "advice.json", "report.html"} <= here.keys()
    assert json.loads(here["audit.json"])["verdicts"]["early"] == 2
    rows = [
        pq.read_table(tmp_path / out / "connections").sort_by("conn") for out in ("here", "there")
    ]
    assert rows[0].equals(rows[1])


@on_spark
def test_access_logs_are_read_through_a_mount_and_bad_lines_are_shown(
    mounted: str, run: Ran, tmp_path: Path
) -> None:
    lines = [  # enough of them to be sure
        f"{1_700_000_000 + 3 * i + connection}.000 {connection} {i + 1} 0.001"
        for connection in range(300)
        for i in range(20)
    ]
    (tmp_path / "access.log").write_text("\n".join([*lines, "no request", ""]))
    words = (
        "advise",
        "--logs",
        f"{mounted}/access.log",
        "--format",
        "nginx",
        "--out",
        f"{mounted}/out",
    )
    status, said, _ = run(*words)
    assert status == 1
    assert "'no request'" in said
    assert (tmp_path / "out" / "advice.json").exists()
    assert not (tmp_path / "out" / "reaper.toml").exists()  # not of lines of which some are bad


@on_spark
@pytest.mark.parametrize(
    ("where", "reason"),
    [
        ("hdfs://127.0.0.1:{closed}/journals", "{} cannot be reached: "),
        ("nosuch://host/journals", "{} cannot be reached: "),
        ("viewfs://none/x", "{} cannot be reached: "),
        ("hdfs://127.0.0.1:{silent}/journals", "{}: no answer within 1 s"),
        ("{mounted}/none", "python -m reaper.pipeline audit: no such file or directory: {}\n"),
    ],
)
def test_what_cannot_be_reached_is_one_line_and_status_2(
    run: Ran,
    real_spark: Any,
    mounted: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    reason: str,
) -> None:
    real_spark.sparkContext._jsc.hadoopConfiguration().set("ipc.client.connect.max.retries", "0")
    if "silent" in where:
        monkeypatch.setattr(places, "PATIENCE_S", 1.0)
    with socket.socket() as closed, socket.create_server(("127.0.0.1", 0)) as silent:
        closed.bind(("127.0.0.1", 0))  # but not listening: refused
        given = where.format(
            closed=closed.getsockname()[1], silent=silent.getsockname()[1], mounted=mounted
        )
        status, _, err = run("audit", "--events", given, "--out", tmp_path / "out")
    assert (status, err.count("\n")) == (2, 1), err
    assert reason.format(given) in err


@on_spark
def test_files_below_a_mount_are_those_below_the_directory(mounted: str, tmp_path: Path) -> None:
    for name in ("a/b/c.parquet", "a/.hidden", "x%20y.parquet"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    here = {(parts, size) for _, parts, size in files_below(tmp_path)}
    there = list(files_below(Remote(mounted)))
    assert {(parts, size) for _, parts, size in there} == here
    for file in (Remote(mounted) / "a" / ".hidden", tmp_path / "a" / ".hidden"):
        assert [(uri(where), *rest) for where, *rest in files_below(file)] == [
            (uri(file), (), len("a/.hidden"))
        ]


# ---- counted by Spark


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark counts the rows of all files, and nothing here can."""
    monkeypatch.setattr("reaper.pipeline.read.inputs.count_here", None)


def facts_of(inputs: Inputs) -> Any:
    return sorted(inputs.files, key=lambda facts: str(facts.path)), inputs.runs, inputs.quarantined


@on_spark
def test_spark_finds_in_every_hostile_file_what_is_found_here(
    real_spark: Any, tmp_path: Path
) -> None:
    hostile = [
        harm for reason, harm in HOSTILE.items() if reason != "corrupted"
    ]  # each names what it met
    for number, harm in enumerate(hostile):
        harm(write_judged(tmp_path / f"{number:02d} hostile%20"))
    write(tmp_path / "good", connections=20, faults={"missed": 1}, listeners=("echo", "http"))
    with journal(tmp_path / "deadline", 5) as ours:
        ours.open(S, 0, "http").reap(12 * S, 5 * S)
    write_traps(tmp_path / "traps", writer=8)
    traps = only(tmp_path / "traps")
    pq.write_table(pq.read_table(traps), traps, row_group_size=10)
    here = check([tmp_path], now_ns=WALL)
    there = check([tmp_path], spark=real_spark, now_ns=WALL)
    assert len(here.quarantined) == len(hostile)
    assert facts_of(there) == facts_of(here)
    assert sum(facts.averted for facts in here.files) > 0


@on_spark
@pytest.mark.usefixtures("looking")
def test_pages_that_fail_their_checksum_are_put_aside_by_name_and_the_rest_is_asked(
    run: Ran, tmp_path: Path, mounted: str
) -> None:
    for writer, name in enumerate(("good", "bad", "worse")):
        with journal(tmp_path / "raw" / name, writer) as ours:
            for _ in range(40):
                ours.open(S, 5000, "echo").reap(7 * S, 6 * S)
    for name in ("bad", "worse"):
        path = only(tmp_path / "raw" / name)
        content = bytearray(path.read_bytes())
        column = (
            pq.read_metadata(path).row_group(0).column(2 if name == "bad" else 4)
        )  # kind, nbytes
        content[column.data_page_offset + column.total_compressed_size // 2] ^= 0xFF
        path.write_bytes(content)
    for events in (tmp_path / "raw", f"{mounted}/raw"):
        status, _, _ = run("audit", "--events", events, "--out", tmp_path / "out")
        summary = json.loads((tmp_path / "out" / "audit.json").read_text())
        aside = [
            (Path(entry["path"]).parent.name, entry["reason"])
            for entry in summary["files"]["quarantined"]
        ]
        assert status == 1
        assert [name for name, _ in aside] == ["bad", "worse"]
        assert all(reason.startswith("corrupted: ") for _, reason in aside)
        assert summary["rows_read"] == summary["rows"] + summary["rows_of_writers"]
        assert summary["connections"] == 40


@on_spark
@pytest.mark.usefixtures("looking")
def test_a_failure_that_passes_is_not_held_against_the_file(
    real_spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, connections=5)
    count, asked = read_file._counted, []

    def once(session: Any, known: Any) -> Any:
        asked.append(len(known))
        return count(session, known) if len(asked) > 1 else {}

    monkeypatch.setattr(read_file, "_counted", once)
    found = check([tmp_path], spark=real_spark, now_ns=WALL)
    assert (asked, found.quarantined, len(found.files)) == ([1, 1], [], 1)


@on_spark
def test_a_page_damaged_after_the_check_is_one_line_and_status_2(
    run: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "raw", connections=40)

    def read_and_damaged(*given: Any) -> Any:
        found = read_inputs(*given)
        content = bytearray(only(tmp_path / "raw").read_bytes())
        content[len(content) // 2] ^= 1
        only(tmp_path / "raw").write_bytes(content)
        return found

    monkeypatch.setattr("reaper.pipeline.read.command.read_inputs", read_and_damaged)
    status, _, err = run("audit", "--events", tmp_path / "raw", "--out", tmp_path / "out")
    assert (status, err.count("\n")) == (2, 1), err
    assert only(tmp_path / "raw").name in err
