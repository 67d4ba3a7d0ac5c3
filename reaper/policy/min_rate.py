"""Least rates: how slow a peer may be while the server waits for it. *A peer is charged
only for time in which it could have done something*: for the time in which the server
waits for it, not for the time in which a request is handled, and not for a stall of the
loop.

And what it takes is not seen byte by byte. A kernel whose buffer is full shuts its
window, and opens it again only when much of the buffer was read. *What a peer may have
read without a word of its kernel, it has read*: `hidden` says how much that is, and
`patience` for how long nothing need be heard of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from ..core.slices import walk

HIDDEN = 131072
"""Bytes; of what lies in a larger buffer, a peer has to let more be seen."""
_STEP = 8192
"""Bytes; more than that are rounded up to whole steps: each distinct timeout costs a
slot.
"""
_SEGMENTS, _SHARE = 4, 16


def hidden(taken: int, segment: int = 0) -> int:
    """How many bytes a peer may have read of those it took, while its window stays
    shut: at most `HIDDEN`.

    Linux opens a window once a segment, or a sixteenth of the buffer, is free; others
    wait for two segments. On the loopback a segment is half of an ordinary buffer.

    Args:
        taken: Bytes that it has taken so far: no buffer holds more.
        segment: Bytes of a full segment; 0: it is a window of HTTP/2, which its owner
            may open when all is read.
    """
    most = min(taken, max(_SEGMENTS * segment, taken // _SHARE)) if segment else taken
    return min(most if most <= _STEP else -(-most // _STEP) * _STEP, HIDDEN)


def patience(timeout: float, rate: float, unseen: int) -> float:
    """Seconds for which a peer may take nothing: *timeout*, or what *unseen* bytes take
    that are read at the least *rate*, whichever is longer. A timeout of 0, which is
    off, stays so; where the rate is 0, nothing says how slow it may be, and *timeout*
    holds alone.
    """
    return max(timeout, unseen / rate) if timeout and rate else timeout


class Allowance:
    """How long the server may still wait for one peer, in one direction of one request.

    Every byte pays for `1 / rate` seconds of waiting, and *grace* is given in advance:
    a peer that keeps the rate on average is safe however unevenly its bytes come, and a
    burst at the start does not pay for hours of dripping, for no peer may have more
    than *cap* seconds left.

    Args:
        rate: Bytes per second, > 0.
        grace: Seconds given in advance.
        cap: Seconds; 0: no cap. Less than *grace* is taken as *grace*.
        step: Seconds; the most that is charged at once. If more time has passed between
            two charges, then the loop was stalled.
    """

    __slots__ = ("_cap", "_left", "_rate", "_since", "_step")

    def __init__(self, rate: float, grace: float, cap: float, step: float) -> None:
        self._rate = rate
        self._cap = max(cap or math.inf, grace)
        self._step = step
        self._left = grace
        self._since: float | None = None

    def start(self, now: float) -> None:
        """The server waits for the peer from *now* on."""
        self._since = now

    def pause(self, now: float) -> None:
        """The server no longer waits for the peer."""
        self._charge(now)
        self._since = None

    def earn(self, count: int, now: float) -> None:
        """*count* bytes moved."""
        self._charge(now)
        self._left = min(self._left + count / self._rate, self._cap)

    def left(self, now: float) -> float:
        """Seconds of waiting left as of *now*; 0 or less: the peer is too slow."""
        self._charge(now)
        return self._left

    def _charge(self, now: float) -> None:
        if self._since is not None:
            self._left -= min(now - self._since, self._step)
            self._since = now


class Charged(Protocol):
    """Anything that a `Sweep` looks after: `reaper.policy.IdlePolicy`."""

    def charge(self, now: float) -> None:
        """Judge what is too slow or takes too long as of *now*, in seconds."""


class Sweep:
    """Judges every connection that waits for its peer at a least rate, several times
    per tick, with one lease for all.

    A check of each connection costs less than a lease for each. Connections that wait
    for nothing cost nothing: an empty sweep is not scheduled.

    Args:
        schedule: `schedule(seconds, call)`: have *call* called with `now` in that time,
            once.
        period: Seconds between two looks.
    """

    def __init__(
        self, schedule: Callable[[float, Callable[[float], None]], object], period: float
    ) -> None:
        self._schedule = schedule
        self._period = period
        self._members: dict[Charged, None] = {}
        self._scheduled = False
        self._now = 0.0  # of the look that goes on

    def __len__(self) -> int:
        return len(self._members)

    def add(self, member: Charged) -> None:
        """Look at *member* from now on."""
        self._members[member] = None
        if not self._scheduled:
            self._scheduled = True
            self._schedule(self._period, self._look)

    def discard(self, member: Charged) -> None:
        """Look at *member* no longer; does nothing if it is not in the sweep."""
        self._members.pop(member, None)

    def _look(self, now: float) -> None:
        self._now = now
        walk(self._soon, self._members, self._charge, self._again)

    def _charge(self, member: Charged) -> None:
        if member in self._members:  # the charge of another may have ended it
            member.charge(self._now)

    def _soon(self, step: Callable[[], None]) -> None:
        def go_on(now: float) -> None:
            self._now = now
            step()

        self._schedule(0.0, go_on)

    def _again(self) -> None:
        self._scheduled = bool(self._members)
        if self._scheduled:
            self._schedule(self._period, self._look)


class NoSweep(Sweep):
    """A sweep that does nothing: what is added to it is charged elsewhere."""

    def __init__(self) -> None:
        """Schedules nothing, ever."""

    def __len__(self) -> int:
        return 0

    def add(self, member: Charged) -> None:
        """Does nothing: somebody else calls `member.charge`."""

    def discard(self, member: Charged) -> None:
        """Does nothing: there is no member."""
