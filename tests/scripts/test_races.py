"""The table of planted races: what a line of it is, and what the page says of all."""

from __future__ import annotations

import pytest

pytest.importorskip("duckdb")

from scripts import marked
from scripts.races import BEGIN, END, PAGE, PROXIES, REQUESTS, WORLDS, row


def test_a_line_of_the_table_says_what_client_and_log_count() -> None:
    entry = {"lost": 2, "untold": 1, "failed_otherwise": 3, "silence_s": [4.701, 4.75]}
    found = {"upstreams": {"a": entry}, "keep_alive_s": 65.0}
    assert row("nginx 1.22", "a race", 2, found) == (
        "| nginx 1.22 | a race | 2 | 2 | 1 | 3 | 4.70 to 4.75 s | 65 s |"
    )
    found = {"upstreams": {"a": entry | {"silence_s": None}}, "keep_alive_s": None}
    assert row("HAProxy 2.6", "none", 0, found).endswith("| - | - |")


def test_on_the_page_each_log_counts_what_its_client_lost_to_a_race_and_nothing_else() -> None:
    lines = [line for line in marked.read(PAGE, BEGIN, END).splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]
    assert [each[1] for each in cells] == [*WORLDS] * len(PROXIES)
    for _, world, failed, lost, untold, otherwise, *_ in cells:
        assert int(untold) == 0
        if world.startswith("a race"):
            assert (lost, otherwise) == (failed, "0")
            assert int(lost) >= REQUESTS // 3
        else:
            assert lost == "0"
