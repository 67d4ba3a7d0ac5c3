"""The policy decides which limit holds when, and which connections have to go under
pressure. It is pure: it reads no clock and touches no socket, but for
`pressure.read_here`.

Stability: provisional.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _deprecated
from . import reasons
from .phases import (
    IDLE_PHASES,
    INSTANT,
    NOT_TAKEN,
    RULES,
    IdlePolicy,
    Phase,
    Rule,
    Watch,
    lifespan,
)
from .reasons import ANSWERS, REASONS, Reason

__all__ = [
    "IdlePolicy",
    "Phase",
    "Rule",
    "RULES",
    "Watch",
    "ANSWERS",
    "IDLE_PHASES",
    "INSTANT",
    "NOT_TAKEN",
    "REASONS",
    "Reason",
    "reasons",
    "lifespan",
]

if not TYPE_CHECKING:  # to a type checker the names below are gone already
    __getattr__ = _deprecated.attribute(__name__, {"TOO_OLD": reasons.MAX_AGE})
