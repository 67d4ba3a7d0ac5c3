"""Counts durations in logarithmic buckets, in constant memory, and never more than
1/128 off.

The idea is that of HDR histograms: each power of two is split into equal parts.
"""

from __future__ import annotations

import math
from collections import Counter

SUBBUCKETS = 128
"""Parts of each power of two: the relative error of a percentile is at most 1/128."""
PERCENTILES = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p99_9": 99.9}
"""The percentiles of a summary, by name."""
_SHIFT = SUBBUCKETS.bit_length() - 1


class Histogram:
    """Durations in seconds, counted with a resolution of microseconds.

    A negative one counts as zero. `max` is exact.
    """

    __slots__ = ("counts", "max", "sum", "total")

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.total = 0
        self.sum = 0.0
        self.max = 0.0

    def add(self, value: float) -> None:
        """Count *value* seconds. Cost: O(1)."""
        us = int(value * 1e6) if value > 0 else 0
        exponent = us.bit_length() - _SHIFT - 1
        # Up to 2 * SUBBUCKETS the buckets are single microseconds; from there on each
        # power of two has SUBBUCKETS.
        bucket = us if exponent <= 0 else (exponent << _SHIFT) + (us >> exponent)
        self.counts[bucket] += 1
        self.total += 1
        self.sum += max(value, 0.0)
        self.max = max(self.max, value)

    def merge(self, other: Histogram) -> None:
        """Add the counts of *other*, which is left as it is."""
        self.counts.update(other.counts)
        self.total += other.total
        self.sum += other.sum
        self.max = max(self.max, other.max)

    def percentile(self, percent: float) -> float | None:
        """The upper edge, in seconds, of the bucket that *percent* of the values reach.

        It is at most `max`, and None when there are no values.
        """
        if not self.total:
            return None
        seen = 0
        for edge, count in self.buckets():
            seen += count
            if seen >= self.total * percent / 100:
                return min(edge, self.max)
        return self.max

    def summary(self) -> dict[str, float | None]:
        """The percentiles of PERCENTILES, avg and max, in seconds; None each when
        empty.
        """
        return {
            **{name: self.percentile(percent) for name, percent in PERCENTILES.items()},
            "avg": self.sum / self.total if self.total else None,
            "max": self.max if self.total else None,
        }

    def hgrm(self) -> str:
        """Write the text that HdrHistogram's tools draw: milliseconds by percentile."""
        lines = ["       Value     Percentile TotalCount 1/(1-Percentile)", ""]
        seen = 0
        for edge, count in self.buckets():
            seen += count
            share = seen / self.total
            rest = f"{1 / (1 - share):14.2f}" if seen < self.total else f"{'inf':>14}"
            lines.append(f"{min(edge, self.max) * 1e3:12.3f} {share:2.12f} {seen:10d} {rest}")
        mean = self.sum / self.total * 1e3 if self.total else 0.0
        squares = sum(count * (edge * 1e3 - mean) ** 2 for edge, count in self.buckets())
        deviation = math.sqrt(squares / max(self.total, 1))
        lines += [
            f"#[Mean    = {mean:12.3f}, StdDeviation   = {deviation:12.3f}]",
            f"#[Max     = {self.max * 1e3:12.3f}, Total count    = {self.total:12d}]",
            f"#[Buckets = {len(self.counts):12d}, SubBuckets     = {SUBBUCKETS:12d}]",
        ]
        return "\n".join(lines) + "\n"

    def buckets(self) -> list[tuple[float, int]]:
        """The upper edge in seconds and the count of every bucket that is not empty;
        ascending.
        """
        return [(_upper_edge(bucket), self.counts[bucket]) for bucket in sorted(self.counts)]


def _upper_edge(bucket: int) -> float:
    exponent = max((bucket >> _SHIFT) - 1, 0)
    base = bucket if exponent == 0 else bucket - (exponent << _SHIFT)
    return ((base + 1) << exponent) / 1e6
