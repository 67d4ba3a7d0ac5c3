"""A signature is typed as a whole or not at all, and the name of a test is one short
claim.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDERS = (
    *("reaper", "loadgen", "server_example", "scripts", "benchmarks", "examples"),
    *("tests", "docs"),
)
LONGEST_NAME = 80
"""Characters. A longer name is two claims, and two claims are two tests."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(folder: str) -> Iterator[tuple[str, Function]]:
    """Every function of a folder, with its place."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, Function):
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", node


def is_half_typed(function: Function) -> bool:
    """Whether some of its parameters and its return value have types, and others have
    none.
    """
    given = function.args
    parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    typed = [
        each.annotation is not None
        for each in parameters
        if each is not None and each.arg not in ("self", "cls")
    ]
    return bool(typed) and (any(typed) != all(typed) or (all(typed) and function.returns is None))


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_signature_is_half_typed(folder: str) -> None:
    assert not [place for place, function in functions(folder) if is_half_typed(function)]


def test_the_names_of_tests_are_short() -> None:
    tests = [each for each in functions("tests") if each[1].name.startswith("test_")]
    assert len(tests) > 1000
    assert not [place for place, function in tests if len(function.name) > LONGEST_NAME]
