"""Claims about the JVM peers that reaper is compared with: each does its work, and one that does not is found out."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import jvm, jvm_process

TINY = jvm.Size(connections=500, touches=5_000, rounds=2, warm_ms=100, idle_ms=20, expire_ms=300)

GOOD = {
    "each": 100,
    "silent": {"fired": 100, "twice": 0, "late_ms_least": 0.5, "late_ms_most": 40.0},
    "touched": {"fired": 100, "twice": 0, "late_ms_least": 0.5, "late_ms_most": 40.0},
}


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    try:
        jvm_process.tool("java")
        jvm_process.tool("javac")
        jvm_process.jars()
    except jvm_process.Missing as missing:
        pytest.skip(str(missing))
    return jvm.run(True, lambda _: None, sizes=[TINY])


@pytest.mark.slow
@pytest.mark.parametrize("peer", jvm.PEERS)
def test_each_peer_has_figures_from_every_round_next_to_ours(report: dict[str, Any], peer: str) -> None:
    found = report["results"][peer]["500"]
    for name in ("touch_ns", "process_cpu_ns", "wall_ns"):
        assert len(found[name]["samples"]) == TINY.rounds
        assert 0 < found[name]["p10"] <= found[name]["median"] <= found[name]["p90"]
    assert found["bytes"] > 0
    for name in ("touch", "all_in"):
        assert len(report["ratios"][peer]["500"][name]["samples"]) == TINY.rounds


@pytest.mark.slow
@pytest.mark.parametrize("peer", [peer for peer in jvm.PEERS if peer != "netty-pipeline"])
def test_each_peer_fires_the_silent_once_and_is_never_early(report: dict[str, Any], peer: str) -> None:
    assert jvm.wrong_with(report["checks"][peer]) is None
    if peer not in jvm.CHANNELS:
        expire = report["results"][peer]["500"]["expire"]
        assert (expire["fired"], expire["twice"]) == (TINY.connections, 0)
        assert expire["late_ms_least"] >= 0


@pytest.mark.slow
def test_our_side_is_reported_next_to_theirs_with_and_without_the_ticks(report: dict[str, Any]) -> None:
    ours = report["results"][jvm.LEASE]["500"]
    assert len(ours["touch_ns"]["samples"]) == TINY.rounds * len(jvm.PEERS) + TINY.rounds * len(
        range(0, len(jvm.PEERS), jvm.TOGETHER)
    )
    assert ours["net_ns"]["median"] < ours["touch_ns"]["median"] < ours["process_cpu_ns"]["median"]
    assert ours["bytes"] > 0
    assert jvm.LEASE in jvm.table(report)


@pytest.mark.parametrize(
    ("group", "name", "value", "said"),
    [
        ("silent", "fired", 0, "of the silent, 0 fired"),
        ("silent", "twice", 1, "1 fired more than once"),
        ("touched", "late_ms_least", -3.0, "one fired 3.0 ms early"),
        ("touched", "fired", 99, "of the touched, 99 fired"),
    ],
)
def test_a_peer_that_does_not_do_its_work_is_found_out(group: str, name: str, value: float, said: str) -> None:
    assert jvm.wrong_with(GOOD) is None
    bad: dict[str, Any] = copy.deepcopy(GOOD)
    bad[group][name] = value
    assert said in str(jvm.wrong_with(bad))


def test_without_java_nothing_is_run_and_that_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    said: list[str] = []
    report = jvm.run(True, said.append, sizes=[TINY])
    assert report["results"] == {}
    assert set(report["not_run"]) == set(jvm.PEERS)
    assert any("NOT RUN" in line and "java" in line for line in said)
    assert "NOT RUN" in jvm.table(report)


@pytest.mark.slow
def test_a_jvm_that_fails_is_an_error_in_its_own_words(tmp_path: Path) -> None:
    try:
        jvm_process.tool("java")
    except jvm_process.Missing as missing:
        pytest.skip(str(missing))
    with (
        pytest.raises(RuntimeError, match="Could not find or load main class Bench"),
        jvm_process.running(str(tmp_path), {"netty-wheel": 10}, 10, "64m", tmp_path),
    ):
        pass


def test_a_pass_touches_each_lease_equally_often_in_an_order_that_is_not_theirs() -> None:
    leases = jvm.Leases(100)
    parts = leases._take(250)
    assert [len(part) for part in parts] == [100, 100, 50]
    assert parts[0] == parts[1]
    assert len({id(lease) for lease in parts[0]}) == 100
    assert [lease.uid for lease in parts[0]] != sorted(lease.uid for lease in parts[0])
    assert leases._take(60)[0][:50] == parts[0][50:]
