"""One frozen, typed configuration, and everything said about it."""

from __future__ import annotations

from .attach import Attach
from .settings import DEFAULT, OPTIONS, SECTIONS, Limits, Reaper, ReaperConfig, Server, Timeouts

__all__ = ["ReaperConfig", "Reaper", "Timeouts", "Limits", "Server", "Attach", "OPTIONS", "SECTIONS", "DEFAULT"]
