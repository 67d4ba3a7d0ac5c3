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
read. And nothing is run: of a module that the program has not imported, the text is
read (`source`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

from .errors import NotInstalled
from .source import Reader

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
            `worker_class.fget`; of `one|other` either will do. A name after `=` is
            replaced; one after `+` is set, of single objects; the others are read,
            called or overridden.
        optional: Whether the user gets along without the package, or without one of its
            modules: then nothing is missing there.
        without: What becomes of connections where a name is missing, for people. Such
            names are looked up where they are used, and their lack takes nothing else
            away. Empty: the guest needs them all.
    """

    package: str
    tested: tuple[str, str]
    names: Mapping[str, str]
    optional: bool = False
    without: str = ""
    replaced: Mapping[str, tuple[str, ...]] = field(init=False, default_factory=dict)
    """By place, the names that are replaced; `names` has them without their sign."""
    given: Mapping[str, tuple[str, ...]] = field(init=False, default_factory=dict)
    """By place, the names that are set."""

    def __post_init__(self) -> None:
        words = {place: names.split() for place, names in self.names.items()}
        for sign, name in (("=", "replaced"), ("+", "given")):
            marked = {
                place: tuple(each[1:] for each in names if each.startswith(sign))
                for place, names in words.items()
            }
            object.__setattr__(self, name, marked)
        plain = {
            place: " ".join(name.lstrip("=+") for name in names) for place, names in words.items()
        }
        object.__setattr__(self, "names", plain)

    def missing(self, reader: Reader | None = None) -> list[str]:
        """The names that the installed version does not have, as `Class.name`; empty:
        it has all.

        Imports nothing. What the program has not imported is read by *reader*.
        """
        reader = reader or Reader()
        return [
            name for place, names in self.names.items() for name in self._lost(place, names, reader)
        ]

    def _lost(self, place: str, names: str, reader: Reader) -> Iterator[str]:
        module, _, path = place.partition(":")
        wanted = names.split()
        if not reader.has(module):
            if not self.optional:
                yield module
            return
        known = reader.known(module, path, {each for name in wanted for each in name.split("|")})
        if known is None:
            yield path
            return
        for name in wanted:
            if known.isdisjoint(name.split("|")):
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
    reader = Reader()
    for table in tables:
        if lost := table.missing(reader):
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


def _parts(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.replace("-", ".").split(".") if part.isdigit())


SHAKES = Foreign(
    PYTHON,
    ("3.11", "3.14"),
    {"asyncio.sslproto:": "SSLProtocol"},
    without="the loop bounds TLS handshakes by itself",
)
RESTING = Foreign(
    PYTHON,
    ("3.11", "3.14"),
    {
        "asyncio.sslproto:_SSLProtocolTransport": "_ssl_protocol",
        "asyncio.sslproto:SSLProtocol": """
            +_ssl_buffer +_ssl_buffer_view +max_size _incoming _outgoing _write_backlog get_buffer
        """,
    },
    without="idle TLS connections keep their buffers",
)
"""What `reaper.release_buffers` needs."""
SOCKETS = Foreign(
    PYTHON,
    ("3.11", "3.14"),
    {"asyncio.trsock:TransportSocket": "_sock"},
    without="a question to a socket takes a call more",
)
