"""Which limit holds when, and who has to go. Pure."""

from __future__ import annotations

from .phases import (
    ANSWERS,
    IDLE_PHASES,
    INSTANT,
    NOT_TAKEN,
    RULES,
    TOO_OLD,
    IdlePolicy,
    Phase,
    Rule,
    Watch,
    lifespan,
)

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
    "TOO_OLD",
    "lifespan",
]
