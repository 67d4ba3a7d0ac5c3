"""How long silences last, when some were cut before they ended: Kaplan-Meier on small
frames. No Spark here.

A silence ends in one of two ways: bytes come (an event), or something else comes first:
a reap, a close, the end of the log (censored). Quantiles of the events alone are wrong:
with a timeout of 5 s no event ever takes longer than 5 s, so any quantile of them
"proves" that 5 s is enough.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

Z = 1.959964
"""Two-sided 95 %."""

FOLLOWED = 10
"""If fewer silences are still followed, and some of them were cut, the last steps of
the curve are mostly chance. If none was cut, the curve is a plain share, and good to
its end.
"""

COUNTED = 10
"""How many silences beyond a threshold show how they lie among connections."""

LEAST_FREEDOM = 2.0
"""With fewer degrees of freedom nothing is sure: one or two connections decide."""

LEAST_NS = 1_000_000
"""Shorter silences are counted together: no timeout is that short."""

_WIDTHS: list[tuple[int, int]] = [
    (most * 10**e, width * 10**e)
    for e in range(4, 17)
    for most, width in ((200, 1), (500, 2), (1000, 5))
]
"""(silences up to, width of their bucket), ns, ascending."""


def width_sql(column: str) -> str:
    """The width of the bucket of *column* (ns, at least `LEAST_NS`), as an expression
    of any SQL.

    Buckets are 0.5 % to 1 % wide, their upper edge is inclusive, and every number of
    two digits (times a power of ten) is an edge, as are 120, 180 and 350 s. So the
    timeouts that people configure are edges, and so are whole seconds up to 100: what
    ends at an edge counts as ended there.
    """
    cases = " ".join(f"WHEN {column} <= {most} THEN {width}" for most, width in _WIDTHS[:-1])
    return f"CASE {cases} ELSE {_WIDTHS[-1][1]} END"


@dataclass(frozen=True, slots=True)
class Beyond:
    """The silences that ended after more than *seconds*. Of one connection, a is how
    many of these it has, and m how many of its silences ended at all.
    """

    seconds: float
    a: int
    """Their sum over all connections, as of the next two."""
    a_a: int
    a_m: int


SELDOM = 0.01
"""A difference that chance makes seldomer than this is told."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Silences that ended, of connections whose last silence was cut, and of the
    others; and of both, those longer than *seconds*.
    """

    seconds: float
    cut: tuple[int, int]
    """(ended, longer)"""
    others: tuple[int, int]

    def tells(self, effect: float) -> bool:
        """Whether those that were cut had longer silences before.

        Args:
            effect: By how much the variance is greater than that of independent
                silences.
        Source: the two-proportion z-test, one-sided.
        """
        (n, a), (m, b) = self.cut, self.others
        if min(n, m) < COUNTED or a < COUNTED:
            return False
        share = (a + b) / (n + m)
        error = math.sqrt(share * (1 - share) * max(effect, 1.0) * (1 / n + 1 / m))
        return error > 0 and (a / n - b / m) / error > NormalDist().inv_cdf(1 - SELDOM)


@dataclass(frozen=True, slots=True)
class Spread:
    """How the silences that ended lie among connections. Silences of one connection are
    alike, so many of one client tell less than as many of many.

    Source: Kish 1965 for the design effect, here from each connection's sum (the robust
    variance of a ratio), and for the number of connections of equal size that would
    tell as much.
    """

    ended: int = 0
    """Sum of m."""
    m_m: int = 0
    most: int = 0
    """The greatest m."""
    beyond: Sequence[Beyond] = ()
    """Ascending."""
    cuts: Sequence[Cut] = ()
    """Ascending; empty where no log tells which silences were cut."""

    def survivors(self) -> Cut | None:
        """The longest threshold at which those that were cut had longer silences; None:
        there is none.
        """
        effects = {each.seconds: self._effect(each) for each in self.beyond}
        found = [each for each in self.cuts if each.tells(effects.get(each.seconds, 1.0))]
        return found[-1] if found else None

    @property
    def busiest(self) -> float:
        """The share of the busiest connection."""
        return self.most / self.ended if self.ended else 0.0

    @property
    def freedom(self) -> float:
        """Degrees of freedom: connections of equal size that would tell as much, less
        one.
        """
        return self.ended**2 / self.m_m - 1 if self.m_m else math.inf

    def effect(self, t: float) -> tuple[float, float]:
        """By how much the variance of the share beyond *t* seconds is greater than that
        of independent silences, and the degrees of freedom of an interval made with it.

        Between two thresholds it is the line through both, over log t. Where few
        silences are longer, the last threshold counts that has `COUNTED`. The more of
        the variance comes from connections, the more counts how few of them have
        silences as long.
        """
        known = [(each, found) for each in self.beyond if (found := self._effect(each)) > 0]
        known = [row for row in known if row[0].a >= COUNTED] or known[:1]
        if not known:
            return 1.0, self.freedom
        at = bisect_right(known, t, key=lambda row: row[0].seconds)
        after, effect = known[min(at, len(known) - 1)]
        if 0 < at < len(known):
            before, low = known[at - 1]
            way = math.log(t / before.seconds) / math.log(after.seconds / before.seconds)
            effect = low + (effect - low) * way
        if effect <= 1:
            return effect, self.freedom
        few = max(after.a**2 / after.a_a - 1, 1.0) * effect / (effect - 1)
        return effect, min(self.freedom, few)

    def _effect(self, each: Beyond) -> float:
        share = each.a / self.ended if self.ended else 0.0
        alone = self.ended * share * (1 - share)
        if alone <= 0:
            return 0.0
        together = each.a_a - 2 * share * each.a_m + share * share * self.m_m
        few = (self.freedom + 1) / self.freedom if self.freedom > 0 else 1.0
        return together / alone * few


@dataclass(frozen=True, slots=True)
class Curve:
    """S(t): the share of silences that last longer than t, with what is needed for
    intervals. One entry per event time.

    Source: Kaplan & Meier 1958; variance by Greenwood 1926, the interval on the log of
    the cumulative hazard.
    """

    times: list[float]
    """Seconds, ascending."""
    survival: list[float]
    hazard: list[float]
    """Greenwood's sum up to each time: sum of d / (n (n - d)); infinite from where none
    is left.
    """
    at_risk: list[int]
    """Silences still going on just after each time."""
    total: int
    events: int
    followed: float
    """The longest silence observed, ended or not, seconds. Nothing is known beyond
    it.
    """
    horizon: float
    """The longest silence, seconds, up to which the curve is well known; see
    `FOLLOWED`.
    """
    spread: Spread = field(default_factory=Spread)

    def _index(self, t: float) -> int:
        return bisect_right(self.times, t) - 1

    def at(self, t: float) -> float:
        """S(t), the share still silent. Beyond `followed` it is only a bound from
        above.
        """
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
        """The share that a timeout of *t* seconds would cut, among the silences that
        end within what was observed.

        With a = S(t) and b = S(`horizon`) that is c = (a - b) / (1 - b): silences that
        never end in sight (dead peers) are left out, to cut those is what a timeout is
        for. Both a and b are estimates, and silences of one connection count by their
        connection.

        Returns:
            (estimate, low, high): the 95 % interval.
        Source: the delta method on Greenwood's variance; Wilson's interval 1927 for as
            many independent silences as would vary as much (Kott & Carr 1997).
        """
        b = self.at(self.horizon)
        a = self.at(min(t, self.horizon))
        if b >= 1.0:
            return 0.0, 0.0, 1.0
        share = (a - b) / (1 - b)
        effect, freedom = self.spread.effect(t)
        return share, *_wilson(share, self._independent(t, a, b, share) / effect, freedom)

    def _independent(self, t: float, a: float, b: float, share: float) -> float:
        """How many independent silences would vary as much in their *share* beyond
        *t*.
        """
        index, variance = self._index(t), 0.0
        if index >= 0 and 0 < share < 1:
            here, end = self.hazard[index], self.hazard[self._index(self.horizon)]
            of_a, of_b = a / (1 - b), (1 - a) * b / (1 - b) ** 2
            variance = of_a * (of_a - 2 * of_b) * here + (of_b * of_b * end if b > 0 else 0.0)
        return share * (1 - share) / variance if variance > 0 else float(self.events)

    def shortest(self, share: float, *, which: int = 0) -> float | None:
        """The shortest timeout whose cut is at most *share*: by the estimate (0), or an
        end of the interval (1, 2).

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
        """How many seconds a silence is held on average under a timeout of *t*: the
        area under S up to t.
        """
        area, since, level = 0.0, 0.0, 1.0
        for time, survival in zip(self.times, self.survival, strict=True):
            if time >= t:
                break
            area += level * (time - since)
            since, level = time, survival
        return area + level * (t - since)


