"""What an engine adds up over a connection's rows, kind by kind.

`grouped` of each engine does it in its cheapest way.
"""

from __future__ import annotations

from typing import NamedTuple


class Part(NamedTuple):
    """Rows of some kinds, and what is added up of them for each connection."""

    kinds: tuple[int, ...]
    columns: dict[str, tuple[str, str]]
    """name -> (one aggregate of one expression, a condition that chooses rows). No row
    of another part meets the condition; "" chooses all.
    """
    where: str = ""
    """Which rows of these kinds; "": all."""
    unless: tuple[int, ...] = ()
    """If a connection has a row of these kinds, the columns are not used: an engine may
    leave them null.
    """


class Ladder(NamedTuple):
    """For each step, the least *value* among a connection's rows whose *measure* is
    greater than it: columns *name*_0, *name*_1 and so on.
    """

    name: str
    value: str
    measure: str
    steps: tuple[int, ...]
    """Ascending."""
    where: str
    """Which rows."""
    counted: tuple[tuple[str, int], ...]
    """(column, most): how many rows have a *measure* greater than *most*; 0 or null for
    none.
    """
    counts: str
    """Which of these rows are counted."""
