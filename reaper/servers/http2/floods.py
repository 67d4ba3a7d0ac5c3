"""How many frames a client may send that move nothing and cost the server more than the
client.

The rule of this module: *a client that moves bytes is never near the bound*. A frame is
bounded unless its type is one of `frames.MOVING`, and if it is an empty DATA frame:
resets (rapid reset, CVE-2023-44487), PING, PRIORITY and SETTINGS (CVE-2019-9512, -9513,
-9515), their acknowledgements, and unknown types. A client needs a few of them per
connection, or one per some seconds. A stream that was answered pays for one of them: a
client that asks thousands of times a second may cancel as many requests as it lets be
answered. A DATA frame with bytes pays for one too, in either direction: gRPC measures
its link by a PING a round trip, for as long as DATA comes.

WINDOW_UPDATE has a budget of its own, `WINDOWS`, which bytes that are sent pay for: a
client that opens its window by one byte a frame costs more than it takes.

If the same bytes bring a request and reset it, it is charged and not begun: nobody
waits for its answer, and beginning it would cost the server most.
"""

from __future__ import annotations

from collections.abc import Callable

BURST = 200
"""Frames at once: twice the streams that a server commonly lets a client open, all of
them reset. nghttp2 takes 1000 (nghttp2_option_set_stream_reset_rate_limit); a request
costs Python far more.
"""

PER_SECOND = 33.0
"""Frames per second after that. Precedent: nghttp2's own."""

WINDOWS = 1000
"""WINDOW_UPDATE frames at once. Each DATA frame that is sent pays for some more."""

WINDOWS_PER_FRAME = 3
"""WINDOW_UPDATE frames that each DATA frame sent pays for: clients send one for the
stream and one for the connection.
"""

BYTES_PER_WINDOW = 512
"""Bytes sent that pay for one more: Go's client opens both windows again after each 4
KiB.
"""

SAVED = 1000
"""Frames that DATA frames may pay for in advance. A client that was held up answers all
that came meanwhile at once.
"""


class Budget:
    """What one connection has left.

    Args:
        burst: Frames at once.
        now: Returns seconds of the driver's clock, in which nobody is charged for a
            stall.
    """

    __slots__ = ("_at", "_burst", "_left", "_moved", "_now")

    def __init__(self, now: Callable[[], float], burst: int = BURST) -> None:
        self._now = now
        self._at = now()
        self._burst = float(burst)
        self._left = self._burst
        self._moved = 0  # DATA frames that have yet to pay for a frame

    def move(self, frames: int = 1) -> None:
        """So many DATA frames with bytes have come, or were sent."""
        self._moved += frames  # `spend` bounds it

    def earn(self) -> None:
        """A stream was answered."""
        self._left += 1  # `spend` bounds it

    def spend(self, frames: int) -> bool:
        """Take *frames* from it. Returns whether it had as many."""
        free = min(frames, self._moved)
        self._moved = min(self._moved - free, SAVED)
        if free == frames:
            return True
        frames -= free
        now = self._now()
        self._left = min(self._left + (now - self._at) * PER_SECOND, self._burst) - frames
        self._at = now
        return self._left >= 0
