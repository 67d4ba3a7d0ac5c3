"""How many frames a client may send that move nothing and cost the server more than the
client.

The rule of this module: *nobody is charged for what a client can owe*. A client that
lags sends what it owes all at once, so no rate bounds that; what it owes is counted.
Every other frame that moves nothing is charged to a `Budget`. By kind:

    WINDOW_UPDATE    Each byte that was sent may be given back once on its stream and
                     once on the connection, in pieces as small as the client's user
                     reads, also of streams that have ended (`Owed`). Each HEADERS frame
                     pays for one that opens its window wider. Any other is charged to a
                     budget of its own, `WINDOWS`: those are of nothing, or open a
                     window for what nobody has sent.
    RST_STREAM       At most one for each stream that it has open: the burst is twice
                     that. More is rapid reset (CVE-2023-44487). A stream that was
                     answered pays for one: a client that asks thousands of times a
                     second may cancel as many requests as it lets be answered.
    PRIORITY         As RST_STREAM, and unknown types, of which PRIORITY_UPDATE is one
                     (CVE-2019-9513).
    PING             Nothing, as no server here sends PING; the answers to those are
                     charged, too. A client that measures its link sends one a round
                     trip for as long as DATA comes or goes, and never has two on their
                     way: each DATA frame with bytes pays for one, in either direction
                     (CVE-2019-9512).
    SETTINGS         One at the start, and one answer to the server's. A client that has
                     measured its link sends another: as PING (CVE-2019-9515).
    GOAWAY           Two: it will leave, and it leaves.
    empty DATA       Nothing, unless it ends its stream: that is not charged. One of
                     padding alone is empty (CVE-2019-9518).
    CONTINUATION     The rest of one block, which `timeouts.headers` and the server's
                     library bound. An empty one that does not end its block is charged
                     (CVE-2024-27316).
    HEADERS, DATA    A request, its end, or bytes of a body: that is what a server is
                     for. It bounds them by the streams and the windows that it gives.

If the same bytes bring a request and reset it, it is charged and not begun: nobody
waits for its answer, and beginning it would cost the server most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

STREAMS = 100
"""Streams that a server commonly lets a client have open at once."""

BURST = 2 * STREAMS
"""Frames at once: all of them reset, and as many begun meanwhile. nghttp2 takes 1000
(nghttp2_option_set_stream_reset_rate_limit); a request costs Python far more.
"""

PER_SECOND = 33.0
"""Frames per second after that. Precedent: nghttp2's own."""

WINDOWS = 1000
"""WINDOW_UPDATE frames at once that are not owed."""

SAVED = 1000
"""Frames that may be paid for in advance. A client that was held up answers all that
came meanwhile at once.
"""


class Owed:
    """Which bytes a client may still give back.

    Attributes:
        bytes: How many, on streams and on the connection together.
    """

    __slots__ = ("bytes",)

    def __init__(self) -> None:
        self.bytes: int = 0

    def sent(self, count: int) -> None:
        """*count* bytes of DATA were sent, which took room in two windows."""
        self.bytes += 2 * count

    def beyond(self, windows: Iterable[int]) -> int:
        """The client opens its *windows* by so many bytes each. Returns how many of
        these give back nothing, or more than was sent.
        """
        beyond, left = 0, self.bytes
        for size in windows:
            if 0 < size <= left:
                left -= size
            else:
                beyond += 1
        self.bytes = left
        return beyond


class Budget:
    """What one connection has left.

    Args:
        burst: Frames at once.
        now: Returns seconds of the driver's clock, in which nobody is charged for a
            stall.
    Attributes:
        moved: Frames that have come, or were sent, each of which pays for another; add
            to it. `spend` bounds it.
        left: What it has left; a stream that was answered adds one. As `moved`.
    """

    __slots__ = ("_at", "_burst", "_now", "left", "moved")

    def __init__(self, now: Callable[[], float], burst: int = BURST) -> None:
        self._now = now
        self._at = now()
        self._burst = float(burst)
        # Each answer adds to these, where a method costs more than what it does.
        self.left: float = self._burst
        self.moved: int = 0

    def spend(self, frames: int) -> bool:
        """Take *frames* from it. Returns whether it had as many."""
        free = min(frames, self.moved)
        self.moved = min(self.moved - free, SAVED)
        if free == frames:
            return True
        frames -= free
        now = self._now()
        self.left = min(self.left + (now - self._at) * PER_SECOND, self._burst) - frames
        self._at = now
        return self.left >= 0
