"""Who was late when: the worst lag of this program and the slowest answer of the server, per tenth of a second.

One rule: lag is an observation, not an allowance. It is measured while it happens, kept with its time, reported raw,
and counts only for the closes whose window it falls into.
"""

from __future__ import annotations

BUCKET = 0.1
"""Seconds per bucket."""
LONG_WINDOW = 100.0
"""Seconds beyond which a window is not searched: all that was ever seen counts."""


class Stalls:
    """Bucket number -> the worst seconds seen in it. Buckets count from 0 of the monotonic clock."""

    __slots__ = ("worst",)

    def __init__(self) -> None:
        self.worst: dict[int, float] = {}

    @property
    def longest(self) -> float:
        """The worst of all, seconds; 0 when nothing was ever late."""
        return max(self.worst.values(), default=0.0)

    def add(self, instant: float, lag: float) -> None:
        """Something that was due *lag* seconds ago came at *instant*."""
        bucket = int(instant / BUCKET)
        if lag > self.worst.get(bucket, 0.0):
            self.worst[bucket] = lag

    def merge(self, other: Stalls) -> None:
        """Take over the worst of *other*, bucket by bucket."""
        for bucket, lag in other.worst.items():
            if lag > self.worst.get(bucket, 0.0):
                self.worst[bucket] = lag

    def between(self, start: float, end: float) -> float:
        """The worst lag seen from *start* to one bucket after *end*: what was late at the end shows just after it.

        Cost: O(buckets in the window), at most O(LONG_WINDOW / BUCKET + all buckets).
        """
        worst = self.worst
        if end - start > LONG_WINDOW:
            return self.longest
        return max((worst.get(b, 0.0) for b in range(int(start / BUCKET), int(end / BUCKET) + 2)), default=0.0)
