"""Whether the names of another package are looked up where it has them: on the class,
and in what its methods set.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from reaper.foreign import PYTHON, Foreign, missing, untested

CODE = """
import functools

class Base:
    def __init__(self):
        self._inherited = 1

def wrapped(method):
    @functools.wraps(method)
    def instead(*arguments):
        return method(*arguments)
    return instead

class Server(Base):
    __slots__ = ("_slot",)

    @wrapped
    def begin(self):
        self._set_in_a_wrapped_method = 1

    @property
    def kind(self):
        return self._read_in_a_property

    @classmethod
    def made(cls):
        def inner(server):
            server._set_within = 1

def function():
    pass
"""
HAS = """
_inherited _slot begin _set_in_a_wrapped_method kind kind.fget _read_in_a_property made
_set_within
"""


@pytest.fixture(autouse=True)
def odd(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("odd")
    exec(CODE, vars(module))
    monkeypatch.setitem(sys.modules, "odd", module)


def of(names: dict[str, str], package: str = "pytest", **given: Any) -> Foreign:
    return Foreign(package, ("0.1", "0.2"), names, **given)


@pytest.mark.parametrize("name", HAS.split())
def test_what_a_class_has_is_found(name: str) -> None:
    assert of({"odd:Server": name}).missing() == []


@pytest.mark.parametrize("name", ["_renamed", "kind.freed", "begin.fget", "function"])
def test_what_a_class_has_not_is_missing(name: str) -> None:
    assert of({"odd:Server": name}).missing() == [f"Server.{name}"]


def test_the_names_of_a_module_are_looked_up_too() -> None:
    assert of({"odd:": "Server function nothing"}).missing() == ["odd.nothing"]


def test_of_two_names_in_two_versions_either_will_do() -> None:
    assert of({"odd:Server": "gone|begin"}).missing() == []
    assert of({"odd:Server": "gone|_slot"}).missing() == []
    assert of({"odd:Server": "gone|freed"}).missing() == ["Server.gone|freed"]


def test_a_class_or_a_module_that_is_not_there_is_missing_itself() -> None:
    assert of({"odd:Client": "a b", "even:Server": "c"}).missing() == ["Client", "even"]


def test_of_an_optional_package_that_is_not_there_nothing_is_missing() -> None:
    assert of({"even:Server": "c"}, optional=True).missing() == []
    assert of({"odd:Server": "c"}, optional=True).missing() == ["Server.c"]


def test_all_that_is_missing_is_said_in_one_sentence() -> None:
    tables = [
        of({"odd:Server": "begin gone"}, "odd"),
        of({"odd:Server": "begin"}),
        of({"odd:Server": "one two"}),
    ]
    assert missing(tables, "odd") == (
        "it has no Server.gone; tested with 0.1 to 0.2, and "
        f"pytest {pytest.__version__} has no Server.one, Server.two; tested with 0.1 to 0.2"
    )


@pytest.mark.parametrize(
    ("tested", "is_tested"),
    [
        (("0.1", "0.2"), False),
        (("99.0", "99.1"), False),
        (("0.1", pytest.__version__), True),
        (("0.1", pytest.__version__.rpartition(".")[0]), True),
        ((pytest.__version__, "99"), True),
    ],
)
def test_a_version_is_tested_within_the_range_and_its_patches(
    tested: tuple[str, str], is_tested: bool
) -> None:
    table = Foreign("pytest", tested, {})
    assert table.is_tested is is_tested
    assert (untested([table]) == "") is is_tested


def test_a_package_that_is_not_installed_is_nothing_that_was_not_tested() -> None:
    assert untested([Foreign("no-such-package", ("1", "2"), {})]) == ""


def test_the_package_of_the_standard_library_is_python() -> None:
    table = Foreign(PYTHON, ("3.1", "3.2"), {})
    assert untested([table]) == f"it uses {table}, tested with 3.1 to 3.2"
    assert str(table) == f"python {sys.version.split()[0]}"
