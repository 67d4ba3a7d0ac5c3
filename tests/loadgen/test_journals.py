"""Journals in virtual time: the law kept in every row, both sides of every connection,
and every planted fault.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa
import pyarrow.parquet as pq

from loadgen import journals
from loadgen.cli import main
from loadgen.journals import NAMES, Planted, S, write_journals
from loadgen.plan.plan import Law, Plan, make_plan
from loadgen.plan.scenario import from_mix
from reaper.journal import Journal
from reaper.pipeline.read.inputs import check

if TYPE_CHECKING:
    from tests.conftest import Ran

MIX = "silent=5,chatty=4,drip=1,bursty=3,leave=3,mute=1,pipelined=1,slow_headers=1"
SPAN = 900.0
Pair = tuple[Path, dict[str, Any]]
"""The folder of a server's journal and its clients', and what was written."""
EVERY_FAULT = {name: number + 1 for number, name in enumerate(NAMES)}


def plan_of(connections: int = 300, mix: str = MIX, seed: int = 3) -> Plan:
    return make_plan(from_mix(mix), connections, Law(30.0, 1.0), SPAN, seed, connections / SPAN)


def rows_of(directory: Path) -> list[dict[str, Any]]:
    tables = [pq.read_table(path) for path in sorted(directory.iterdir())]
    rows: list[dict[str, Any]] = pa.concat_tables(tables).to_pylist()
    return rows


@pytest.fixture(scope="module", params=["full", "gaps"])
def right(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A right pair of journals of two writers, with stalls."""
    out = tmp_path_factory.mktemp("right")
    return out, write_journals(
        plan_of(),
        out / "server",
        out / "client",
        span=SPAN,
        mode=request.param,
        writers=2,
        stalls=3,
    )


def test_every_connection_keeps_the_law_on_the_servers_side(right: Pair) -> None:
    out, summary = right
    found = check([out / "server", out / "client"])
    assert found.quarantined == []
    assert sum(facts.rows for facts in found.files) == summary["events"] + summary["client_events"]
    stalls = reaped = 0
    lives: dict[int, list[dict[str, Any]]] = {}
    for row in rows_of(out / "server"):
        stalls += row["reason"] == "stall"
        if row["listener"]:
            lives.setdefault(row["conn"], []).append(row)
    assert stalls == 6
    assert len(lives) == summary["connections"] == 300
    for life in lives.values():
        end = life[-1]
        assert (life[0]["kind"], end["kind"] in ("reap", "close_peer", "close_app")) == (
            "open",
            True,
        )
        written = [row for row in life if row["kind"] == "activity"]
        assert end["idle_sum_ns"] == sum(row["idle_ns"] for row in written)
        assert end["n"] >= len(written)
        if end["kind"] == "reap":
            reaped += 1
            assert 0 <= end["t"] - end["due_ns"] < 7 * S  # a stall takes five at most
            if end["reason"] == "idle":
                assert 30 * S <= end["due_ns"] - (end["t"] - end["idle_ns"]) < 37 * S
    assert reaped == summary["verdicts"]["ok_reaped"] > 50


def test_both_sides_tell_of_the_same_connections(right: Pair) -> None:
    out, _ = right
    server, client = (
        {row["peer"]: row["t"] for row in rows_of(out / side) if row["kind"] == "open"}
        for side in ("server", "client")
    )
    assert server.keys() == client.keys()
    assert all(client[peer] < at for peer, at in server.items())


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0.0, 2.0])
def test_an_audit_finds_what_is_planted_by_number(ahead: float, tmp_path: Path) -> None:
    planted = Planted(EVERY_FAULT, ahead)
    summary = write_journals(
        plan_of(), tmp_path / "s", tmp_path / "c", span=SPAN, planted=planted, writers=3
    )
    command = [
        sys.executable,
        "-m",
        "reaper.pipeline",
        "audit",
        "--engine",
        "embedded",
        "--out",
        str(tmp_path / "out"),
    ]
    command += ["--events", str(tmp_path / "s"), "--client", str(tmp_path / "c")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    found = json.loads((tmp_path / "out" / "audit.json").read_text())["verdicts"]
    assert {name: count for name, count in found.items() if count} == summary["verdicts"]


def test_the_same_arguments_give_the_same_rows_and_another_seed_others(tmp_path: Path) -> None:
    def rows(name: str, seed: int) -> list[dict[str, Any]]:
        write_journals(plan_of(60, seed=seed), tmp_path / name, span=SPAN)
        return rows_of(tmp_path / name)

    assert rows("a", 1) == rows("b", 1) != rows("c", 2)


def test_memory_holds_what_is_open_and_not_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "FLUSHED_ROWS", 100)
    waiting: list[int] = []
    flush = Journal.flush

    def counted(journal: Journal) -> None:
        waiting.append(len(journal._rows))
        flush(journal)

    monkeypatch.setattr(Journal, "flush", counted)
    summary = write_journals(plan_of(2000, "silent=5,leave=5"), tmp_path / "s", span=SPAN)
    assert summary["events"] > 50 * max(waiting)


@pytest.mark.slow
def test_as_many_rows_as_wanted_by_the_command(tmp_path: Path, call: Ran) -> None:
    arguments = [
        "--events",
        "20k",
        "--scenario",
        "week",
        "--duration",
        "6h",
        "--side",
        "server",
        "--json",
    ]
    _, said, _ = call(main, "simulate", "--journal", tmp_path, *arguments)
    assert json.loads(said)["events"] == pytest.approx(20_000, rel=0.05)
    assert not (tmp_path / "client").exists()
    status, _, err = call(main, "simulate", "--journal", tmp_path, *arguments)
    assert (status, "holds Parquet files already" in err) == (2, True)
