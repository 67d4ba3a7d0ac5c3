"""Simulation: the same seed gives the same result bit for bit; the law holds under
faults; a system that breaks it is caught.
"""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen import simulate
from loadgen.cli import main
from loadgen.judge.observation import Observation
from loadgen.judge.report import Report
from loadgen.judge.verdict import Verdict, judge_all
from loadgen.plan.plan import Law, Plan, make_plan
from loadgen.plan.scenario import from_mix, load_scenario
from loadgen.simulate import Crowd, Faults, SimulatedClient, simulate_core

if TYPE_CHECKING:
    from tests.conftest import Ran

LAW = Law(timeout=30.0, tick=1.0)


MIX = "silent=4,chatty=3,bursty=2,drip=1,leave=1"


def plan_of(mix: str = MIX, connections: int = 100, seed: int = 1) -> Plan:
    return make_plan(from_mix(mix), connections, LAW, 120.0, seed, rate=10.0)


def judged(plan: Plan, seen: Observation) -> Verdict:
    return judge_all(plan, seen.records, seen.own_stalls, seen.server_stalls)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    stalls=st.integers(0, 5),
    jumps=st.integers(0, 2),
    storms=st.integers(0, 3),
)
def test_the_core_keeps_the_law_under_every_fault(
    seed: int, stalls: int, jumps: int, storms: int
) -> None:
    plan = plan_of(seed=seed)
    verdict = judged(plan, simulate_core(plan, Faults(stalls, jumps, storms)))
    assert verdict.reasons(LAW) == []
    if not stalls and not jumps:
        assert verdict.beyond_tick == 0
        assert verdict.lateness[0] >= 0


def test_without_faults_what_was_seen_is_what_was_planned() -> None:
    plan = plan_of()
    verdict = judged(plan, simulate_core(plan, Faults()))
    names = {"reaped": "reaped", "alive": "alive", "closed_itself": "self"}
    for name, planned in plan.survey()[0].items():
        assert verdict.by_behaviour[name] == {
            key: planned[end] for key, end in names.items() if end in planned
        }


def test_clients_that_reconnect_live_many_lives() -> None:
    plan = make_plan(load_scenario("reconnect-storm"), 50, LAW, 120.0, 1, 10.0)
    seen = simulate_core(plan, Faults())
    assert judged(plan, seen).reasons(LAW) == []
    assert max(record.incarnation for record in seen.records) >= 3


def test_a_deadline_ends_a_client_however_it_drips() -> None:
    plan = plan_of("slow_headers,chatty")
    assert judged(plan, simulate_core(plan, Faults())).categories == {"reaped": 50, "alive": 50}


def test_shards_are_judged_as_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of()
    whole = judged(plan, simulate_core(plan, Faults()))
    monkeypatch.setattr(simulate, "SHARD", 40)
    lines: list[str] = []
    seen = simulate_core(plan, Faults(), lines.append)
    assert lines == [f"{count} of 100 connections played" for count in (40, 80, 100)]
    assert [len(outcome.records) for outcome in seen.outcomes] == [34, 33, 33]
    parts = judged(plan, seen)
    assert (parts.by_behaviour, parts.reasons(LAW)) == (whole.by_behaviour, [])


class Hasty(simulate.CoreSystem):
    """Reaps half a second early."""

    def _accept(self, client: SimulatedClient, now: float) -> None:
        client.handle = self.core.register(client, client.behaviour.timeout - 1.5, now)


class Forgetful(simulate.CoreSystem):
    """Does not read what has arrived before it judges."""

    def wake_late(self, now: float) -> None:
        self._close(self.core.advance(now), now)
        super().wake_late(now)


class Coarse(simulate.CoreSystem):
    """Keeps a tick of three seconds although it promised one."""

    def __init__(self, tick: float) -> None:
        super().__init__(3 * tick)


@pytest.mark.parametrize(
    ("system", "mix", "categories"),
    [
        (Coarse, "silent", {"late"}),
        (Hasty, "silent", {"early"}),
        (Forgetful, "drip", {"false", "own_lag"}),
    ],
)
def test_a_system_that_breaks_the_law_is_caught(
    system: type[simulate.CoreSystem],
    mix: str,
    categories: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(simulate, "CoreSystem", system)
    plan = plan_of(mix)
    verdict = judged(plan, simulate_core(plan, Faults(jumps=2 * (system is Forgetful))))
    assert sum(verdict.categories[name] for name in categories) > 10


def test_faults_are_drawn_from_the_seed_and_never_touch() -> None:
    faults = Faults(stalls=20, jumps=5, storms=5)
    drawn = faults.schedule(3, 3600.0)
    assert drawn == faults.schedule(3, 3600.0) != faults.schedule(4, 3600.0)
    in_order = drawn[::-1]
    for before, after in pairwise(in_order):
        assert after.start >= before.start + before.length + simulate.BREATHER


MANY_FAULTS = (
    "--connections=200 --duration=10m --stalls=2 --jumps=1 --storms=1 --mix=silent,chatty=9,bursty"
)


def report_of_seed(seed: int, folder: Path) -> Report:
    """The report of a simulation with every fault, without its one block about wall
    time.
    """
    files = [f"--report={folder / 'report.json'}", f"--html={folder / 'page.html'}"]
    main(["simulate", *MANY_FAULTS.split(), f"--seed={seed}", *files, "--quiet"])
    report: Report = json.loads((folder / "report.json").read_text())
    assert report.pop("wall")["elapsed_s"] > 0
    return report


def test_two_reports_with_one_seed_differ_only_in_wall_time(tmp_path: Path) -> None:
    assert report_of_seed(5, tmp_path) == report_of_seed(5, tmp_path)


def test_another_seed_gives_other_records(tmp_path: Path) -> None:
    first, second = (report_of_seed(seed, tmp_path) for seed in (5, 6))
    assert first["records_digest"] != second["records_digest"]


def test_a_simulation_prints_its_verdict_and_writes_a_page_that_opens_offline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = report_of_seed(5, tmp_path)
    assert report["verdict"].upper() in capsys.readouterr().out
    page = (tmp_path / "page.html").read_text()
    assert (page.count("<svg"), page.count("http://"), page.count("<script")) == (3, 0, 0)


def test_a_broken_threshold_fails_a_good_run(call: Ran) -> None:
    arguments = (
        "simulate --connections=20 --duration=10m --mix=silent --quiet --threshold=lateness.p50<1ms"
    )
    status, said, _ = call(main, *arguments.split())
    assert (status, "threshold lateness.p50<1ms broken" in said) == (1, True)


def test_a_crowd_closes_each_connection_once() -> None:
    crowd = Crowd(plan_of("silent", connections=1), simulate.CoreSystem(LAW.tick))
    crowd.play(1.0)
    (client,) = crowd.present.values()
    crowd.closed(client, 31.0)
    crowd.closed(client, 32.0)
    assert [record.closed_by for record in crowd.records] == [31.0]
