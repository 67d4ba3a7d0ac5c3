"""What an engine adds up of a connection's rows, kind by kind.

How that is cheapest is for each engine to say, see `grouped` of both.
"""

from __future__ import annotations

from typing import NamedTuple


class Part(NamedTuple):
    """Rows of some kinds, and what is added up of them for each connection."""

    kinds: tuple[int, ...]
    columns: dict[str, tuple[str, str]]
    """name -> one aggregate of one expression, and of which of these rows: a condition
    that no row of another part meets; "": of all.
    """
    where: str = ""
    """Which rows of these kinds; "": all."""
    unless: tuple[int, ...] = ()
    """Of a connection that has a row of these kinds nobody asks: an engine may leave
    the columns null.
    """
