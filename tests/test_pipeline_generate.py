"""Generated journals: the same plan gives the same bytes, the law is kept in them, and what is planted is there."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.pipeline.generate.command import main
from benchmarks.pipeline.generate.faults import FAULTS
from benchmarks.pipeline.generate.run import Plan, generate
from reaper.errors import InvalidArgument
from reaper.journal.schema import COLUMNS, SEQUENCE_BITS, arrow_schema
from reaper.pipeline.read.inputs import check
from reaper.pipeline.read.runs import Timeline

S = 1_000_000_000
ALL_FAULTS = {name: i + 1 for i, name in enumerate(FAULTS)}


def digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


def in_another_process(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.pipeline.generate", "--out", str(out), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A right journal of four writers in which connections outlive windows and files."""
    out = tmp_path_factory.mktemp("generated") / "right"
    return out, generate(Plan(120_000, seed=3, writers=4, days=2.0, rows_per_file=9_000), out)


@pytest.fixture(scope="module")
def rows(made: tuple[Path, dict[str, Any]]) -> dict[str, Any]:
    """Its rows, sorted by connection and, within one, as they were written; nulls are -1."""
    files = [pq.read_table(path) for path in sorted(made[0].iterdir(), key=lambda p: p.name.partition("-w")[2])]
    table = pa.concat_tables(files)
    conn = table["conn"].to_numpy()
    order = np.argsort(conn, kind="stable")
    columns = {c.name: table[c.name].cast("int64") for c in COLUMNS if c.type != "dictionary"}
    arrays = {name: column.fill_null(-1).to_numpy()[order] for name, column in columns.items()}
    kinds = np.array(table["kind"].to_pylist())[order]
    listeners = np.array(table["listener"].fill_null("").to_pylist())[order]
    return {**arrays, "kind": kinds, "listener": listeners}


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    plan = Plan(20_000, seed=7, writers=2, days=3.0, faults={"late": 2})
    generate(plan, tmp_path / "here")
    wanted = ["--events=20k", "--seed=7", "--writers=2", "--days=3", "--faults=late=2", "--json"]
    there = in_another_process(tmp_path / "there", *wanted)
    assert there.returncode == 0, there.stderr
    assert digests(tmp_path / "here") == digests(tmp_path / "there")
    assert json.loads(there.stdout)["wanted"] == 20_000
    generate(Plan(20_000, seed=8, writers=2, days=3.0, faults={"late": 2}), tmp_path / "other")
    assert not set(digests(tmp_path / "here").values()) & set(digests(tmp_path / "other").values())


@pytest.mark.parametrize(
    "plan",
    [
        Plan(30_000, writers=1),
        Plan(60_000, writers=3, mode="gaps", days=0.5),
        Plan(50_000, writers=2, days=0.02),
    ],
    ids=["a month", "gaps", "half an hour"],
)
def test_as_many_rows_as_wanted_within_one_percent_and_counted_exactly(plan: Plan, tmp_path: Path) -> None:
    summary = generate(plan, tmp_path)
    found = check([tmp_path])
    assert not found.quarantined
    assert sum(facts.rows for facts in found.files) == summary["events"] == sum(summary["kinds"].values())
    assert abs(summary["events"] - plan.events) <= 0.01 * plan.events
    assert sum(summary["verdicts"].values()) == summary["connections"] == summary["kinds"]["open"]


def test_files_are_a_journals_own(made: tuple[Path, dict[str, Any]]) -> None:
    out, summary = made
    found = check([out])
    assert found.quarantined == []
    assert len(found.files) == summary["files"] > 12
    assert all(run.whole and run.full and run.tick_ns == S for run in found.runs)
    assert [run.writer for run in found.runs] == [1, 2, 2, 3, 4, 4]  # those that restarted have two runs
    assert Timeline.of(found.runs) is Timeline.ONE_CLOCK
    for path in out.iterdir():
        schema = pq.read_schema(path)
        assert schema.equals(arrow_schema())
        times = pq.read_table(path, columns=["t", "wall_offset_ns"])
        t = times["t"].to_numpy()
        assert np.all(np.diff(t) >= 0)
        anchors = np.array(json.loads(schema.metadata[b"reaper.anchors"]))
        assert anchors[0, 0] <= t[0]
        assert np.isin(anchors[:, 1] - anchors[:, 0], times["wall_offset_ns"].to_numpy()).mean() > 0.5


