"""Names of other packages that are used here although nobody has promised them: private ones, and
those of undocumented objects.

The rule of this module: *a name is listed before it is used, and looked up before anything is
changed*. A list is a table beside its user (`names.py` of a room), made of strings: it imports
nothing. `missing` looks up all of it at once, so that a guest changes everything or nothing.
`tests/house/test_foreign.py` fails for a name that is used and stands in no table.

Looked up is what a class says of itself: its attributes, its annotations, and the names in the code
of its methods, where those that its objects get are set.
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

PYTHON = "python"
"""Stands for the package where the names are those of the standard library."""


@dataclass(frozen=True)
class Foreign:
    """The names of one package that are used.

    Attributes:
        package: Its name on PyPI, or `PYTHON`.
        tested: Its lowest and its highest version that the tests ran, both inclusive.
        names: By the place, `module:Class`, or `module:` for names of the module itself: the names,
            divided by white space. Dots lead further, as in `worker_class.fget`.
        optional: Whether the user gets along without the package, or without one of its modules:
            then nothing is missing there.
    """

    package: str
    tested: tuple[str, str]
    names: Mapping[str, str]
    optional: bool = False

    def missing(self) -> list[str]:
        """The names that the installed version does not have, as `Class.name`; empty: it has all.

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
        known = _names_of(found)
        for name in names.split():
            first, _, rest = name.partition(".")
            if first not in known or (rest and not _leads(found, name)):
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
        """Whether the installed version lies between those that were tested; none is, too."""
        lowest, highest = map(_parts, self.tested)
        found = self.version
        # 3.11.9 is one of 3.11: only as many parts are compared as the highest has.
        return not found or (lowest <= _parts(found) and _parts(found)[: len(highest)] <= highest)

    def __str__(self) -> str:
        return f"{self.package} {self.version}".rstrip()


def missing(tables: Iterable[Foreign], whose: str = "") -> str:
    """Say which names of *tables* the installed packages do not have; empty: they have all.

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


def untested(tables: Iterable[Foreign], whose: str = "") -> str:
    """Say which of the installed packages of *tables* were not tested; empty: all were. *whose*: as
    of `missing`.
    """
    return ", and ".join(
        ("" if table.package == whose else f"{table} was ") + f"tested with {table.range}"
        for table in tables
        if not table.is_tested
    )


def _leads(found: Any, path: str) -> bool:
    for name in path.split("."):
        found = getattr(found, name, None)
    return found is not None


def _names_of(kind: Any) -> set[str]:
    """The attributes of *kind*; of a class also those that its methods set."""
    known = set(dir(kind))
    if isinstance(kind, type):
        for each in kind.__mro__:
            known.update(getattr(each, "__annotations__", ()))
            for value in vars(each).values():
                known.update(*map(_names_in, _code_of(value)))
    return known


def _code_of(value: Any) -> Iterator[CodeType]:
    """The code of a method, of a class method, or of a property, without what stands around it."""
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
