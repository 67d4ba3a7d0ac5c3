"""Who may import whom: the arrows of the architecture, read from the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FRAMEWORKS = {"trio", "asyncio", "pyspark", "psutil", "pyarrow", "pandas", "numpy", "h11", "matplotlib", "rich"}
MAY = {"reaper/trio": {"trio"}, "reaper/asyncio": {"asyncio"}, "reaper/policy/pressure": {"psutil"}}


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imported(path: Path, *, lazily_too: bool) -> Iterator[str]:
    """Absolute names of the modules that *path* imports; only those at import time unless *lazily_too*."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree) if lazily_too else _at_import(tree.body):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ""
            if node.level:
                package = path.relative_to(ROOT).parent.parts
                base = ".".join(package[: len(package) - node.level + 1])
            module = ".".join(filter(None, [base, node.module]))
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _at_import(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        for name in ("body", "orelse", "finalbody"):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield from _at_import(getattr(node, name, []))


def module_of(path: Path) -> str:
    return str(path.relative_to(ROOT).with_suffix(""))


@pytest.mark.parametrize("path", sources("reaper"), ids=module_of)
def test_a_framework_is_imported_only_by_its_adapter(path):
    name = module_of(path)
    if name.startswith("reaper/pipeline/"):
        return
    allowed = (
        MAY.get(name, set())
        | MAY.get("/".join(name.split("/")[:2]), set())
        | ({"pyarrow"} if name.startswith("reaper/journal") else set())
    )
    roots = {module.split(".")[0] for module in imported(path, lazily_too=False)}
    assert not roots & FRAMEWORKS - allowed


@pytest.mark.parametrize("path", sources("reaper"), ids=module_of)
def test_nothing_imports_the_pipeline_and_the_library_imports_no_example(path):
    name = module_of(path)
    modules = set(imported(path, lazily_too=True))
    if not name.startswith("reaper/pipeline/"):
        assert not {module for module in modules if module.startswith("reaper.pipeline")}
    assert not {module for module in modules if module.split(".")[0] in {"server_example", "loadgen", "tests"}}


@pytest.mark.parametrize("path", sources("reaper/pipeline"), ids=module_of)
def test_the_pipeline_imports_of_the_library_only_the_journals_schema(path):
    ours = {module for module in imported(path, lazily_too=True) if module.startswith("reaper.")}
    assert {m for m in ours if not m.startswith(("reaper.pipeline", "reaper.journal", "reaper.errors"))} <= set()


@pytest.mark.parametrize("path", sources("loadgen"), ids=module_of)
def test_the_judge_knows_nothing_of_the_judged(path):
    name = module_of(path)
    ours = {m for m in imported(path, lazily_too=True) if m.split(".")[0] in {"reaper", "server_example"}}
    if name.startswith("loadgen/simulate"):
        assert not {m for m in ours if m.startswith("server_example")}
    elif name == "loadgen/drive/journal":
        assert {m for m in ours if not m.startswith("reaper.journal")} <= {"reaper"}
    else:
        assert not ours


@pytest.mark.parametrize("path", sources("server_example"), ids=module_of)
def test_the_example_uses_public_names_only(path):
    tree = ast.parse(path.read_text())
    names = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert not [name for name in names if name.startswith("_") and name != "__future__"]
    private = [
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and ast.unparse(node) != "os._exit"
        and not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"})
    ]
    assert not private


CORE = [
    *sources("reaper/core"),
    *sources("reaper/dense"),
    ROOT / "reaper/errors.py",
    ROOT / "reaper/trio/operations.py",
]


@pytest.mark.parametrize("path", CORE, ids=module_of)
def test_the_core_reads_no_clock_and_does_no_io(path):
    banned = {"time", "datetime", "socket", "os", "select", "threading", "logging", "random"}
    assert not {module.split(".")[0] for module in imported(path, lazily_too=True)} & banned


def test_the_arrows_have_no_circle():
    graph = {
        module_of(path).replace("/", "."): {m for m in imported(path, lazily_too=False) if m.startswith("reaper")}
        for path in sources("reaper")
        if path.name not in {"__init__.py", "__main__.py"}
    }

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join((*trail, name))
        for other in graph.get(name, ()):
            if other in graph:
                visit(other, (*trail, name))

    for name in graph:
        visit(name, ())


def test_only_one_module_rounds():
    for path in sources("reaper"):
        name = module_of(path)
        # lint estimates for people to read; the journal and the pipeline look at time that is past.
        if name in {"reaper/core/ticks", "reaper/config/lint"} or name.startswith(
            ("reaper/pipeline", "reaper/journal")
        ):
            continue
        calls = {ast.unparse(node.func) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)}
        assert not calls & {"math.floor", "math.ceil", "math.trunc", "floor", "ceil"}, name
