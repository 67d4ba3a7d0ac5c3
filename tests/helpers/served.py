"""Connections of `driver.served` that no loop watches: what a room's class says of an
object of its server.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, TypeVar

from reaper.driver.served import Served

Kind = TypeVar("Kind", bound=Served)


def bare(kind: type[Kind], whose: Any, **fields: Any) -> Kind:
    """A *kind* whose wire is that of *whose*, and nothing else of it."""
    made = object.__new__(kind)
    wire: Any = SimpleNamespace(whose=whose, buffered=lambda: 0, queued=lambda: 0, **fields)
    made.wire = wire
    made.leaves = False
    return made
