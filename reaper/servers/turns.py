"""At which instant each stream hears of its end, and how a stream's age is logged.

The rule of this module: *ends are even over the window, and the first is at once*. It
knows no framework: what tells the streams, and when, is the server's.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Final, TypeVar

from ..config.durations import format_duration
from ..core.lease import Expiry
from ..driver.ends import Books
from ..policy.reasons import STREAM_AGE

PER_SECOND: Final = 100
"""Turns in a second of `timeouts.drain_window`; those of one turn are told together."""

ENDS: Final = 2.0
"""Seconds in which a stream that is too old has to end where `timeouts.drain_streams`
is off.
"""

Each = TypeVar("Each")


def in_turns(streams: list[Each], window: float) -> dict[int, list[Each]]:
    """*streams* by turn, evenly over *window* seconds. Turn 0 is at once."""
    if window:
        random.shuffle(streams)  # the oldest are often those of one client
    turns: defaultdict[int, list[Each]] = defaultdict(list)
    for number, stream in enumerate(streams):
        turns[int(number / len(streams) * window * PER_SECOND)].append(stream)
    return turns


def note_age(books: Books, route: str, expiry: Expiry) -> None:
    """Enter in *books* that a stream has reached its age. Its connection stays open."""
    books.reasons[STREAM_AGE] += 1
    books.log.info(
        "%s - stream ended: %s, limit %s",
        route,
        STREAM_AGE,
        format_duration(round(expiry.timeout, 3)),
        extra={"reason": STREAM_AGE, "limit": expiry.timeout},
    )
