"""The servers that are guarded: a card for each room that has one.

The rule of this module: *a server is known by its card, and is named in its own room
alone*. A room is found by its `card.py`, in the order of the alphabet. A card imports
nothing of its server, and none is imported before somebody asks for it.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from ..config.effects import Column
from . import readers
from .guest import Card


@cache
def rooms() -> Mapping[str, Card]:
    """By room, its card."""
    here = str(Path(__file__).parent)
    names = sorted(room.name for room in pkgutil.iter_modules([here]) if room.ispkg)
    return {name: card_of(name) for name in names if find_spec(f".{name}.card", __package__)}


def cards() -> tuple[Card, ...]:
    """Every server."""
    return tuple(rooms().values())


def card_of(room: str) -> Card:
    """The card of one *room*."""
    card: Card = import_module(f"{__package__}.{room}.card").CARD
    return card


def column(name: str) -> Column:
    """What acts in the kind *name* of a server; only that server's card is imported."""
    return card_of(name.partition("-")[0]).kind(name)


@cache
def pages() -> Mapping[str, tuple[Column, ...]]:
    """By page of docs/settings/, the columns that it speaks of."""
    return {card.page: card.kinds for card in cards()} | readers.PAGES


@cache
def columns() -> Mapping[str, Column]:
    """Every column, by its name."""
    return {each.name: each for columns in pages().values() for each in columns}


class Names:
    """The names of `columns`, which are found out when somebody looks at them."""

    def __contains__(self, name: object) -> bool:
        return name in columns()

    def __iter__(self) -> Iterator[str]:
        return iter(columns())

    def __len__(self) -> int:
        return len(columns())


def modules() -> str:
    """Write the list of `reaper/run/hook/sitecustomize.py`: the modules at whose import
    a server is changed.
    """
    names = sorted(name for card in cards() for name in card.changes)
    return "".join(
        [
            "WAITED_FOR = frozenset(\n    [\n",
            *(f'        "{name}",\n' for name in names),
            "    ]\n)\n",
        ]
    )
