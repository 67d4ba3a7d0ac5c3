"""Every example of docs/how-it-works.md comes out as the page says."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "docs" / "how-it-works.md"


@pytest.mark.slow
def test_the_page_computes_what_it_shows() -> None:
    results = doctest.testfile(str(PAGE), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert results.failed == 0
    assert results.attempted > 30
