"""What got dearer since the last release is said, with its reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import dearer
from benchmarks.__main__ import main
from benchmarks.common import RESULTS, spread
from benchmarks.document import PROGRAMS, read

if TYPE_CHECKING:
    from tests.conftest import Ran

TIMER, MEMORY = "A timer, 1M: cancel, x a heap", "A connection, bytes"


def measured(ratios: list[float], size: float, scale: str = "full") -> dict[str, dict[str, Any]]:
    """Results of two programs."""
    timers = {"1000000": {"wheel/heap": {"cancel": spread(ratios)}}}
    sizes = {"lease.touch()": {"100000": {"bytes_fresh": size}}}
    about = {"about": {"commit": "0" * 40}}
    return {
        "timers": {"scale": scale, "timers": timers, **about},
        "memory": {"scale": scale, "results": sizes, **about},
    }


@pytest.fixture
def last(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """The figures of a release: ratios from 1.0 to 1.2, and 100 bytes."""
    monkeypatch.setattr(dearer, "LAST", tmp_path / "last.json")
    dearer.keep(measured([1.0, 1.1, 1.2], 100.0))
    found: dict[str, Any] = json.loads(dearer.LAST.read_text())
    return found


def test_every_figure_of_the_last_release_is_found_in_the_results_of_now() -> None:
    last = json.loads(dearer.LAST.read_text())["figures"]
    assert set(last) <= set(dearer.ranges(read(RESULTS)))


@pytest.mark.parametrize(
    ("now", "names"),
    [
        (measured([1.0, 1.1, 1.2], 100.0), []),
        (measured([1.1, 1.25, 1.4], 101.0), []),  # the spreads touch; that is noise
        (measured([1.3, 1.4, 1.5], 100.0), [TIMER]),
        (measured([0.5, 0.6, 0.7], 103.0), [MEMORY]),
        (measured([1.3, 1.4, 1.5], 103.0, "quick"), []),  # small sizes are not compared
    ],
)
def test_a_figure_is_dearer_if_its_whole_spread_lies_above_that_of_the_release(
    now: dict[str, Any], names: list[str], last: dict[str, Any]
) -> None:
    assert [each.name for each in dearer.dearer(now, last)] == names


def test_the_page_says_what_got_dearer_and_why(
    last: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(dearer.REASONS, TIMER, "a better reason")
    said = dearer.section(measured([1.3, 1.4, 1.5], 110.0))
    assert f"## Dearer than in {last['version']}" in said
    assert f"| {TIMER} | 1.1 | 1.4 | 1.27x | a better reason |" in said
    assert f"| {MEMORY} | 100 | 110 | 1.10x | **not explained** |" in said
    assert "None of 2 figures" in dearer.section(measured([1.0, 1.1, 1.2], 100.0))


def test_a_figure_that_got_dearer_without_a_reason_fails_the_document(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: Ran
) -> None:
    part = json.loads((RESULTS / "memory.json").read_text())
    part["results"]["lease.touch()"]["100000"]["bytes_fresh"] *= 2
    (tmp_path / "memory.json").write_text(json.dumps(part))
    command = ["document", "--results", str(tmp_path), "--out", str(tmp_path / "page.md")]
    status, _, err = call(main, *command)
    assert (status, f"{MEMORY}: dearer than in" in err) == (1, True)
    monkeypatch.setitem(dearer.REASONS, MEMORY, "it holds more")
    assert call(main, *command)[0] == 0


def test_every_figure_is_of_a_program_and_every_reason_of_a_figure() -> None:
    assert {each.part for each in dearer.FIGURES.values()} <= set(PROGRAMS)
    assert set(dearer.REASONS) <= set(dearer.FIGURES)
