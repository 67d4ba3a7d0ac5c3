"""Names of other packages that are used here although nobody has promised them: private
ones, and those of undocumented objects.

The rule of this module: *a name is listed before it is used, and looked up before
anything is changed*. A list is a table beside its user (`names.py` of a room), made of
strings: it imports nothing. `missing` looks up all of it at once, so that a guest
changes everything or nothing. `tests/house/test_foreign.py` fails for a name that is
used and stands in no table.

Looked up is what a class says of itself: its attributes, and the names in the code of
its methods, where those that its objects get are set. Nothing is asked that would
change it, as its annotations do: Python 3.11 writes them into the class when they are
read.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import CodeType
from typing import Any

from .errors import NotInstalled

PYTHON = "python"
"""Stands for the package where the names are those of the standard library."""


@dataclass(frozen=True, eq=False)
class Foreign:
    """The names of one package that are used.

    Attributes:
        package: Its name on PyPI, or `PYTHON`.
        tested: Its lowest and its highest version that the tests ran, both inclusive.
        names: By the place, `module:Class`, or `module:` for names of the module
            itself: the names, divided by white space. Dots lead further, as in
            `worker_class.fget`; of `one|other` either will do.
        optional: Whether the user gets along without the package, or without one of its
            modules: then nothing is missing there.
    """

    package: str
    tested: tuple[str, str]
    names: Mapping[str, str]
    optional: bool = False

    def missing(self) -> list[str]:
        """The names that the installed version does not have, as `Class.name`; empty:
        it has all.

        Imports the modules that they are in.
        """
        return [name for place, names in self.names.items() for name in self._lost(place, names)]

    def _lost(self, place: str, names: str) -> Iterator[str]:
        module, _, path = place.partition(":")
        try:
            found: Any = import_module(module)
        except ImportError:
            if not self.optional:
                yield module
            return
        for part in filter(None, path.split(".")):
            found = getattr(found, part, None)
        if found is None:
            yield path
            return
        wanted = names.split()
        known = _known(found, {each for name in wanted for each in name.split("|")})
        for name in wanted:
            if not any(each in known for each in name.split("|")):
                yield f"{path or module}.{name}"

    @property
    def version(self) -> str:
        """The version that is installed; empty if none is."""
        if self.package == PYTHON:
            return sys.version.split()[0]
        try:
            return version(self.package)
        except PackageNotFoundError:
            return ""

    @property
    def range(self) -> str:
        """The versions that were tested, in words."""
        return " to ".join(dict.fromkeys(self.tested))

    @property
    def is_tested(self) -> bool:
        """Whether the installed version lies between those that were tested; none is,
        too.
        """
        lowest, highest = map(_parts, self.tested)
        found = self.version
        # 3.11.9 is one of 3.11: only as many parts are compared as the highest has.
        return not found or (lowest <= _parts(found) and _parts(found)[: len(highest)] <= highest)

    def __str__(self) -> str:
        return f"{self.package} {self.version}".rstrip()


def missing(tables: Iterable[Foreign], whose: str = "") -> str:
    """Say which names of *tables* the installed packages do not have; empty: they have
    all.

    Args:
        tables: Each is looked up, whatever was found in another.
        whose: The package that the sentence is about already: of it, it says "it".
    """
    said = []
    for table in tables:
        if lost := table.missing():
            who = "it" if table.package == whose else str(table)
            said.append(f"{who} has no {', '.join(lost)}; tested with {table.range}")
    return ", and ".join(said)


def require(door: str, tables: Iterable[Foreign]) -> None:
    """Check that all names of *tables* are there, for *door*, as the user knows it.

    Raises:
        NotInstalled: some are not.
    """
    if why := missing(tables):
        raise NotInstalled(f"{door} does not fit: {why}")


def untested(tables: Iterable[Foreign], whose: str = "") -> str:
    """Say which of the installed packages of *tables* were not tested; empty: all were.
    *whose*: as of `missing`.
    """
    return ", and ".join(
        ("" if table.package == whose else f"it uses {table}, ") + f"tested with {table.range}"
        for table in tables
        if not table.is_tested
    )


def _known(found: Any, wanted: set[str]) -> set[str]:
    """Which of *wanted* are attributes of *found*, or, if it is a class, of its
    objects.
    """
    known = {name for name in wanted if "." in name and _leads(found, name)}
    known |= wanted.intersection(dir(found))
    kinds: tuple[type, ...] = found.__mro__ if isinstance(found, type) else ()
    # Most are set in the first method of a class, __init__: the rest is not gone
    # through then.
    values = (value for kind in kinds for value in vars(kind).values())
    for value in values:
        if known == wanted:
            break
        for code in _code_of(value):
            known |= wanted.intersection(_names_in(code))
    return known


def _leads(found: Any, path: str) -> bool:
    for name in path.split("."):
        found = getattr(found, name, None)
    return found is not None


def _code_of(value: Any) -> Iterator[CodeType]:
    """The code of a method, of a class method, or of a property, without what stands
    around it.
    """
    parts = (value.fget, value.fset) if isinstance(value, property) else (value,)
    for part in parts:
        function: Any = getattr(part, "__func__", part)
        if callable(function) and inspect.isfunction(found := inspect.unwrap(function)):
            yield found.__code__


def _names_in(code: CodeType) -> set[str]:
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*map(_names_in, inner))


def _parts(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.replace("-", ".").split(".") if part.isdigit())
