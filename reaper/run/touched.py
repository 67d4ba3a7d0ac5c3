"""`reaper run --explain --names`: each name of other packages that a guest reads or
replaces, in which version that was tried, and what happens if it is missing.

The rule of this module: *what is listed is what is looked up*: the tables of the cards,
and nothing that is written a second time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ..foreign import PYTHON, Foreign
from ..servers.cards import card_of
from ..servers.guest import Card
from .hooks import LISTENS


def packages(cards: Iterable[Card]) -> set[str]:
    """The packages whose names *cards* use, but for Python."""
    return {table.package for card in cards for table, _ in tables(card)} - {PYTHON}


def tables(card: Card) -> Iterator[tuple[Foreign, str]]:
    """Each table of *card*, and for what it is."""
    yield from ((table, "") for table in card.needs)
    for kind in card.kinds:
        whose = f", for {kind.name}" if len(card.kinds) > 1 else ""
        yield from ((table, whose) for table in kind.needs)
        if kind.under:
            yield from ((table, whose) for table in card_of(kind.under).tables)
    for asked, needs in card.besides.items():
        yield from ((table, f", only with {asked}") for table in needs)
    yield from ((table, ", promised by it, and not looked up") for table in card.promised)
    for table in card.spared:
        yield table, f"; without one of these {table.without}"


def lines(card: Card, found: Mapping[str, str], *, inside: bool) -> Iterator[str]:
    """The lines of *card*.

    Args:
        found: The versions that are installed, by package.
        inside: Whether nothing is guarded from outside.
    """
    left = "is not guarded" if inside else "is guarded from outside"
    yield f"  if one of these names is missing, nothing is replaced, a line says which, and it {left};"
    yield "  with --strict it is refused instead, with status 2"
    before = ""
    for table, whose in tables(card):
        head, *places = _lines(table, whose, found)
        if head != before:
            yield head
        yield from places
        before = head


def stranger_lines() -> Iterator[str]:
    """The lines of what `--inside --strict` replaces in every Python."""
    yield "any other TCP server is ended with status 2 before it listens (--inside --strict):"
    yield from _lines(LISTENS, "", {})


def _lines(table: Foreign, whose: str, found: Mapping[str, str]) -> Iterator[str]:
    """The lines of one *table*: its package, and each place with its names."""
    if table.package == PYTHON:
        who = f"Python (tested: {table.range})"
    else:
        release = found.get(table.package, "(not installed)")
        who = f"{table.package} {release} (tested: {table.range})"
    yield f"  {who}{', if the program has it' * table.optional}{whose}"
    for place, names in table.names.items():
        replaced, given = table.replaced[place], table.given[place]
        read = [name for name in names.split() if name not in (*replaced, *given)]
        parts = (("replaces", replaced), ("sets", given), ("reads", read))
        said = "; ".join(f"{verb} {' '.join(which)}" for verb, which in parts if which)
        yield f"    {place.rstrip(':').replace(':', ' ')}: {said}"
