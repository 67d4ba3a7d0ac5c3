"""A figure in the prose of a page is that of a result in the repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.common import RESULTS, ROOT
from benchmarks.document import (
    PIPELINE,
    PIPELINE_MARKS,
    TLS_MARKS,
    TLS_MEMORY,
    read,
    seconds_of_pipeline,
    write_tls_memory,
)
from benchmarks.figures import QUOTES, Quote, filled
from scripts import marked


@pytest.mark.parametrize("name", QUOTES)
def test_what_a_page_quotes_is_what_was_measured(name: str) -> None:
    page = (ROOT / name).read_text()
    assert filled(page, QUOTES[name], read(RESULTS)) == page


def test_the_seconds_of_the_pipeline_are_those_of_its_result() -> None:
    said = marked.read(PIPELINE, *PIPELINE_MARKS)
    assert said == seconds_of_pipeline(read(RESULTS)["pipeline"])


def test_the_table_of_idle_tls_clients_is_that_of_its_result(tmp_path: Path) -> None:
    copied = tmp_path / "page.md"
    copied.write_text(TLS_MEMORY.read_text())
    write_tls_memory(read(RESULTS), copied)
    assert marked.read(copied, *TLS_MARKS) == marked.read(TLS_MEMORY, *TLS_MARKS)


def test_a_figure_is_put_where_the_words_are_whatever_their_lines() -> None:
    quote = Quote("costs {} us, and {} times", lambda _: ["7", "1.5"])
    assert filled("It costs 3\nus, and 1,000\ntimes as", [quote], {}) == (
        "It costs 7\nus, and 1.5\ntimes as"
    )
    for page in ("It costs nothing", "costs 3 us, and 1 times; costs 3 us, and 1 times"):
        with pytest.raises(ValueError, match="times in the page"):
            filled(page, [quote], {})
