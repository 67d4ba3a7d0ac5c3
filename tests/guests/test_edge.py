"""`python -m scripts.guests.edge`: what guests lose at the edge of the keep-alive."""

from __future__ import annotations

import shutil

import pytest

from scripts.guests.columns import COLUMNS
from scripts.guests.edge import GUESTS, lost, main, more_than_by_chance


@pytest.mark.parametrize(
    ("stock", "guarded", "more"),
    [
        ((20, 200), (20, 200), False),
        ((20, 200), (26, 200), False),
        ((20, 200), (45, 200), True),
        ((45, 200), (20, 200), False),
        ((0, 200), (0, 200), False),
        ((0, 200), (5, 200), True),
    ],
)
def test_what_chance_explains_is_not_more(
    stock: tuple[int, int], guarded: tuple[int, int], more: bool
) -> None:
    assert more_than_by_chance(stock, guarded) is more


def test_every_guest_of_the_table_is_a_column() -> None:
    assert set(GUESTS) <= set(COLUMNS)


@pytest.mark.parametrize("words", [["--only", "apache"], ["--pairs", "0"], ["--proxy", "squid"]])
def test_a_wrong_word_is_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert words[0] in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx (apt-get install nginx)")
def test_every_pair_is_tried_stock_and_guarded() -> None:
    found = lost(COLUMNS["uvicorn, httptools"], ["nginx"], 40, lambda _: None)
    assert {side: tried for side, (_, tried) in found["nginx"].items()} == {
        "stock": 40,
        "guarded": 40,
    }