def kaplan_meier(counts: Iterable[tuple[float, int, int]], spread: Spread | None = None) -> Curve:
    """The curve of *counts*: (seconds, silences that ended then, silences censored
    then), in any order, times distinct. Without *spread* each silence is taken to be
    another connection's.

    At equal times the ends come before the censorings.
    """
    rows = sorted(row for row in counts if row[1] or row[2])
    left = total = sum(ended + censored for _, ended, censored in rows)
    survival, hazard = 1.0, 0.0
    events, followed = sum(row[1] for row in rows), rows[-1][0] if rows else 0.0
    horizon = _horizon(rows, total)
    curve = Curve([], [], [], [], total, events, followed, horizon, spread or Spread())
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


def _horizon(rows: Sequence[tuple[float, int, int]], left: int) -> float:
    """`Curve.horizon` of *rows*, as `kaplan_meier` has them; *left* is how many
    silences there are.
    """
    last_cut = max((time for time, _, censored in rows if censored), default=0.0)
    known = 0.0
    for time, ended, censored in rows:
        if left < FOLLOWED and time <= last_cut:
            return known
        known = time
        left -= ended + censored
    return known


def _hazard_interval(hazard: float, variance: float) -> tuple[float, float]:
    if hazard <= 0 or not math.isfinite(variance):
        return 0.0, math.inf
    factor = math.exp(min(Z * math.sqrt(variance) / hazard, 700.0))
    return hazard / factor, hazard * factor


def _wilson(share: float, n: float, freedom: float) -> tuple[float, float]:
    """The 95 % interval of a *share* of *n* independent silences."""
    if freedom < LEAST_FREEDOM or n <= 0:
        return 0.0, 1.0
    z = _student(freedom)
    middle, scale = share + z * z / (2 * n), 1 + z * z / n
    half = z * math.sqrt(share * (1 - share) / n + (z / n / 2) ** 2)
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def _student(freedom: float) -> float:
    """The two-sided 95 % point of Student's t, right to 3 % from two degrees of
    *freedom* on.

    Source: Fisher & Cornish 1960.
    """
    if math.isinf(freedom):
        return Z
    z, n = Z, freedom
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )
