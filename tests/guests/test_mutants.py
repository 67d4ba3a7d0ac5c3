"""The mutants of the kit: what each of them changes is there, and is another thing."""

from __future__ import annotations

import ast

import pytest

from scripts.guests.columns import COLUMNS
from scripts.guests.mutants import MUTANTS, Mutant
from scripts.guests.trial import kinds_of
from scripts.serving import ROOT


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.column)
def test_what_a_mutant_changes_stands_there_once(mutant: Mutant) -> None:
    whole = (ROOT / "reaper" / mutant.path).read_text()
    assert whole.count(mutant.before) == 1
    ast.parse(whole.replace(mutant.before, mutant.after))


@pytest.mark.parametrize(
    "mutant", [each for each in MUTANTS if each.by], ids=lambda mutant: mutant.column
)
def test_a_mutant_is_caught_by_kinds_that_come_to_its_guest(mutant: Mutant) -> None:
    column = COLUMNS[mutant.column]
    worlds = ("limits", "stop", "ends", "own")
    mine = [kind for world in worlds for kind in kinds_of(column, world=world)]
    assert [kind.name for kind in mine if mutant.by in kind.name]


def test_seven_guests_and_more_have_a_mutant() -> None:
    assert len({mutant.column for mutant in MUTANTS} & set(COLUMNS)) >= 7
