"""What is read of a module that is not imported is what it would have, and nothing of
it runs.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

import pytest

from reaper.foreign import PYTHON, Foreign
from reaper.source import Reader, find
from tests.house.test_layers import ROOT, name_of

TABLES = list(
    dict.fromkeys(
        value
        for path in sorted((ROOT / "reaper" / "servers").rglob("names.py"))
        for value in vars(import_module(name_of(path))).values()
        if isinstance(value, Foreign) and value.package != PYTHON
    )
)
PLACES = [(table, place) for table in TABLES for place in table.names]

TEXT = """
from __future__ import annotations
import asyncio
import odd.base
import odd.stars
from odd import base as other
from .base import Base as Renamed, Alias

CONSTANT = 1
if CONSTANT:
    def conditional(): pass
else:
    class Never: pass
try:
    from nothing import Absent
except ImportError:
    Absent = None

class Server(Renamed, asyncio.Protocol):
    __slots__ = ("_slot",)
    _typed: int
    _value = 1
    def begin(self):
        self._set_here = [each._read_within for each in ()]
    @property
    def kind(self): return self._read_in_a_property
    if CONSTANT:
        def under_a_condition(self): pass

class ByModule(other.Base): pass
class ByPackage(odd.base.Base): pass
class ByStar(odd.stars.Base): pass
class Fails(Renamed[int], Exception): pass
raise RuntimeError("it was run")
"""
BASE = """
class Base:
    def __init__(self):
        self._inherited = 1
Alias = Base
raise RuntimeError("it was run")
"""


@pytest.fixture
def odd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the path with a package `odd`, each module of which raises."""
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "__init__.py").write_text("raise RuntimeError('it was run')")
    (tmp_path / "odd" / "server.py").write_text(TEXT)
    (tmp_path / "odd" / "base.py").write_text(BASE)
    (tmp_path / "odd" / "stars.py").write_text("from .base import *")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


HAS = """
_slot _typed _value begin _set_here _read_within kind kind.fget _read_in_a_property
under_a_condition _inherited connection_made
"""


@pytest.mark.parametrize("name", HAS.split())
def test_what_a_class_would_have_is_found(name: str, odd: Path) -> None:
    assert Reader().known("odd.server", "Server", {name, "_gone"}) == {name}


@pytest.mark.parametrize("path", ["ByModule", "ByPackage", "ByStar", "Fails"])
def test_a_base_is_found_in_another_module(path: str, odd: Path) -> None:
    assert Reader().known("odd.server", path, {"_inherited", "_slot"}) == {"_inherited"}


def test_what_a_module_would_have_is_found(odd: Path) -> None:
    names = {"CONSTANT", "conditional", "Never", "Absent", "Server", "asyncio", "other", "Renamed"}
    assert Reader().known("odd.server", "", {*names, "begin"}) == names


def test_what_is_imported_by_a_star_is_found(odd: Path) -> None:
    """asyncio has all of its names so: gunicorn's worker did not start."""
    assert Reader().known("odd.stars", "", {"Base", "Alias", "gone"}) == {"Base", "Alias"}
    assert Reader().known("odd.stars", "Gone", {"begin"}) is None


def test_a_class_that_is_imported_from_elsewhere_is_followed(odd: Path) -> None:
    assert Reader().known("odd.server", "Renamed", {"_inherited"}) == {"_inherited"}
    assert Reader().known("odd.server", "Client", {"begin"}) is None


def test_nothing_is_imported_on_the_way(odd: Path) -> None:
    before = set(sys.modules)
    table = Foreign("odd", ("1", "2"), {"odd.server:Server": HAS, "odd.gone:": "x"})
    assert table.missing() == ["odd.gone"]
    assert set(sys.modules) == before


def test_a_module_hides_the_package_that_would_have_come_later(
    odd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (odd / "first").mkdir()
    (odd / "first" / "odd.py").write_text("raise RuntimeError('it was run')")
    monkeypatch.syspath_prepend(odd / "first")
    assert find("odd.server") is None
    table = Foreign("odd", ("1", "2"), {"odd.server:Server": "begin"}, optional=True)
    assert table.missing() == []


@pytest.mark.parametrize("text", ["def (", "\0"])
def test_a_module_that_cannot_be_read_is_not_there(text: str, odd: Path) -> None:
    (odd / "odd" / "server.py").write_text(text)
    assert Foreign("odd", ("1", "2"), {"odd.server:": "x"}).missing() == ["odd.server"]


def test_a_module_that_is_being_imported_is_read_where_it_has_not_come_to(
    odd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from types import ModuleType, SimpleNamespace

    module = ModuleType("odd.server")
    module.CONSTANT = 1  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "odd.server", module)
    monkeypatch.setattr(module, "__spec__", SimpleNamespace(_initializing=True))
    reader = Reader()
    assert reader.known("odd.server", "", {"CONSTANT", "Server"}) == {"CONSTANT", "Server"}
    assert reader.known("odd.server", "Server", {"begin"}) == {"begin"}
    monkeypatch.setattr(module, "__spec__", SimpleNamespace(_initializing=False))
    assert reader.known("odd.server", "", {"CONSTANT", "Server"}) == {"CONSTANT"}
    assert reader.known("odd.server", "Server", {"begin"}) is None


@pytest.mark.parametrize(("table", "place"), PLACES, ids=[place for _, place in PLACES])
def test_the_text_of_a_server_has_the_names_that_its_objects_have(
    table: Foreign, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, _, path = place.partition(":")
    top = module.partition(".")[0]
    for name in [name for name in sys.modules if name == top or name.startswith(f"{top}.")]:
        monkeypatch.delitem(sys.modules, name)
    before = set(sys.modules)
    one = Foreign(table.package, table.tested, {place: table.names[place]})
    assert one.missing() == []
    gone = {f"{name}_gone" for name in table.names[place].split()}
    assert Reader().known(module, path, gone) == set()
    assert {name for name in set(sys.modules) - before if name.startswith(top)} == set()
