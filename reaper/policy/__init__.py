"""Which limit holds when, and who has to go. Pure."""

from __future__ import annotations

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
