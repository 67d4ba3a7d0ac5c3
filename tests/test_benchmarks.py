"""The benchmarks run, their peers are real, and the document says what was found - and nothing that was not."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import exchange, suite
from benchmarks.common import ROOT, ratios, spread
from benchmarks.heart.outliers import DESIGNS
from benchmarks.page import document, goals, results
from benchmarks.peers import table as peers

SMOKED = [part.name for part in suite.PARTS if part.name not in ("jvm", "servers", "instructions", "exchanges")]
"""Those have tests of their own."""

EXPIRING = [kind for kind in peers.ALL if kind.expires]
RELEASING = [kind for kind in EXPIRING if not kind.real and kind is not peers.TrioMoveOn]
"""A read that ends by itself has nothing to release; the real clock's release is that of its twin on virtual time."""


def lives_of(kind: type[peers.Peer], timeout: float, wait: Any) -> tuple[dict[Any, float], list[Any], list[Any]]:
    """Ten connections, of which every other one speaks at half its timeout: when each was expired, in timeouts."""
    keys = [f"client {i}" for i in range(10)]
    peer = kind(keys, timeout)
    speaking, silent = [0, 2, 4, 6, 8], [1, 3, 5, 7, 9]
    died: dict[Any, float] = {}
    try:
        wait(0.0)
        peer.register(10, 0.0)
        for twentieth in range(1, 51):
            at = twentieth / 20
            if twentieth == 10:
                peer.touch_all(peer.handles(speaking), at * timeout)
            wait(at)
            for uid in peer.tick(at * timeout):
                assert uid not in died, f"{uid} was expired twice"
                died[uid] = at
    finally:
        peer.close()
    by_number = isinstance(next(iter(died), ""), int)
    return died, *([i if by_number else keys[i] for i in group] for group in (silent, speaking))  # type: ignore[return-value]


@pytest.mark.parametrize("kind", [kind for kind in EXPIRING if not kind.real], ids=lambda kind: kind.name)
def test_each_peer_expires_the_silent_and_no_other(kind: type[peers.Peer]) -> None:
    died, silent, speaking = lives_of(kind, 20.0, lambda at: None)
    assert sorted(died) == sorted(silent + speaking)
    assert all(1.0 <= died[uid] <= 1.15 for uid in silent), died
    assert all(1.5 <= died[uid] <= 1.65 for uid in speaking), died


class Stalled(Exception):
    """This machine did not let the test run for too long: what it saw says nothing about the peer."""


def on_the_real_clock(timeout: float) -> None:
    """The same for the peer that cannot be told the time, in steps that are kept to a tenth of its timeout."""
    began = time.monotonic()

    def wait(at: float) -> None:
        ahead = began + at * timeout - time.monotonic()
        if ahead < -timeout / 10:
            raise Stalled(f"{-ahead:.3f} s behind")
        time.sleep(max(0.0, ahead))

    died, silent, speaking = lives_of(peers.UvloopTimer, timeout, wait)
    assert sorted(died) == sorted(silent + speaking)
    assert all(0.85 <= died[uid] <= 1.25 for uid in silent), died
    assert all(1.35 <= died[uid] <= 1.75 for uid in speaking), died


@pytest.mark.slow
def test_the_peer_on_the_real_clock_expires_the_silent_first() -> None:
    for timeout in (0.4, 1.6, 6.4):
        try:
            return on_the_real_clock(timeout)
        except Stalled:
            continue
    return on_the_real_clock(25.6)


@pytest.mark.parametrize("kind", RELEASING, ids=lambda kind: kind.name)
def test_each_peer_lets_go_of_the_released(kind: type[peers.Peer]) -> None:
    peer = kind([f"client {i}" for i in range(6)], 10.0)
    try:
        peer.register(6, 0.0)
        peer.tick(1.0)
        peer.release(peer.handles([1, 3]))
        died = [uid for second in range(2, 14) for uid in peer.tick(float(second))]
    finally:
        peer.close()
    assert sorted(str(uid)[-1] for uid in died) == ["0", "2", "4", "5"]


