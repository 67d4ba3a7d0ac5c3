"""Keeps, per tenth of a second, this program's worst lag and the server's slowest
answer.

One rule: lag is an observation, not an allowance. It is measured while it happens, kept
with its time, reported raw, and counts only for the closes whose window it falls into.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from itertools import islice

BUCKET = 0.1
"""Seconds per bucket."""
LEAST = 0.05
"""Seconds of lag from which on it is a stall, and not the pace of a busy machine."""
LEAST_SHARE = 0.05
"""Share of the answers that must be slow before a stall of the server is believed.

It is so small because one of a server's 16 workers may stand still alone.
"""


class Stalls:
    """The worst lag in seconds, by bucket; buckets count from 0 of the monotonic
    clock.
    """

    __slots__ = ("long", "longest", "worst")

    def __init__(self) -> None:
        self.worst: dict[int, float] = {}
        self.long: list[tuple[float, float]] | None = None  # `stretches`, until something is added
        self.longest = 0.0  # the worst of all, seconds; 0 when nothing was ever late

    def add(self, instant: float, lag: float) -> None:
        """Note that something came at *instant* which was due *lag* seconds before."""
        self._note(int(instant / BUCKET), lag)

    def _note(self, bucket: int, lag: float) -> None:
        if lag > self.worst.get(bucket, 0.0):
            self.worst[bucket] = lag
            self.longest = max(self.longest, lag)
            self.long = None

    def between(self, start: float, end: float) -> float:
        """The worst lag from *start* to one bucket after *end*.

        What was late at the end shows just after it. Cost: O(buckets in the window),
        which is as long as a close is late.
        """
        window = range(int(start / BUCKET), int(end / BUCKET) + 2)
        return max((self.worst.get(bucket, 0.0) for bucket in window), default=0.0)

    def total(self, start: float, end: float) -> float:
        """Seconds from *start* to *end* in which something was overdue by LEAST or
        more.

        Each second counts once.

        Cost: O(log stretches + stretches in the window), after O(buckets log buckets)
        when something was added.
        """
        if self.long is None:
            self.long = self._stretches()
        first = bisect_left(self.long, start, key=lambda stretch: stretch[1])
        found = 0.0
        for begin, over in islice(self.long, first, None):
            if begin >= end:
                break
            found += min(over, end) - max(begin, start)
        return found

    def _stretches(self) -> list[tuple[float, float]]:
        """Stretches of time from when something was due until it came; disjoint and
        ascending.

        What came is held to have come in the middle of its bucket.
        """
        merged: list[tuple[float, float]] = []
        middle = {
            (bucket + 0.5) * BUCKET: lag for bucket, lag in self.worst.items() if lag >= LEAST
        }
        spans = sorted((instant - lag, instant) for instant, lag in middle.items())
        for begin, over in spans:
            if merged and begin <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], over))
            else:
                merged.append((begin, over))
        return merged


class Answers(Stalls):
    """How long answers took, with how many came in each bucket, and how many of those
    were slow.

    One slow answer is no stall of a server. While its loop stands still, or that of one
    of its workers, every request that reaches it waits.
    """

    __slots__ = ("came", "slow")

    def __init__(self) -> None:
        super().__init__()
        self.came: Counter[int] = Counter()
        self.slow: Counter[int] = Counter()

    def add(self, instant: float, lag: float) -> None:
        bucket = int(instant / BUCKET)
        self.came[bucket] += 1
        self.slow[bucket] += lag >= LEAST
        self._note(bucket, lag)

    def merge(self, other: Answers) -> None:
        """Take over the worst lags of *other*, bucket by bucket, and add its counts."""
        for bucket, lag in other.worst.items():
            self._note(bucket, lag)
        self.came.update(other.came)
        self.slow.update(other.slow)

    def supported(self) -> Stalls:
        """The stalls that are believed: those in which LEAST_SHARE of the answers were
        slow.

        The answers are those that came while the stall lasted. Cost: O(buckets) times
        the length of the longest stall.
        """
        found = Stalls()
        for bucket, lag in self.worst.items():
            span = range(bucket - int(lag / BUCKET), bucket + 1)
            slow = sum(self.slow[each] for each in span)
            if slow and slow >= LEAST_SHARE * sum(self.came[each] for each in span):
                found._note(bucket, lag)
        return found
