"""A name of another package that nobody has promised stands in a table before it is
used.

What `reaper/servers/`, `reaper/run/` and `reaper/asyncio/` read, set, wrap or override
of others is found in their source, and, where a class of ours derives from one of
theirs, by looking at that class. The tables are the `names.py` of the room, and those
it imports; for asyncio those of `reaper/foreign.py`.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import reaper.foreign
from reaper.foreign import Foreign
from reaper.source import known_of
from tests.house.test_layers import ROOT, TREE, name_of, sources, tree

FILES = [
    path
    for room in ("reaper/servers", "reaper/run", "reaper/asyncio")
    for path in sources(room)
    if path.name != "names.py" and "hook" not in path.parts
]
ASKS = {"getattr", "hasattr", "setattr", "delattr"}
WRAPS = {"around", "after"}
PROMISED = {"_exit", "create_server", "listen", "CONFIG_KWARGS"}
"""Names that are documented: of os, of a loop, of a socket, and of uvicorn's worker."""


def is_private(name: str) -> bool:
    """Whether *name* is somebody's own. What begins with `_reaper` we have put
    there.
    """
    return name.startswith("_") and not name.startswith(("__", "_reaper")) and name != "_"


@cache
def tables_of(path: Path) -> tuple[Foreign, ...]:
    """The tables that the file *path* may use."""
    folder, module = path.parent, reaper.foreign
    if folder != ROOT / "reaper" / "asyncio":
        while folder != ROOT / "reaper" and not (folder / "names.py").exists():
            folder = folder.parent
        if folder == ROOT / "reaper":
            return ()
        module = import_module(f"{name_of(folder / 'names.py')}")
    return tuple(value for value in vars(module).values() if isinstance(value, Foreign))


@cache
def tables(path: Path) -> frozenset[str]:
    """The names in the tables that the file *path* may use."""
    words = " ".join(names for table in tables_of(path) for names in table.names.values())
    return frozenset(words.replace("|", " ").replace(".", " ").split())


def defined(code: ast.AST) -> set[str]:
    """The private names that the classes and functions of *code* have themselves."""
    found: set[str] = set()
    for node in ast.walk(code):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            if ast.unparse(node.value) in ("self", "cls"):
                found.add(node.attr)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(each, ast.Name) and each.id == "__slots__" for each in targets):
                words = (each.value for each in ast.walk(node) if isinstance(each, ast.Constant))
                found |= {str(word) for word in words}
            found |= {each.id for each in targets if isinstance(each, ast.Name)}
    return found


def used(code: ast.AST) -> Iterator[str]:
    """The names of others that *code* uses, but for what a class of ours uses of
    itself.
    """
    ours = defined(code)
    for node in ast.walk(code):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            of = ast.unparse(node.value)
            if of not in ("self", "cls", "super()") and node.attr not in ours:
                yield node.attr
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            if "vars(" in ast.unparse(node.value) and is_private(str(node.slice.value)):
                yield str(node.slice.value)
        elif isinstance(node, ast.Call) and len(node.args) > 1:
            name, second = ast.unparse(node.func), node.args[1]
            said = str(second.value) if isinstance(second, ast.Constant) else ""
            if said and (name in WRAPS or (name in ASKS and is_private(said))):
                yield said
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Attribute) and ast.unparse(target).startswith("module."):
                    yield target.attr


def test_a_name_of_others_that_is_used_stands_in_a_table() -> None:
    for path in FILES:
        assert not set(used(tree(path))) - tables(path) - PROMISED, path


def given(code: ast.AST) -> Iterator[str]:
    """The names that *code* sets, or deletes, of objects that are not its own."""
    for node in ast.walk(code):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            if ast.unparse(node.value) not in ("self", "cls"):
                yield node.attr
        elif (
            isinstance(node, ast.Subscript)
            and not isinstance(node.ctx, ast.Load)
            and "vars(" in ast.unparse(node.value)
            and isinstance(node.slice, ast.Constant)
        ):
            yield str(node.slice.value)


