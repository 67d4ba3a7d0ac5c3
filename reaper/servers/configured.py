"""What every guarded server reads from a configuration: the keep-alive, what is said of it, and the
greatest ages.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from ..config.settings import DEFAULT, ReaperConfig
from ..policy import lifespan

KEEP_ALIVE = ReaperConfig().timeouts.keep_alive

AT_ONCE = 0.001
"""Seconds; a keep-alive of 0 in a server's own settings means none, in ours that it is switched
off.
"""


def kept_alive(config: ReaperConfig, seconds: float | None) -> ReaperConfig:
    """*config* with the keep-alive that a server's own settings name, unless *config* has one of
    its own.

    A value given in code has no origin; it is told from the default by being another.
    """
    unset = (
        config.origin("timeouts.keep_alive") == DEFAULT and config.timeouts.keep_alive == KEEP_ALIVE
    )
    if seconds is None or not unset:
        return config
    return replace(config, timeouts=replace(config.timeouts, keep_alive=float(seconds) or AT_ONCE))


def advertised(config: ReaperConfig) -> int:
    """Seconds that `Keep-Alive: timeout=` names, `timeouts.keep_alive_margin` less than are kept;
    0: no such header.
    """
    timeouts = config.timeouts
    return (
        max(int(timeouts.keep_alive - timeouts.keep_alive_margin), 0)
        if timeouts.keep_alive_margin
        else 0
    )


def ages(config: ReaperConfig) -> Callable[[], float]:
    """What draws the `max_age` of a new connection, seconds; 0: there is none."""
    share = random.Random().random
    timeouts, limits = config.timeouts, config.limits
    return lambda: lifespan(timeouts.max_age, limits.max_age_jitter, config.reaper.tick, share())
