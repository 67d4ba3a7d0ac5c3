"""A server is named in its own room: who adds one changes its card, and no list."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from reaper.servers.cards import rooms
from tests.house.test_layers import ROOT

MOST = 3
"""Files of programs and figures that may name a server outside its room and its
tests.
"""
WORDS = {"anyio", "websockets"}
"""Rooms whose name says more than the server: a library, and a protocol."""
SMALL = [room for room, card in rooms().items() if card.family and room not in WORDS]
"""Those that share a column. The others are what programs, examples and figures of this
checkout are made of.
"""
TESTS = {"scripts/guests/mutants.py", "scripts/suites/suites.toml"}
"""What breaks the rooms to see whether that is noticed, and the servers' own tests."""
GENERATED = re.compile(r"(# |<!-- )\w[\w ]*: written by `.*?end of \w[\w ]*", re.DOTALL)
PINS = {"pyproject.toml", "constraints.txt"}


def sources() -> list[Path]:
    done = subprocess.run(
        [
            "git",
            "ls-files",
            "reaper",
            "server_example",
            "loadgen",
            "scripts",
            "benchmarks",
            "*.toml",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    kept = (".py", ".toml")
    apart = PINS | TESTS
    return [Path(name) for name in done.stdout.split() if name.endswith(kept) and name not in apart]


def naming(room: str) -> list[str]:
    """The files that name the server of *room*, generated lists apart."""
    word = re.compile(rf"\b{room}\b", re.IGNORECASE)
    others = [path for path in sources() if f"reaper/servers/{room}" not in str(path)]
    texts = {str(path): (ROOT / path).read_text() for path in others}
    return [name for name, text in texts.items() if word.search(GENERATED.sub("", text))]


@pytest.mark.parametrize("room", SMALL)
def test_a_small_server_is_named_in_few_files(room: str) -> None:
    found = naming(room)
    assert len(found) <= MOST, found


def code_of(path: Path) -> set[str]:
    """The words of *path* that Python sees: names, imports, and strings but
    docstrings.
    """
    tree = ast.parse(GENERATED.sub("", (ROOT / path).read_text()))
    documents = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    words: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in documents:
                words |= set(re.findall(r"\w+", node.value))
        elif isinstance(node, ast.Import):
            words |= {part for alias in node.names for part in alias.name.split(".")}
        elif isinstance(node, ast.ImportFrom):
            words |= set((node.module or "").split("."))
    return words


@pytest.mark.parametrize("room", SMALL)
def test_no_code_of_reaper_names_a_small_server_outside_its_room(room: str) -> None:
    for path in sources():
        if path.suffix == ".py" and path.parts[0] == "reaper" and room not in path.parts:
            assert room not in code_of(path), path
