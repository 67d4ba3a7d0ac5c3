"""Journals in virtual time: the draws of the plan, the law kept in every row, and what is planted, by number."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("numpy")

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from loadgen import journals
from loadgen.cli import main
from loadgen.journals import NAMES, Planted, S, connections_for, draws, gaps, keys_of, write_journals
from loadgen.plan.behaviours import draw
from loadgen.plan.plan import Law, Plan, make_plan
from loadgen.plan.scenario import from_mix, load_scenario
from loadgen.units import BadArgument
from reaper.journal.schema import arrow_schema
from reaper.pipeline.read.inputs import check
from reaper.pipeline.read.runs import Timeline

MIX = "silent=5,chatty=4,drip=1,bursty=3,leave=3,mute=1,pipelined=1,slow_headers=1"
SPAN = 900.0
EVERY_FAULT = {name: number + 1 for number, name in enumerate(NAMES)}


def plan_of(connections: int = 300, mix: str = MIX, seed: int = 3) -> Plan:
    return make_plan(from_mix(mix), connections, Law(30.0, 1.0), SPAN, seed, connections / SPAN)


def rows_of(directory: Path) -> list[dict[str, Any]]:
    return pa.concat_tables([pq.read_table(path) for path in sorted(directory.iterdir())]).to_pylist()


def test_many_draws_at_once_are_those_of_the_plan() -> None:
    plan = plan_of()
    index = np.arange(300)
    keys = keys_of(plan.seed, index, index % 3)
    assert keys.tolist() == [plan.key(i, i % 3) for i in range(300)]
    assert draws(keys, index).tolist() == [draw(int(key), i) for i, key in enumerate(keys)]


@pytest.mark.parametrize("number", range(len(MIX.split(","))))
def test_a_connection_takes_the_steps_that_a_run_would_have_it_take(number: int) -> None:
    plan = plan_of()
    behaviour = plan.behaviours[number]
    keys = keys_of(plan.seed, np.arange(50), np.zeros(50, int))
    steps, ends = gaps(behaviour, keys, np.zeros(50, int), np.zeros(50))
    for key, row, end in zip(keys.tolist(), steps.tolist(), ends.tolist(), strict=True):
        offset = 0.0
        for at, gap in enumerate(row):
            step = behaviour.step(key, at, offset)
            if step is None or step.act.name == "CLOSE":
                assert (gap, offset + step.gap if step else np.inf) == (np.inf, pytest.approx(end))
                break
            assert gap == pytest.approx(step.gap)
            offset += step.gap
        else:
            assert np.isnan(end)


@pytest.fixture(scope="module", params=["full", "gaps"])
def right(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A right pair of journals of two writers, with stalls, in files smaller than a window."""
    out = tmp_path_factory.mktemp("right")
    summary = write_journals(
        plan_of(),
        out / "server",
        out / "client",
        span=SPAN,
        mode=request.param,
        writers=2,
        stalls=3,
        rows_per_file=2000,
    )
    return out, summary


def test_files_are_a_journals_own(right: tuple[Path, dict[str, Any]]) -> None:
    out, summary = right
    found = check([out / "server", out / "client"])
    assert found.quarantined == []
    assert len(found.files) == summary["files"] > 4
    assert sum(facts.rows for facts in found.files) == summary["events"] + summary["client_events"]
    assert all(run.whole for run in found.runs)
    assert Timeline.of(found.runs) is Timeline.ONE_CLOCK
    for path in out.rglob("*.parquet"):
        assert pq.read_schema(path).equals(arrow_schema())
        assert np.all(np.diff(pq.read_table(path)["t"].to_numpy()) >= 0)