def test_every_connection_keeps_the_law_and_its_rows_add_up(made: tuple[Path, Any], rows: dict[str, Any]) -> None:
    conn, t, kind, idle = rows["conn"], rows["t"], rows["kind"], rows["idle_ns"]
    of_connections = (kind != "config") & (kind != "drain")
    rows = {name: column[of_connections] for name, column in rows.items()}
    conn, t, kind, idle = (rows[name] for name in ("conn", "t", "kind", "idle_ns"))
    first = np.flatnonzero(np.r_[True, conn[1:] != conn[:-1]])
    last = np.r_[first[1:], len(conn)] - 1
    assert np.all(kind[first] == "open")
    assert np.all(np.isin(kind[last], ["reap", "close_peer", "close_app"]))
    assert np.count_nonzero(np.isin(kind, ["reap", "close_peer", "close_app"])) == len(last)
    same = np.r_[False, conn[1:] == conn[:-1]]
    # A silence is counted from the latest activity; an averted look is none.
    seen = np.where(kind == "averted", t - idle, t)
    previous = np.r_[0, seen[:-1]]
    assert np.array_equal(idle[same], (t - previous)[same])
    assert np.all(idle[same] >= 0)
    activity = kind == "activity"
    assert np.array_equal(np.add.reduceat(activity, first), rows["n"][last])
    assert np.array_equal(np.add.reduceat(np.where(activity, idle, 0), first), rows["idle_sum_ns"][last])
    reap = kind == "reap"
    judged = reap & (rows["timeout_ms"] >= 0)
    assert np.count_nonzero(reap & ~judged) > 10  # deadlines
    assert np.all(t[reap] >= rows["due_ns"][reap])
    timeout = rows["timeout_ms"] * 1_000_000
    assert np.all((rows["due_ns"] >= t - idle + timeout)[judged])
    lateness = (idle - timeout)[judged]
    assert lateness.min() >= 0
    assert np.quantile(lateness, 0.999) < 1.004 * S
    assert np.all(idle[activity] <= timeout[activity] + 1.01 * S)
    writers = conn[first] >> SEQUENCE_BITS
    for writer in np.unique(writers):  # numbers are given out without a gap, save where a restart begins anew
        assert np.count_nonzero(np.diff(conn[first][writers == writer]) != 1) <= 1


