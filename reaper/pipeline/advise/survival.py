"""How long silences last, when some were cut before they ended: Kaplan-Meier on small frames. No
Spark here.

A silence ends in one of two ways: bytes come (an event), or something else comes first: a reap, a
close, the end of the log (censored). Quantiles of the events alone are wrong: with a timeout of 5 s
no event ever takes longer than 5 s, so any quantile of them "proves" that 5 s is enough.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

Z = 1.959964
"""Two-sided 95 %."""

LEAST_NS = 1_000_000
"""Shorter silences are counted together: no timeout comes near."""

_WIDTHS: list[tuple[int, int]] = [
    (most * 10**e, width * 10**e)
    for e in range(4, 17)
    for most, width in ((200, 1), (500, 2), (1000, 5))
]
"""(silences up to, width of their bucket), ns, ascending."""


def width_sql(column: str) -> str:
    """The width of the bucket of *column* (ns, at least `LEAST_NS`), as an expression of any SQL.

    Buckets are 0.5 % to 1 % wide, their upper edge is inclusive, and every number of two digits
    (times a power of ten) is an edge, as are 120, 180 and 350 s. So the timeouts that people
    configure are edges, and so are whole seconds up to 100: what ends at an edge counts as ended
    there.
    """
    cases = " ".join(f"WHEN {column} <= {most} THEN {width}" for most, width in _WIDTHS[:-1])
    return f"CASE {cases} ELSE {_WIDTHS[-1][1]} END"


@dataclass(frozen=True, slots=True)
class Curve:
    """S(t): the share of silences that last longer than t, with what is needed for intervals. One
    entry per event time.

    Source: Kaplan & Meier 1958; variance by Greenwood 1926, the interval on the log of the
    cumulative hazard.
    """

    times: list[float]
    """Seconds, ascending."""
    survival: list[float]
    hazard: list[float]
    """Greenwood's sum up to each time: sum of d / (n (n - d)); infinite from where none is left."""
    at_risk: list[int]
    """Silences still going on just after each time."""
    total: int
    events: int
    followed: float
    """The longest silence observed, ended or not, seconds. Nothing is known beyond it."""

    def _index(self, t: float) -> int:
        return bisect_right(self.times, t) - 1

    def at(self, t: float) -> float:
        """S(t), the share still silent. Beyond `followed` it is only a bound from above."""
        index = self._index(t)
        return 1.0 if index < 0 else self.survival[index]

    def interval(self, t: float) -> tuple[float, float]:
        """The 95 % interval of S(t)."""
        index = self._index(t)
        if index < 0:
            return max(
                0.0, 1.0 - 3.0 / self.total
            ) if self.total else 0.0, 1.0  # no event: the rule of three
        survival = self.survival[index]
        if survival <= 0:
            earlier = [time for time in self.times[:index] if self.at(time) > 0]
            return 0.0, self.interval(earlier[-1])[1] if earlier else 1.0
        low, high = _hazard_interval(-math.log(survival), self.hazard[index])
        return math.exp(-high), math.exp(-low)

    def cut(self, t: float) -> tuple[float, float, float]:
        """Of the silences that end within what was observed, the share that a timeout of *t*
        seconds would cut.

        Returns:
            (estimate, low, high): the 95 % interval. Silences that never end in sight (dead peers)
                are left out: to
            cut those is what a timeout is for.
        Source: ours; the restarted Kaplan-Meier from t on, times what survives to t.
        """
        end, here = self.survival[-1] if self.survival else 1.0, self.at(t)
        ending = 1.0 - end
        if ending <= 0:
            return 0.0, 0.0, 1.0
        if end <= 0:
            low, high = self.interval(t)
            return here, low, high
        index = self._index(t)
        spent = self.hazard[index] if index >= 0 else 0.0
        at_risk = self.at_risk[index] if index >= 0 else self.total
        hazard = math.log(here / end)
        low, high = (
            _hazard_interval(hazard, self.hazard[-1] - spent)
            if hazard > 0
            else (0.0, 3.0 / max(at_risk, 1))
        )
        scale = here / ending

        def share(value: float) -> float:
            return min(1.0, scale * -math.expm1(-value))

        return share(hazard), share(low), share(high)

    def shortest(self, share: float, *, which: int = 0) -> float | None:
        """The shortest timeout whose cut is at most *share*: by the estimate (0), or an end of the
        interval (1, 2).

        Returns:
            Seconds; None when even the longest silence observed does not show it.
        Cost: O(log(times) * times).
        """
        if not self.times or self.cut(self.times[-1])[which] > share:
            return None
        low, high = 0, len(self.times) - 1
        while low < high:
            middle = (low + high) // 2
            if self.cut(self.times[middle])[which] <= share:
                high = middle
            else:
                low = middle + 1
        return self.times[low]

    def held(self, t: float) -> float:
        """How many seconds a silence is held on average under a timeout of *t*: the area under S up
        to t.
        """
        area, since, level = 0.0, 0.0, 1.0
        for time, survival in zip(self.times, self.survival, strict=True):
            if time >= t:
                break
            area += level * (time - since)
            since, level = time, survival
        return area + level * (t - since)


def kaplan_meier(counts: Iterable[tuple[float, int, int]]) -> Curve:
    """The curve of *counts*: (seconds, silences that ended then, silences censored then), in any
    order, times distinct.

    At equal times the ends come before the censorings.
    """
    rows = sorted(row for row in counts if row[1] or row[2])
    left = total = sum(ended + censored for _, ended, censored in rows)
    survival, hazard = 1.0, 0.0
    curve = Curve([], [], [], [], total, sum(row[1] for row in rows), rows[-1][0] if rows else 0.0)
    for time, ended, censored in rows:
        if ended:
            survival *= (left - ended) / left
            hazard += ended / (left * (left - ended)) if left > ended else math.inf
            curve.times.append(time)
            curve.survival.append(survival)
            curve.hazard.append(hazard)
            curve.at_risk.append(left - ended)
        left -= ended + censored
    return curve


def _hazard_interval(hazard: float, variance: float) -> tuple[float, float]:
    if hazard <= 0 or not math.isfinite(variance):
        return 0.0, math.inf
    factor = math.exp(min(Z * math.sqrt(variance) / hazard, 700.0))
    return hazard / factor, hazard * factor