def test_every_connection_keeps_the_law_on_the_servers_side(right: tuple[Path, dict[str, Any]]) -> None:
    out, summary = right
    stalls = 0
    lives: dict[int, list[dict[str, Any]]] = {}
    for row in rows_of(out / "server"):
        if row["listener"]:
            lives.setdefault(row["conn"], []).append(row)
        stalls += row["reason"] == "stall"
    assert stalls > 2
    assert len(lives) == summary["connections"]
    reaped = 0
    for life in lives.values():
        end = life[-1]
        assert (life[0]["kind"], end["kind"] in ("reap", "close_peer", "close_app")) == ("open", True)
        written = [row for row in life if row["kind"] == "activity"]
        assert end["idle_sum_ns"] == sum(row["idle_ns"] for row in written)
        assert end["n"] >= len(written)
        if end["kind"] == "reap":
            reaped += 1
            late = end["t"] - end["due_ns"]
            assert 0 <= late < 7 * S  # a stall takes five at most
            if end["reason"] == "idle":
                silence = end["due_ns"] - (end["t"] - end["idle_ns"])
                assert 30 * S <= silence < 37 * S
    assert reaped == summary["verdicts"]["ok_reaped"] > 50


def test_both_sides_tell_of_the_same_connections(right: tuple[Path, dict[str, Any]]) -> None:
    out, _ = right
    server, client = (
        {row["peer"]: row["t"] for row in rows_of(out / side) if row["kind"] == "open"} for side in ("server", "client")
    )
    assert server.keys() == client.keys()
    assert all(client[peer] < at for peer, at in server.items())


def test_what_is_planted_is_there_by_number(tmp_path: Path) -> None:
    summary = write_journals(plan_of(), tmp_path / "s", span=SPAN, planted=Planted(EVERY_FAULT), writers=3)
    unknown = EVERY_FAULT["backward"]
    assert summary["verdicts"].items() >= {**EVERY_FAULT, "unknown": unknown}.items() - {("backward", unknown)}
    assert sum(summary["verdicts"].values()) == summary["connections"] == summary["kinds"]["open"]


def test_the_same_arguments_give_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    def digests(name: str, seed: int) -> set[str]:
        write_journals(plan_of(60, seed=seed), tmp_path / name, span=SPAN)
        return {hashlib.sha256(path.read_bytes()).hexdigest() for path in (tmp_path / name).iterdir()}

    assert digests("a", 1) == digests("b", 1)
    assert not digests("c", 2) & digests("a2", 1)


def test_memory_holds_what_is_open_and_not_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "WINDOW_ROWS", 100)
    most = 0
    emit = journals.Writer._emit

    def watched(writer: journals.Writer, to: int) -> None:
        nonlocal most
        most = max(most, sum(map(len, writer.pending)))
        emit(writer, to)

    monkeypatch.setattr(journals.Writer, "_emit", watched)
    summary = write_journals(plan_of(2000, "silent=5,leave=5"), tmp_path / "s", span=SPAN)
    assert summary["events"] > 8 * most


def test_as_many_rows_as_wanted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--events", "20k", "--scenario", "week", "--duration", "6h", "--side", "server", "--json"]
    assert main(["simulate", "--journal", str(tmp_path), *arguments]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["events"] == pytest.approx(20_000, rel=0.05)
    assert not (tmp_path / "client").exists()
    assert load_scenario("week").clients[0].behaviour(1.0, 1.0).listener == "echo"
    assert connections_for(plan_of, 1000, SPAN) > 10


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[faults]\nearly = 0.5", "faults.early = 0.5: write a count"),
        ("[faults]\nrude = 1", "faults.rude = 1: write a count"),
        ("late = 1", "unknown key 'late'"),
        ("faults = 3", "write [faults]"),
        ("[faults]\nbackward = 1", "give --mode full"),
    ],
)
def test_a_bad_file_of_faults_costs_one_line(
    text: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "faults.toml").write_text(text)
    arguments = ["--journal", str(tmp_path / "out"), "--faults", str(tmp_path / "faults.toml"), "--mode", "gaps"]
    assert main(["simulate", *arguments, "--connections", "5"]) == 2
    assert complaint in capsys.readouterr().err


def test_a_client_that_cannot_be_simulated_so_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match="a racer client has no journal here"):
        write_journals(plan_of(5, "racer"), tmp_path, span=SPAN)
