"""One frozen, typed configuration. A setting is declared once; everything said about it
is derived from that.

Stability: public.
"""

from __future__ import annotations

from .settings import (
    DEFAULT,
    OPTIONS,
    SECTIONS,
    Attach,
    Limits,
    Reaper,
    ReaperConfig,
    Server,
    Timeouts,
)

__all__ = [
    "ReaperConfig",
    "Reaper",
    "Timeouts",
    "Limits",
    "Server",
    "Attach",
    "OPTIONS",
    "SECTIONS",
    "DEFAULT",
]
