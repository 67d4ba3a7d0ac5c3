"""What a peer is: one way to know who has fallen silent, behind the methods that every benchmark uses.

One rule: *a peer that expires nothing is no peer*. Each is tried by tests/test_benchmarks.py: it must name the silent,
all of them, and no other. The floors say that they are none: they note activity and cannot expire.

Where a peer needs the time at a touch it is given the loop's coarse `now` for nothing; a clock read would cost it more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from ..common import loop_only


class Peer:
    """Connections by number: 0 to len(keys) - 1. Instants are seconds of virtual time unless `real`.

    Args:
        keys: The name of each connection, as a server knows it.
        timeout: Seconds of silence allowed, the same for all.
    """

    name: ClassVar[str]
    how: ClassVar[str]
    """What a touch does."""
    largest: ClassVar[int] = 1_000_000
    """More connections than that it is not asked to hold: it would take minutes or gigabytes."""
    steady_largest: ClassVar[int] = 1_000_000
    """The same for rounds of ticks under traffic."""
    expires: ClassVar[bool] = True
    real: ClassVar[bool] = False
    """It runs on the real clock and cannot be told another."""

    def __init__(self, keys: Sequence[str], timeout: float) -> None:
        self.keys = keys
        self.timeout = timeout

    def register(self, count: int, now: float) -> None:
        """Watch connections 0 to *count* - 1 from *now* on."""
        raise NotImplementedError

    def handles(self, order: Sequence[int]) -> list[Any]:
        """What `touch_all` is given to touch these connections in this order."""
        return [self.keys[i] for i in order]

    def touch_all(self, handles: list[Any], now: float) -> None:
        """Touch each once. What is timed."""
        raise NotImplementedError

    def baseline(self, handles: list[Any]) -> None:
        """What of `touch_all` is not the touch: taken off."""
        loop_only(handles)

    def tick(self, now: float) -> list[Any]:
        """Move to *now*; who has been silent for the timeout, as keys or numbers, in any order."""
        raise NotImplementedError

    def release(self, handles: list[Any]) -> None:
        """The connections end by themselves."""
        raise NotImplementedError

    def close(self) -> None:
        """Leave nothing behind."""
