"""Jitter and a bound on closes keep thousands of connections from ending in one
instant, and their clients from coming back in one.

One rule: *only ever later*. Jitter lengthens a timeout and a bound on closes defers a
close; neither may cut short the silence that a connection was promised. The same seed
gives the same draws.
"""

from __future__ import annotations

import math
import random

from ..core.ticks import check_timeout
from ..errors import InvalidArgument, shown

STEPS = 16
"""Distinct timeouts that jitter makes of one. Each costs the core a slot per epoch."""


class Jitter:
    """Lengthens timeouts at random by whole ticks, so that connections opened together
    do not end together.

    Args:
        share: 0..1, of the timeout: the most it is lengthened by. 0: never.
        tick: Seconds, > 0.
        seed: For the same draws every time; None: different ones.
    Raises:
        InvalidArgument: by name and value.
    """

    def __init__(self, share: float, tick: float, seed: int | None = None) -> None:
        self.share: float = check_share("share", share)
        self._tick = check_timeout("tick", tick)
        try:
            self._random = random.Random(seed)
        except TypeError:
            raise InvalidArgument(f"seed must be an integer or None, got {shown(seed)}") from None

    def later(self, timeout: float) -> float:
        """Lengthen *timeout* seconds by 0, 1, ... steps of whole ticks; not at all if
        `share` of it is under a tick.

        Returns:
            Seconds: one of at most `STEPS` values, the first of them *timeout* itself.
        """
        ticks = int(min(timeout * self.share / self._tick, 1e15) + 1e-9)
        if ticks < 1:
            return timeout
        step = -(-(ticks + 1) // STEPS)  # wide enough for STEPS of them to reach the end
        return timeout + self._tick * step * self._random.randrange(ticks // step + 1)


def check_rate(name: str, value: float) -> float:
    """Return *value*. Raises InvalidArgument, by *name* and value: it is no finite
    number > 0, per second.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
        raise InvalidArgument(
            f"{name} must be a finite number >= 0 (0: no bound), got {shown(value)}"
        )
    return value


def check_share(name: str, value: float) -> float:
    """Return *value*. Raises InvalidArgument, by *name* and value: it is no number
    within 0..1.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise InvalidArgument(f"{name} must be within 0..1, got {shown(value)}")
    return value


class Bucket:
    """A bound on how many things happen per second: a token bucket that holds what a
    tenth of a second may spend.

    Args:
        rate: Per second, > 0.
    Raises:
        InvalidArgument: by name and value.
    """

    HOLDS = 0.1
    """Seconds' worth of tokens; never less than one token."""

    def __init__(self, rate: float) -> None:
        self.rate: float = check_timeout("rate", rate)
        self._most = max(1.0, rate * self.HOLDS)
        self._tokens = self._most
        self._filled = float("-inf")

    def available(self, now: float) -> int:
        """How many may happen at *now* (seconds; a step back counts as no time)."""
        if now > self._filled:
            self._tokens = min(self._most, self._tokens + (now - self._filled) * self.rate)
            self._filled = now
        return int(self._tokens + 1e-9)

    def spend(self, count: int) -> None:
        """Note that *count* have happened, which must not be more than were
        available.
        """
        self._tokens -= count

    def ready(self, now: float) -> float:
        """The instant at which a tenth of what the bucket holds, or at least one, will
        be available if nothing is spent.
        """
        wanted = max(1.0, self._most / 10)
        return (
            now
            if self.available(now) >= wanted
            else self._filled + (wanted - self._tokens) / self.rate
        )
