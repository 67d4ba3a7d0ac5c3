"""The reference server as a text to read: its README, and who imports whom."""

from __future__ import annotations

import re
from graphlib import TopologicalSorter

from tests.helpers.server_process import ROOT
from tests.house.test_layers import graph

FOLDER = ROOT / "server_example"


def test_no_file_imports_itself_by_way_of_others_not_even_for_the_type_checker() -> None:
    TopologicalSorter(graph("server_example", types=True)).prepare()  # CycleError names them


def test_the_order_of_reading_has_every_file_and_no_other() -> None:
    named = set(re.findall(r"`((?:http/)?\w+\.py)`", (FOLDER / "README.md").read_text()))
    files = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.py")}
    assert named == {name for name in files if not name.endswith("__init__.py")}
