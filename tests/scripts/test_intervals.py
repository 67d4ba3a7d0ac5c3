"""The table of `advise`'s intervals: what a cell asks, and what the page says of all of
them.
"""

from __future__ import annotations

import re

import pytest

pytest.importorskip("numpy")

import numpy as np

from reaper.pipeline.advise.survival import LEAST_NS
from scripts.intervals import (
    BEGIN,
    CUTS,
    END,
    KINDS,
    PAGE,
    REPEATS,
    ROOM,
    SIZES,
    TOO_SHORT,
    cell,
    edges,
    when,
)


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_of_silences_is_drawn_as_its_truth_says(name: str) -> None:
    kind = KINDS[name]
    rng = np.random.default_rng(3)
    drawn = kind.draw(rng, np.repeat(np.arange(20_000), 2))
    for share in (0.5, 0.1, 0.01):
        assert np.mean(drawn > when(kind.beyond, share)) == pytest.approx(share, rel=0.1)


def test_silences_are_counted_at_the_edges_of_the_pipeline() -> None:
    silences = np.array([1e-9, 0.25, 1.234567, 75.0, 123.4])
    found = edges(silences)
    assert found.tolist() == [LEAST_NS, 250_000_000, 1_240_000_000, 75 * 10**9, 124 * 10**9]


@pytest.mark.slow
def test_the_interval_of_a_cell_is_about_as_sure_as_it_says() -> None:
    found = cell(KINDS["clients that differ"], CUTS["a timeout of 75 s"], 2000, 60, seed=9)
    assert 0.85 < found.held <= 1.0
    assert found.short < 0.1


def test_the_page_has_every_cell_and_marks_those_that_are_not_as_wanted() -> None:
    written = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    cells = re.findall(r"\| ([\d.]+)%, ([\d.]+)%( \(!\))?", written)
    assert len(cells) == len(KINDS) * len(CUTS) * len(SIZES)
    low, high = ROOM
    for held, short, mark in cells:
        good = low <= float(held) / 100 <= high and float(short) / 100 <= TOO_SHORT
        assert bool(mark) != good
    marked = sum(bool(mark) for *_, mark in cells)
    assert f"{len(cells) - marked} of {len(cells)} cells" in " ".join(written.split())
    assert int(re.findall(r"(\d+)\s+repeats", written)[0]) >= REPEATS
