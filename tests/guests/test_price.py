"""What the page says of the price of HTTP/2 was measured."""

from __future__ import annotations

import pytest

from scripts import marked
from scripts.guests.columns import COLUMNS
from scripts.guests.price import BEGIN, END, PAGE, in_words, ratios, said


def test_the_page_has_what_was_measured_of_each_guest() -> None:
    shown = marked.read(PAGE, BEGIN, END)
    names = {each.name for each in COLUMNS.values() if "http2" in each.speaks}
    assert [name for name in sorted(names) if name not in shown] == []


def test_each_round_is_compared_with_the_one_beside_it() -> None:
    found = {"stock": [10.0, 20.0, 40.0], "guarded": [11.0, 30.0, 40.0]}
    assert ratios(found) == pytest.approx([1.1, 1.5, 1.0])
    assert said(found) == "20 us stock, 30 us guarded, 1.10 times (1.00 to 1.50)"


def test_the_page_says_no_more_than_the_rounds_show() -> None:
    costs = {
        "one": {"stock": [10.0, 20.0, 10.0], "guarded": [11.0, 30.0, 13.0]},
        "other": {"stock": [10.0, 10.0, 10.0], "guarded": [9.0, 11.0, 11.0]},
    }
    words = in_words({"rounds": 3, "costs": costs})
    assert "1.10 (other) to 1.30 (one) times" in words
    assert "by the median of 3 rounds" in words
    assert "Single rounds gave 0.90 to 1.50" in words
