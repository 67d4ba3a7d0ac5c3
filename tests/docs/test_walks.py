"""The walks on the page how-it-works.md name every file that a real exchange enters,
and no other.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.steps import ROOT
from tests.helpers.walks import WALKS

PAGE = (ROOT / "docs" / "how-it-works.md").read_text()
HEADINGS = {
    "echo": "### An echo",
    "uvicorn": "### uvicorn",
    "hypercorn": "### hypercorn",
    "audit": "### The audit",
    "hook": "### `reaper run`",
}


def section(name: str) -> str:
    """What the page says of the walk *name*."""
    return re.split(r"^#+ ", PAGE.partition(HEADINGS[name])[2], maxsplit=1, flags=re.MULTILINE)[0]


def shown(name: str) -> list[str]:
    """The files in the first column of the table, in order."""
    return re.findall(r"^\| `([^`]+)` \|", section(name), re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("name", WALKS)
def test_a_walk_enters_the_files_that_the_page_shows(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.helpers.walks", name]
    page = set(shown(name))
    for attempt in range(5):
        (folder := tmp_path / f"{attempt}").mkdir()
        done = subprocess.run([*command, str(folder)], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        entered = json.loads(done.stdout.splitlines()[-1])
        # What a loop does that stood still, and says so, is no part of the walk.
        if set(entered) == page or "the event loop stalled" not in done.stderr:
            break
    assert sorted(page - set(entered)) == [], "on the page, and not entered"
    assert sorted(set(entered) - page) == [], "entered, and not on the page"


@pytest.mark.parametrize("name", WALKS)
def test_the_page_says_how_many_files_a_walk_has(name: str) -> None:
    (said,) = re.findall(r"(\d+) files\.", section(name))
    assert int(said) == len(shown(name)) == len(set(shown(name)))