def test_every_suspect_design_expires_all_in_as_many_slices() -> None:
    assert {name: sum(1 for _ in steps(5_000)) - 1 for name, steps in DESIGNS.items()} == dict.fromkeys(DESIGNS, 5)


def test_a_ratio_is_taken_round_by_round_and_not_of_the_medians() -> None:
    found = ratios([1.0, 20.0, 3.0], [1.0, 10.0, 1.0])
    assert (found["median"], found["samples"]) == (2.0, [1.0, 2.0, 3.0])
    assert spread([4, 1, 3, 2, 5])["samples"] == [4, 1, 3, 2, 5]


ABOUT = {
    "cpu": "a processor", "cpus": 2, "memory_bytes": 2**30, "system": "Linux", "kernel": "6", "python": "CPython 3",
    "packages": {}, "commit": "0" * 40, "dirty": False, "date": "today",
}  # fmt: skip


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny run of everything, by the command that a user types."""
    out = tmp_path_factory.mktemp("results")
    command = [sys.executable, "-m", "benchmarks", "run", "--tiny", "--only", ",".join(SMOKED), "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "to go" in done.stderr
    return out


@pytest.mark.slow
def test_every_part_says_what_it_was_measured_on(measured: Path) -> None:
    found = {path.stem: json.loads(path.read_text()) for path in measured.iterdir()}
    assert sorted(found) == sorted(SMOKED)
    for name, part in found.items():
        assert part["scale"] == "tiny"
        assert {"cpu", "kernel", "python", "packages", "commit", "dirty", "date"} <= set(part["about"]), name
    for case in found["accuracy"]["core"].values():
        assert case["reaps"] > 0, "none was reaped, so none could be early"
        assert (case["early"], case["left"]) == (0, 0)


@pytest.mark.slow
def test_the_document_has_a_row_for_every_goal_and_no_hole_left(measured: Path, tmp_path: Path) -> None:
    text = document_of(measured, tmp_path)
    short = (tmp_path / "performance.md").read_text()
    assert not document.HOLE.search(short)
    assert "](performance-full.md)" in short
    for section in ("## Use something else when", "## Known bad"):
        assert section in short
    drawn = {path.name: path.read_bytes() for path in (tmp_path / "img").iterdir()}
    assert document_of(measured, tmp_path) == text, "the same figures, another document"
    assert drawn == {path.name: path.read_bytes() for path in (tmp_path / "img").iterdir()}, "... other plots"
    assert not document.HOLE.search(text)
    assert "{" not in re.sub(r"`[^`]*`", "", text)
    for goal in goals.GOALS:
        assert f"| {goal.text} |" in text
    assert "**NOT RUN**: the part `jvm`" in text
    for image in re.findall(r"\]\((img/\S+\.svg)\)", text):
        assert "<svg" in (tmp_path / image).read_text()
    assert "](pipeline-speed.md)" not in text, "it was not measured, and yet there is a link to it"


def document_of(measured: Path, folder: Path) -> str:
    """The page of all tables; it, the short page and its plots are written below *folder*."""
    document.write(measured, folder / "performance.md")
    return (folder / "performance-full.md").read_text()


def test_the_short_page_fits_one_screen_and_says_what_was_not_measured(tmp_path: Path) -> None:
    figures = {"touch_ns": spread([1.0]), "to_empty": spread([1.0]), "to_store": spread([3.0])}
    kinds = (peers.LeaseTouch, peers.UidTouch, peers.DictStore, peers.EmptyCall, peers.EmptyAgain)
    found = {kind.name: {"100": figures} for kind in kinds}
    (tmp_path / "touch.json").write_text(json.dumps({"results": found, "about": ABOUT}))
    document.write(tmp_path, tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert "| per packet | not measured | not measured |" in text
    assert "| per tick, nothing due | not measured | not measured |" in text
    assert "- `core.touch(uid)` costs 3.00x" in text
    assert "](page-full.md)" in text
    assert len((ROOT / "docs" / "performance.md").read_text().splitlines()) <= 50


def test_the_documents_in_the_repository_are_those_of_its_results(tmp_path: Path) -> None:
    document.write(ROOT / "benchmarks" / "results", tmp_path / "performance.md")
    for name in ("performance.md", "performance-full.md"):
        assert (ROOT / "docs" / name).read_text() == (tmp_path / name).read_text(), "run: python -m benchmarks document"


@pytest.mark.slow
def test_a_missed_goal_is_marked_and_explained_and_a_met_one_is_not(measured: Path, tmp_path: Path) -> None:
    for factor, marked in ((100.0, True), (0.001, False)):
        found = json.loads((measured / "touch.json").read_text())
        for figures in found["results"][peers.LeaseTouch.name].values():
            figures["to_empty"] = spread([factor * sample for sample in figures["to_empty"]["samples"]])
        (tmp_path / "touch.json").write_text(json.dumps(found))
        changed = results.Results(tmp_path)
        rows = [line for line in document.goals(changed).splitlines() if line.startswith(f"| {goals.GOALS[0].text}")]
        assert [row.endswith(f"{document.MISSED} |") for row in rows] == [marked]
        assert (goals.EXPLANATIONS["touch-1k"] in document.explanations(changed)) is marked


def test_where_we_lose_is_computed_from_the_figures(tmp_path: Path) -> None:
    figures = {"touch_ns": spread([1.0]), "to_empty": spread([1.0]), "to_store": spread([1.0])}
    found = {
        peers.LeaseTouch.name: {"100": figures | {"lease_to_it": spread([1.0])}},
        "slower": {"100": figures | {"lease_to_it": spread([0.5])}},
        "faster": {"100": figures | {"lease_to_it": spread([1.5])}},
    }
    (tmp_path / "touch.json").write_text(json.dumps({"results": found}))
    lost = [each for each in results.comparisons(results.Results(tmp_path)) if each.ratio > 1]
    assert [(each.theirs, each.n, each.ratio) for each in lost] == [("faster", 100, 1.5)]


def test_every_explanation_belongs_to_a_goal_and_types_no_figure() -> None:
    assert set(goals.EXPLANATIONS) <= {goal.key for goal in goals.GOALS}
    assert len({goal.key for goal in goals.GOALS}) == len(goals.GOALS)
    for key, text in goals.EXPLANATIONS.items():
        assert not re.search(r"(?<![\w.])\d+(\.\d+)?(?![\w])", text), f"{key}: a figure typed by hand"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--only", "touch,nothing"], "--only nothing: must be of touch, "),
        (["document", "--results", "/nonexistent"], "/nonexistent: no results there; measure first"),
    ],
)
def test_bad_arguments_are_named_in_one_line(arguments: list[str], words: str) -> None:
    done = subprocess.run([sys.executable, "-m", "benchmarks", *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert words in done.stderr.splitlines()[-1]


def test_what_an_exchange_costs_is_what_a_run_without_any_does_not_use(monkeypatch: pytest.MonkeyPatch) -> None:
    resting = 0.25  # of a processor

    def run(connections: int, processes: int, mix: str, beat: float = 0.0) -> exchange.Used:
        speaks = "chatty" in mix
        each = 0.0 if not speaks else 1e-4 if beat else 4e-4
        held, closed = (24.0 if speaks else 20.0), 12.0
        speaking = each * connections / 2 / exchange.MEAN_GAP * held
        server = connections * 1e-4, resting * held + speaking, resting * closed + connections * 3e-5
        opening, holding, closing = ((used, 2 * used) for used in server)  # the clients use twice of everything
        return exchange.Used(opening, holding, closing, held, closed)

    monkeypatch.setattr(exchange, "run", run)
    found = exchange.measure(1000, 10)
    expected = {"connect": 1e-4, "exchange": 4e-4, "exchange, together": 1e-4, "close": 3e-5, "resting": 0.025}
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert found[name] == pytest.approx({"server": value, "clients": 2 * value})
