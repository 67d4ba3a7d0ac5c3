"""Claims about the table of reasons: it has them all, and nobody writes one down for
himself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from reaper.attach import judge
from reaper.config import OPTIONS
from reaper.policy import RULES, Phase, reasons
from reaper.policy.phases import TOO_SLOW
from reaper.policy.reasons import ANSWERS, REASONS, Reason

ROOT = Path(__file__).resolve().parent.parent.parent
MODULES = [
    path
    for package in ("reaper", "server_example")
    for path in sorted((ROOT / package).rglob("*.py"))
]
GIVING = {"reap", "retire", "leave", "cut", "_cut", "_leave", "_enter"}
"""Methods that are given a reason."""


def test_every_phase_that_can_time_out_has_a_reason_of_its_name() -> None:
    phases = {phase.value for phase, rule in RULES.items() if rule.timeout is not None}
    assert phases == {phase.value for phase in Phase} - {Phase.IN_FLIGHT.value}
    assert phases <= set(REASONS)


def test_the_reasons_of_least_rates_and_of_attach_are_rows() -> None:
    assert {*TOO_SLOW.values(), *judge.REASONS} <= set(REASONS)


@pytest.mark.parametrize("row", REASONS.values(), ids=lambda row: row.name)
def test_a_reason_is_the_constant_of_its_name_with_real_settings_and_givers(row: Reason) -> None:
    assert getattr(reasons, row.name.upper()) == row.name
    assert set(row.settings) <= set(OPTIONS)
    assert row.given_by
    for room in row.given_by:
        others = [path for path in (ROOT / "reaper" / room).rglob("*.py") if path.stem != "reasons"]
        text = "".join(path.read_text() for path in others)
        assert row.name.upper() in text or f'"{row.name}"' in text, room


def test_http_answers_only_clients_that_wait_for_an_answer() -> None:
    answered = {name: status for name, status in ANSWERS.items() if status is not None}
    assert answered == {"headers": 408, "body": 408, "min_in_rate": 408, "request": 503}
    assert ANSWERS.keys() == REASONS.keys()


def given_words(path: Path) -> Iterator[str]:
    """The calls in *path* that give a reason by a word in quotes."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            given = [each for each in node.args if isinstance(each, ast.Constant)]
            if node.func.attr in GIVING and any(isinstance(each.value, str) for each in given):
                yield f"{path.relative_to(ROOT)}: {ast.unparse(node)}"


def test_no_close_is_given_a_reason_that_stands_nowhere() -> None:
    assert not [call for path in MODULES for call in given_words(path)]
