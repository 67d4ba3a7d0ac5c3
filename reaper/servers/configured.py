"""What every guarded server reads from a configuration: the keep-alive, what responses
say of it, and the maximum age of a connection.
"""

from __future__ import annotations

import os
from dataclasses import replace
from math import isinf
from typing import Any

from ..config.effects import said, without_effect
from ..config.settings import DEFAULT, ReaperConfig
from . import cards

KEEP_ALIVE = ReaperConfig().timeouts.keep_alive
"""The default of `timeouts.keep_alive`, in seconds."""

AT_ONCE = 0.001
"""Seconds; stands for a keep-alive of 0 in a server's own settings, which means that no
connection is kept. In ours 0 switches the timeout off.
"""


def settings() -> ReaperConfig:
    """The configuration by the file that REAPER_CONFIG names, and the variables
    REAPER_*.

    Raises:
        ConfigError: it cannot be used.
    """
    return ReaperConfig.load(os.environ.get("REAPER_CONFIG"))


def kept_alive(config: ReaperConfig, seconds: float | None) -> ReaperConfig:
    """Return *config* with the keep-alive of *seconds*, which a server's own settings
    name, unless *config* sets one itself.

    A value that was set in code has no origin. It counts as set if it is not the
    default.
    """
    unset = (
        config.origin("timeouts.keep_alive") == DEFAULT and config.timeouts.keep_alive == KEEP_ALIVE
    )
    if seconds is None or not unset:
        return config
    return replace(config, timeouts=replace(config.timeouts, keep_alive=float(seconds) or AT_ONCE))


def advertised(config: ReaperConfig) -> int:
    """Whole seconds that `Keep-Alive: timeout=` names: `timeouts.keep_alive_margin`
    less than the connection is kept. 0: no response has the header.
    """
    timeouts = config.timeouts
    return (
        max(int(timeouts.keep_alive - timeouts.keep_alive_margin), 0)
        if timeouts.keep_alive_margin
        else 0
    )


def advertised_of(config: ReaperConfig, own: float | None) -> int:
    """As `advertised`, where the server has a keep-alive of its *own*, in seconds, and
    the shorter of the two holds; None, or infinite: it has none.
    """
    both = filter(None, (config.timeouts.keep_alive, own))
    shortest = min(both, default=0.0)
    timeouts = replace(config.timeouts, keep_alive=0.0 if isinf(shortest) else shortest)
    return advertised(replace(config, timeouts=timeouts))


def warn(config: ReaperConfig, server: str, log: Any) -> None:
    """Log one line: what *config* sets, and which settings do nothing in *server*, a
    kind of a card. `reaper run` says that itself, so below it nothing is logged.
    """
    if os.environ.get("REAPER_RUN"):
        return
    if vain := said(without_effect(config, cards.column(server))):
        log.warning("reaper: %s", vain)
