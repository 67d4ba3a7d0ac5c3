"""Stacks of HTTP/2 that others wrote, whose users lag: none loses anything of a guarded
server that it has of the stock one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scripts.guests.lagging.__main__ import DOWNLOADS, GUESTS, STACKS, Found, built, tried


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The commands of those whose tools are here."""
    return built(STACKS, tmp_path_factory.mktemp("stacks"))


@pytest.mark.slow
@pytest.mark.parametrize("name", GUESTS)
def test_a_stack_that_lags_loses_nothing(name: str, stacks: dict[str, list[str]]) -> None:
    """It waits for the seconds by which its user lags: the stacks' clocks are real."""
    if lacks := STACKS.keys() - stacks.keys():
        pytest.skip(f"no tools for {', '.join(sorted(lacks))}")
    others = [stack for stack in stacks if not stack.startswith("Go, ")]
    other = others[list(GUESTS).index(name) % len(others)]  # the command tries each with each
    mine = {stack: stacks[stack] for stack in stacks if stack not in others or stack == other}
    worse = {
        stack: guarded
        for stack, (stock, guarded) in tried(GUESTS[name], mine).items()
        if guarded.lost > stock.lost
    }
    assert worse == {}


COUNTS = f'print(\'{{"asked": {DOWNLOADS + 1}, "lost": 2}}\')'


@pytest.mark.parametrize(
    ("program", "found"),
    [
        (COUNTS, Found(DOWNLOADS + 1, 2, "")),
        ("raise SystemExit('refused')", Found(DOWNLOADS + 1, DOWNLOADS + 1, "refused")),
        ("", Found(DOWNLOADS + 1, DOWNLOADS + 1, "says nothing")),
    ],
    ids=["counts", "fails", "says nothing"],
)
def test_a_stack_that_fails_has_lost_all(
    program: str, found: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from types import SimpleNamespace

    from scripts.guests.lagging import __main__ as lagging

    class Pair:
        def __enter__(self) -> tuple[SimpleNamespace, SimpleNamespace]:
            return SimpleNamespace(port=1), SimpleNamespace(port=2)

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(lagging, "pair", lambda *_: Pair())
    column = next(iter(GUESTS.values()))
    found_ = tried(column, {"one": [sys.executable, "-c", program]})
    assert found_ == {"one": (found, found)}
