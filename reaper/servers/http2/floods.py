"""How many frames a client may send that move nothing, and cost the server more than the client.

The rule of this module: *who moves bytes is never near the bound*. A frame that is bounded is one
of those below; a client needs a few of them per connection, or one per some seconds. A stream that
was answered pays for one of them: a client that asks thousands of times a second may cancel as many
requests as it lets be answered.

A request that is reset by the same bytes that bring it is paid for, and not begun: nobody waits for
its answer, and the server would spend most on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

BURST = 200
"""Frames at once: twice the streams that a server commonly lets a client open, all of them reset.
nghttp2 takes 1000 (nghttp2_option_set_stream_reset_rate_limit); a request costs Python far more."""

PER_SECOND = 33.0
"""Frames per second after that. Precedent: nghttp2's own."""

BOUNDED = frozenset(
    {
        "StreamReset",  # rapid reset, CVE-2023-44487: each of them has begun a request
        "PingReceived",  # CVE-2019-9512
        "PriorityUpdated",  # CVE-2019-9513
        "RemoteSettingsChanged",  # CVE-2019-9515
        "UnknownFrameReceived",
    }
)
"""The events of h2, by name, each of which takes one from the budget."""


class Budget:
    """What one connection has left.

    Args:
        now: Returns seconds of the driver's clock, in which nobody is charged for a stall.
    """

    __slots__ = ("_at", "_left", "_now")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._at = now()
        self._left = float(BURST)

    def earn(self) -> None:
        """A stream was answered."""
        self._left += 1  # `spend` bounds it

    def spend(self, frames: int) -> bool:
        """Take *frames* from it; returns whether there were as many."""
        now = self._now()
        self._left = min(self._left + (now - self._at) * PER_SECOND, float(BURST)) - frames
        self._at = now
        return self._left >= 0


def cancelled_at_once(events: Iterable[Any]) -> set[int]:
    """The streams that begin and are reset within *events*, and bring no byte of a body: those of
    a body have to be acknowledged.
    """
    begun: set[int] = set()
    reset: set[int] = set()
    for event in events:
        kind = type(event).__name__
        if kind == "RequestReceived":
            begun.add(event.stream_id)
        elif kind == "StreamReset":
            reset.add(event.stream_id)
        elif kind == "DataReceived":
            begun.discard(event.stream_id)
    return begun & reset