@cache
def ours() -> frozenset[str]:
    """The names that objects of reaper have."""
    found: set[str] = set()
    for path in (ROOT / "reaper").rglob("*.py"):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                found |= defined(node)
    return frozenset(found)


def marked(path: Path) -> frozenset[str]:
    """The names that are replaced, or set, by the tables that the file *path* may
    use.
    """
    return frozenset(
        name
        for table in tables_of(path)
        for signed in (table.replaced, table.given)
        for names in signed.values()
        for each in names
        for name in each.partition(".")[0].split("|")
    )


DOCUMENTED = {
    "GRACEFUL_SHUTDOWN_TIMEOUT",  # a setting of Sanic's
    *("argtypes", "restype"),  # of ctypes
    *("daemon", "shield", "deadline"),  # of a thread, and of a trio scope
    "atexit",  # of a finalizer
    *("__class__", "__dict__", "__setattr__", "exec_module"),
}
"""Names that are set of objects that a program hands out for that."""


def test_a_table_says_which_names_are_set_of_single_objects() -> None:
    for path in FILES:
        names = {name for name in given(tree(path)) if not name.startswith("_reaper")}
        assert not (names & tables(path)) - marked(path), path
        assert not names - tables(path) - ours() - DOCUMENTED, path


def derived(module: ModuleType) -> Iterator[type[Any]]:
    """The classes of *module* that derive from one of another package."""
    for value in list(vars(module).values()):
        if inspect.isclass(value) and value.__module__ == module.__name__ and theirs(value):
            yield value


def theirs(kind: type[Any]) -> list[type[Any]]:
    """The classes of other packages that *kind* derives from."""
    known = ("reaper", "builtins", "typing", "abc", "importlib", "enum", "asyncio")
    return [each for each in kind.__mro__ if each.__module__.partition(".")[0] not in known]


def of_self(kind: type[Any]) -> set[str]:
    """What the class *kind* overrides, and the private names that it uses of itself."""
    code = ast.parse(inspect.getsource(kind).lstrip())
    names = {
        node.attr
        for node in ast.walk(code)
        if isinstance(node, ast.Attribute)
        and is_private(node.attr)
        and ast.unparse(node.value) in ("self", "cls", "super()")
    }
    return names | {name for name in vars(kind) if not name.startswith("__")}


def test_what_a_class_of_ours_uses_or_overrides_of_theirs_stands_in_a_table() -> None:
    for path in (each for each in FILES if "servers" in each.parts):
        for kind in derived(import_module(name_of(path))):
            names = of_self(kind)
            for base in theirs(kind):
                lost = known_of(base, names) - tables(path) - PROMISED
                assert not lost, kind


def test_what_stands_in_a_table_is_no_module_of_ours() -> None:
    for path in (ROOT / "reaper").rglob("names.py"):
        found = vars(import_module(name_of(path))).values()
        tables = [value for value in found if isinstance(value, Foreign)]
        for place in [place for table in tables for place in table.names]:
            assert place.partition(".")[0] not in {*TREE, "tests"}


SAYS = {
    "thing._hidden": "_hidden",
    "thing.other._hidden.more": "_hidden",
    "thing._hidden = 1": "_hidden",
    "getattr(thing, '_hidden', None)": "_hidden",
    "hasattr(thing, '_hidden')": "_hidden",
    "setattr(thing, '_hidden', 1)": "_hidden",
    "vars(thing)['_hidden']": "_hidden",
    "@around(thing, 'open')\ndef instead(): pass": "open",
    "module.Server.run = instead": "run",
}


@pytest.mark.parametrize("code", SAYS)
def test_a_use_is_seen_in_whatever_form(code: str) -> None:
    assert list(used(ast.parse(code))) == [SAYS[code]]


@pytest.mark.parametrize(
    "code", ["thing.open", "self._mine", "thing._reaper_mark", "thing.__class__", "thing[_]"]
)
def test_what_is_promised_or_ours_is_no_use(code: str) -> None:
    assert list(used(ast.parse(code))) == []
