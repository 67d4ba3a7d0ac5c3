"""The list of what a guest's clients lack that uvicorn's have."""

from __future__ import annotations

import pytest

from scripts.guests.named import NAMED
from scripts.guests.worse import STOCK, what, worse

UVICORN = "uvicorn, httptools"


@pytest.mark.parametrize(
    ("theirs", "mine", "expected"),
    [
        ("kept", "kept", ""),
        ("kept (stock lost)", "lost", "lost"),
        ("lost", "lost", ""),
        ("1.0 s, 408", "1.1 s, 408 (2.0 s)", ""),
        ("1.0 s, 408", "**1.0 s**", "not told 408"),
        ("1.0 s, 408", "**2.0 s, 408**", "later"),
        ("1.0 s", "**held**", "held"),
        ("held", "1.0 s", ""),
        ("", "lost", ""),
    ],
)
def test_one_is_worse_if_it_loses_holds_delays_or_does_not_tell(
    theirs: str, mine: str, expected: str
) -> None:
    assert what(theirs, mine) == expected


def test_a_reason_is_that_of_the_stock_server_or_of_a_row_and_a_lack_of_one_shows() -> None:
    row = next(row for row in NAMED if row.late)
    (kind,), guest = row.kinds, row.columns[0]
    cells = {
        UVICORN: {kind: "1.0 s, 408", "asks": "kept", "posts": "kept"},
        guest: {kind: "**2.1 s, 408**", "asks": "lost", "posts": "**lost (stock kept)**"},
    }
    assert list(worse(cells)) == [
        ("asks", guest, "lost", STOCK),
        (kind, guest, "later", row.why),
        ("posts", guest, "lost", "**no reason is known**"),
    ]
