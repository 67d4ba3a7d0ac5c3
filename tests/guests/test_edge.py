"""`python -m scripts.guests.edge`: what guests lose at the edge of the keep-alive."""

from __future__ import annotations

import itertools
import shutil

import pytest

from scripts.guests.columns import COLUMNS
from scripts.guests.edge import (
    ADVISED,
    CLIENTS,
    GUESTS,
    RACE,
    RESTS,
    Cell,
    Edge,
    main,
    raced,
    rests,
)


@pytest.mark.parametrize(
    ("stock", "guarded", "worse"),
    [
        ([20] * 9, [20] * 9, False),
        ([20] * 9, [21] * 9, True),
        ([21] * 9, [20] * 9, False),
        ([20] * 6, [40] * 6, False),
        ([5, 56, 23, 15, 9, 30, 41, 12, 8], [43, 17, 33, 11, 60, 22, 19, 31, 20], False),
        ([0] * 9, [0] * 9, False),
        ([], [], False),
    ],
)
def test_what_scans_differ_by_is_left_to_chance_until_most_agree(
    stock: list[int], guarded: list[int], worse: bool
) -> None:
    cell = Cell([((a, 200), (b, 200)) for a, b in zip(stock, guarded, strict=True)])
    assert cell.is_worse is worse
    assert cell.lost == (sum(stock), sum(guarded))


@pytest.mark.parametrize("edge", [RACE, ADVISED])
def test_scans_cover_the_window_and_try_no_rest_twice(edge: Edge) -> None:
    tried = sorted(rest for scan in range(3) for rest in rests(edge, scan, 3))
    apart = [later - rest for rest, later in itertools.pairwise(tried)]
    step = (edge.high - edge.low) / RESTS / 3
    assert apart == pytest.approx([step] * (3 * RESTS - 1))
    assert tried[0] - edge.low == pytest.approx(edge.high - tried[-1]) == pytest.approx(step / 2)


def test_every_guest_of_the_table_is_a_column() -> None:
    assert set(GUESTS) <= set(COLUMNS)


@pytest.mark.parametrize("words", [["--only", "apache"], ["--scans", "0"], ["--proxy", "squid"]])
def test_a_wrong_word_is_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert words[0] in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx (apt-get install nginx)")
@pytest.mark.parametrize(
    ("edge", "few", "some"),
    [(Edge(1.0, 0.75, 1.1), 14, True), (Edge(3.0, 2.7, 3.1, gives_up=True), 10, False)],
    ids=["the pool outlives keep_alive", "the pool gives up first"],
)
def test_posts_are_lost_where_the_pool_outlives_the_keep_alive_alone(
    edge: Edge, few: int, some: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three scans at once, whose rests lie between each other's: the race is some 40 ms
    long, and a server closes at another instant for each rest.
    """
    monkeypatch.setattr("scripts.guests.edge.RESTS", few)
    found = raced(COLUMNS["uvicorn, httptools"], ["nginx"], 3, lambda _: None, edge)["nginx"]
    assert [tried for scan in found.scans for _, tried in scan] == [CLIENTS * few] * 6
    assert [each > 0 for each in found.lost] == [some] * 2
