"""Which limit holds when, and who has to go. Pure."""

from __future__ import annotations

from .phases import (
    ANSWERS,
    IDLE_PHASES,
    INSTANT,
    MAX_REQUESTS,
    NOT_TAKEN,
    RULES,
    TOO_LONG,
    TOO_OLD,
    TOO_SLOW,
    TUNNEL_AGE,
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
    "MAX_REQUESTS",
    "NOT_TAKEN",
    "TOO_LONG",
    "TOO_OLD",
    "TOO_SLOW",
    "TUNNEL_AGE",
    "lifespan",
]
