"""The time to live that any table of (key, time[, end]) wants: sessions, caches,
jobs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb")

import pyarrow as pa
from pyarrow import parquet

from reaper.pipeline import notebook
from reaper.pipeline.advise.run import Policy, advise
from reaper.pipeline.read.inputs import Inputs
from tests.conftest import Ran

START = datetime(2026, 9, 21, 14, 13, 20, tzinfo=UTC)


def uses(sessions: int = 400, each: int = 30) -> Iterator[tuple[str, float, float]]:
    """Sessions that are used every 60 s in the mean, 0.5 s each, and then given up."""
    rng = random.Random(61)
    for number in range(sessions):
        at = rng.uniform(0, 600)
        for _ in range(each):
            yield f"session {number}", at, at + 0.5
            at += 0.5 + rng.expovariate(1 / 60)


def table(rows: list[tuple[str, float, float]], how: str) -> pa.Table:
    key, time, end = map(list, zip(*rows, strict=True))
    if how == "timestamps":
        kind = pa.timestamp("us", "UTC")
        columns = [[START + timedelta(seconds=at) for at in each] for each in (time, end)]
        time, end = (pa.array(each, kind) for each in columns)
    elif how == "text":
        time, end = (
            [(START + timedelta(seconds=at)).isoformat(" ") for at in each] for each in (time, end)
        )
    else:
        time, end = ([1_790_000_000 + at for at in each] for each in (time, end))
    return pa.table({"key": pa.array(key), "time": time, "end": end})


def check_advice(session: Any, how: str) -> dict[str, Any]:
    frame = session.createDataFrame(table(list(uses()), how))
    advised = notebook.advise(frame, max_cut=0.05)
    found: dict[str, Any] = notebook.summary(advised)
    (entry,) = found["listeners"].values()
    assert (entry["connections"], entry["silences"]) == (400, 400 * 30)
    assert entry["silences_ended"] == 400 * 29
    # Of silences of 60 s in the mean 5 % last longer than 180 s.
    assert 165 <= entry["recommendation"]["timeout_s"] <= 210
    assert found["config"]["timeouts"].keys() == {"idle"}
    return found


@pytest.mark.parametrize("how", ["timestamps", "seconds", "text"])
def test_a_frame_of_key_time_and_end_is_advised(spark: Any, how: str) -> None:
    check_advice(spark, how)


@pytest.mark.slow
@pytest.mark.spark
def test_spark_advises_alike(spark: Any, real_spark: Any) -> None:
    from reaper.pipeline.engine import use

    for how in ("timestamps", "seconds"):
        theirs = check_advice(real_spark, how)
        use("embedded")
        ours = check_advice(spark, how)
        use("spark")
        assert theirs["listeners"] == ours["listeners"]


def test_a_table_in_files_has_the_names_that_are_given(pipeline: Ran, tmp_path: Path) -> None:
    kept = table(list(uses()), "timestamps").rename_columns(["sid", "seen", "done"])
    (tmp_path / "sessions" / "day=1").mkdir(parents=True)
    parquet.write_table(kept, tmp_path / "sessions" / "day=1" / "a.parquet")
    names = ("--key", "sid", "--time", "seen", "--end", "done", "--max-cut", "5%")
    given = ("--table", tmp_path / "sessions", *names, "--out", tmp_path / "out")
    status, said, _ = pipeline("advise", *given)
    assert status == 0
    assert "table: 400 keys, 12,000 silences" in said
    assert "idle = " in (tmp_path / "out" / "reaper.toml").read_text()
    status, _, said = pipeline(
        "advise", "--table", tmp_path / "sessions", "--out", tmp_path / "out"
    )
    assert (status, said.count("\n")) == (2, 1)
    assert "the table has no column 'key'; it has 'sid', 'seen', 'done'" in said


def test_columns_of_a_table_give_what_the_table_gives(spark: Any, tmp_path: Path) -> None:
    rows = list(uses())
    text = "".join(
        f"{key},{1_790_000_000 + time:.6f},{1_790_000_000 + end:.6f}\n" for key, time, end in rows
    )
    (tmp_path / "uses.csv").write_text("session,seen,done\n" + text)
    logs = "columns", [tmp_path / "uses.csv"], None
    (entry,) = advise(spark, Inputs(), logs, Policy(max_cut=0.05))["listeners"].values()
    ours = next(iter(check_advice(spark, "timestamps")["listeners"].values()))
    assert entry["recommendation"]["timeout_s"] == ours["recommendation"]["timeout_s"]
    assert entry["silences_ended"] == ours["silences_ended"]


def test_what_outlived_its_time_to_live_counts_as_cut(spark: Any) -> None:
    frame = spark.createDataFrame(table(list(uses()), "seconds"))
    found = notebook.summary(notebook.advise(frame, max_cut=0.05, timeout_s=60))
    (entry,) = found["listeners"].values()
    assert entry["recommendation"]["timeout_s"] is None
    assert entry["longest_seen_s"] == 60


def test_a_row_without_a_key_or_an_instant_is_shown_and_nothing_is_advised(spark: Any) -> None:
    rows = [*uses(), ("broken", 5.0, 4.0)]
    frame = spark.createDataFrame(table(rows, "text"))
    found = notebook.summary(notebook.advise(frame, max_cut=0.05))
    (aside,) = found["quarantined"]
    assert aside["reason"].startswith("1 of 12001 row(s) have no key, no instant, or end before")
    assert (found["result"], found["config"]) == ("inconclusive", {})