def test_the_traffic_has_what_makes_journals_hard(made: tuple[Path, Any], rows: dict[str, Any]) -> None:
    kind, t, idle, listener = rows["kind"], rows["t"], rows["idle_ns"], rows["listener"]
    assert set(listener) == {"", "echo", "http", "websocket", "tunnel"}
    assert set(kind) == {
        "open", "activity", "reap", "averted", "close_peer", "close_app", "drain", "config"
    }  # fmt: skip
    assert np.count_nonzero(kind == "drain") == 6
    writer = rows["conn"] >> SEQUENCE_BITS
    first = writer == 1
    opened, ended = t[first & (kind == "open")], t[first & np.isin(kind, ["close_peer", "close_app"])]
    per_second = np.bincount((ended - t[first].min()) // S)
    storm = int(per_second.argmax()) * S + t[first].min()
    assert np.count_nonzero((ended >= storm - 2 * S) & (ended < storm + 3 * S)) > 50
    assert np.count_nonzero((opened >= storm) & (opened < storm + 20 * S)) > 50
    activity = kind == "activity"
    timeout = rows["timeout_ms"] * 1_000_000
    close = activity & (timeout - idle < S // 5) & (timeout > idle)
    assert np.count_nonzero(close) > 100  # drips
    heavy = idle[activity & (listener == "http")]
    assert np.quantile(heavy, 0.99) > 20 * np.median(heavy)
    tunnels = rows["conn"][(listener == "tunnel") & (kind == "open")]
    lives = [np.ptp(t[rows["conn"] == tunnel]) for tunnel in tunnels]
    assert max(lives) > 0.95 * 2 * 86_400 * S
    hours = np.bincount((t[(kind == "open") & (listener == "echo")] - t.min()) // (3600 * S) % 24, minlength=24)
    assert hours[9:21].sum() > 1.6 * (hours[:9].sum() + hours[21:].sum())
    stalls = idle[(kind == "config") & (idle > 0)]
    assert len(stalls) >= 4
    assert np.all((stalls >= S // 10) & (stalls < 2.6 * S))


def test_planted_faults_are_there_and_nowhere_else(tmp_path: Path) -> None:
    summary = generate(Plan(30_000, writers=3, days=1.0, faults=ALL_FAULTS), tmp_path)
    wanted = {("unknown" if name == "backward" else name): count for name, count in ALL_FAULTS.items()}
    assert {name: count for name, count in summary["verdicts"].items() if name in wanted} == wanted
    table = pa.concat_tables([pq.read_table(path) for path in tmp_path.iterdir()])
    kind, conn = np.array(table["kind"].to_pylist()), table["conn"].to_numpy()
    t, due = table["t"].to_numpy(), table["due_ns"].fill_null(0).to_numpy()
    idle = table["idle_ns"].fill_null(0).to_numpy()
    timeout = table["timeout_ms"].fill_null(0).to_numpy().astype(np.int64) * 1_000_000
    reap = kind == "reap"
    assert np.count_nonzero(reap & (idle < timeout)) == ALL_FAULTS["early"]
    assert np.count_nonzero(reap & (t - due > 5 * S)) == ALL_FAULTS["late"]
    assert np.count_nonzero((kind == "close_peer") & (idle > timeout + 20 * S)) == ALL_FAULTS["missed"]
    assert np.count_nonzero(idle < 0) == ALL_FAULTS["backward"]
    ends = conn[np.isin(kind, ["reap", "close_peer", "close_app"])]
    numbers, times = np.unique(ends, return_counts=True)
    assert np.count_nonzero(times == 2) == ALL_FAULTS["duplicate"]
    assert len(np.setdiff1d(conn[kind == "open"], numbers)) == ALL_FAULTS["lost"]
    of_reaped = dict(zip(conn[reap].tolist(), t[reap].tolist(), strict=True))
    after = sum(at > of_reaped.get(c, at) for c, at in zip(conn.tolist(), t.tolist(), strict=True))
    assert after == ALL_FAULTS["activity_after_end"]


def test_gaps_mode_writes_no_short_silence_and_still_adds_up(tmp_path: Path) -> None:
    generate(Plan(20_000, writers=2, mode="gaps", days=1.0), tmp_path)
    table = pa.concat_tables([pq.read_table(path) for path in tmp_path.iterdir()])
    kind = np.array(table["kind"].to_pylist())
    idle = table["idle_ns"].fill_null(0).to_numpy()
    assert idle[kind == "activity"].min() > S
    conn, t = table["conn"].to_numpy(), table["t"].to_numpy()
    opened = dict(zip(conn[kind == "open"].tolist(), t[kind == "open"].tolist(), strict=True))
    sums = table["idle_sum_ns"].fill_null(0).to_numpy()
    ends = np.isin(kind, ["reap", "close_peer", "close_app"])
    begun = np.array([opened[c] for c in conn[ends].tolist()])
    unread = t[ends] - idle[ends] - begun - sums[ends]
    assert unread.min() >= 0
    assert np.count_nonzero(unread) > 100


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["--events", "many"], "'many' is not a number such as"),
        (["--events", "10"], "events must be at least 1000 a writer"),
        (["--faults", "early"], "'early' is not a fault and a number"),
        (["--faults", "sleepy=1"], "sleepy=1"),
        (["--days", "nan"], "days must be in 0.01..3650, got nan"),
        (["--mode", "gaps", "--faults", "backward=1"], "backward"),
        (["--seed", "-1"], "seed must be >= 0"),
        (["--writers", "0"], "writers must be in 1.."),
    ],
)
def test_a_bad_argument_is_one_line_and_status_2(
    arguments: list[str], wanted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status: object = main(["--out", str(tmp_path), *arguments])
    except SystemExit as stopped:
        status = stopped.code
    assert status == 2
    error = capsys.readouterr().err
    assert wanted in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_holds_a_journal_is_refused(tmp_path: Path) -> None:
    generate(Plan(1000, writers=1), tmp_path)
    with pytest.raises(InvalidArgument, match="without Parquet files"):
        generate(Plan(1000, writers=1), tmp_path)
