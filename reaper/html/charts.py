"""Charts as inline SVG: no script, no font, no file but the page itself.

The rule of this module: *every axis says what it counts, and in which unit*. A chart is
a plain box with two axes; layers are drawn into it in the order they are added. Colours
are classes: the style sheet decides them once, for light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from .parts import escape
from .units import count, seconds

WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 80, 18, 38, 50
WIDE = 9.0
"""What a character takes at most on a narrow screen, where text is largest."""

ROUND_S = (
    *(m * 10.0**e for e in range(-6, 0) for m in (1, 2, 5)),
    *(1.0, 2.0, 5.0, 10.0, 15.0, 30.0),
    *(m * 60.0 for m in (1, 2, 5, 10, 15, 30)),
    *(m * 3600.0 for m in (1, 2, 3, 6, 12)),
    *(m * 86400.0 for m in (1, 2, 7, 14, 30, 90, 365)),
)
"""Steps of time that people count in, seconds."""
APART = 0.11
"""How far apart two ticks of a logarithmic axis are at least, as a share of its
length.
"""

Points = Sequence[tuple[float, float]]


def round_s(least: float) -> float:
    """The next length of time from *least* on that people count in, seconds."""
    return next(
        (step for step in ROUND_S if step >= least * 0.999),
        ROUND_S[-1] * math.ceil(least / ROUND_S[-1]),
    )


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: its range, inclusive, how its values are said, and whether it is
    logarithmic (then low > 0).
    """

    low: float
    high: float
    label: str
    say: Callable[[float], str] = count
    log: bool = False

    def place(self, value: float) -> float:
        """Where *value* lies, 0 to 1; beyond the range at its edge."""
        if self.log:
            value = max(value, self.low)
            where = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            where = (value - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, where))

    def ticks(self) -> list[float]:
        """About five round values within the range: of time round as people count it,
        of things whole.
        """
        if not self.log:
            step = self._step((self.high - self.low) / 5)
            first, last = math.ceil(self.low / step - 1e-4), math.floor(self.high / step + 1e-4)
            return [step * i for i in range(first, last + 1)]
        candidates = ROUND_S if self.say is seconds else self._decades()
        shown: list[float] = []
        for value in candidates:
            apart = (
                self.say is not seconds
                or not shown
                or self.place(value) - self.place(shown[-1]) >= APART
            )
            if self.low * 0.9999 <= value <= self.high * 1.0001 and apart:
                shown.append(value)
        return shown

    def _step(self, rough: float) -> float:
        if self.say is seconds:
            return round_s(rough)
        power = 10.0 ** math.floor(math.log10(rough))
        step = power * next(factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
        return max(step, 1.0) if self.say is count else step

    def _decades(self) -> list[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        factors = (1, 2, 5) if last - first <= 3 else (1,)
        return [factor * 10.0**power for power in range(first, last + 1) for factor in factors]


@dataclass(slots=True)
class Chart:
    """A box with two axes. Add layers, then `svg()`."""

    title: str
    x: Axis
    y: Axis
    layers: list[str] = field(default_factory=list)
    legend: list[tuple[str, str]] = field(default_factory=list)
    labels: list[tuple[float, float]] = field(default_factory=list)

    def _xy(self, x: float, y: float) -> tuple[float, float]:
        across = LEFT + self.x.place(x) * (WIDTH - LEFT - RIGHT)
        return across, HEIGHT - BOTTOM - self.y.place(y) * (HEIGHT - TOP - BOTTOM)

    def _path(self, points: Points) -> str:
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in (self._xy(*point) for point in points))

    def line(self, points: Points, style: str, name: str = "", *, steps: bool = False) -> None:
        """A line through *points*; *steps*: each value holds until the next point."""
        if steps:
            points = _steps(points)
        if points:
            self.layers.append(f'<polyline class="line {style}" points="{self._path(points)}"/>')
        if name:
            self.legend.append((style, name))

    def band(self, low: Points, high: Points, style: str, *, steps: bool = False) -> None:
        """The area between two lines."""
        if steps:
            low, high = _steps(low), _steps(high)
        if low:
            self.layers.append(
                f'<polygon class="band {style}" points="{self._path([*high, *reversed(low)])}"/>'
            )

    def bars(self, points: Points, width: float, style: str, name: str = "") -> None:
        """Bars from x to x + *width* (in units of x)."""
        for x, y in points:
            (left, top), (right, floor) = self._xy(x, y), self._xy(x + width, self.y.low)
            shown = max(right - left - 1, 0.8)
            self.layers.append(
                f'<rect class="bar {style}" x="{left:.1f}" y="{top:.1f}" width="{shown:.1f}" '
                f'height="{floor - top:.1f}"><title>{escape(self.x.say(x))}: {escape(self.y.say(y))}</title></rect>'
            )
        if name:
            self.legend.append((style, name))

    def dot(self, x: float, y: float, style: str, text: str = "") -> None:
        """A point, with *text* above and to the right of it where no other dot has its
        text.
        """
        across, down = self._xy(x, y)
        self.layers.append(f'<circle class="dot {style}" cx="{across:.1f}" cy="{down:.1f}" r="4"/>')
        if text and not any(abs(across - x) < 44 and abs(down - y) < 15 for x, y in self.labels):
            self.labels.append((across, down))
            self.layers.append(
                f'<text x="{across + 6:.1f}" y="{down - 6:.1f}">{escape(text)}</text>'
            )

    def mark(self, x: float, text: str, style: str = "mark") -> None:
        """A vertical line at *x* with *text*, which flips to the left near the right
        edge.
        """
        across, _ = self._xy(x, self.y.low)
        anchor, shift = ("end", -5) if self.x.place(x) > 0.7 else ("start", 5)
        height = TOP + 12 + 15 * sum('class="marked' in layer for layer in self.layers)
        self.layers.append(
            f'<g class="marked {style}"><line x1="{across:.1f}" x2="{across:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
            f'<text x="{across + shift:.1f}" y="{height}" text-anchor="{anchor}">{escape(text)}</text></g>'
        )

    def svg(self) -> str:
        """The chart as SVG."""
        parts = [
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(self.title)}">'
        ]
        for value in self.y.ticks():
            _, down = self._xy(self.x.low, value)
            parts.append(
                f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{down:.1f}" y2="{down:.1f}"/>'
            )
            parts.append(
                f'<text x="{LEFT - 8}" y="{down + 4:.1f}" text-anchor="end">{escape(self.y.say(value))}</text>'
            )
        for value in self.x.ticks():
            across, _ = self._xy(value, self.y.low)
            below, text = HEIGHT - BOTTOM + 18, self.x.say(value)
            anchor = "middle"
            if across + len(text) * WIDE / 2 > WIDTH:  # it would be cut off at the edge
                across, anchor = WIDTH, "end"
            parts.append(
                f'<text x="{across:.1f}" y="{below}" text-anchor="{anchor}">{escape(text)}</text>'
            )
        floor = HEIGHT - BOTTOM
        parts.append(
            f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}"/>'
        )
        middle, base = (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8
        parts.append(
            f'<text class="label" x="{middle}" y="{base}" text-anchor="middle">{escape(self.x.label)}</text>'
        )
        parts.append(f'<text class="label" x="4" y="16">{escape(self.y.label)}</text>')
        parts += self.layers
        parts.append("</svg>")
        if self.legend:
            keys = "".join(
                f'<span class="key {style}"><i></i>{escape(name)}</span>'
                for style, name in self.legend
            )
            parts.append(f'<div class="legend">{keys}</div>')
        return "".join(parts)


def _steps(points: Points) -> list[tuple[float, float]]:
    result: list[tuple[float, float]] = []
    for x, y in points:
        if result:
            result.append((x, result[-1][1]))
        result.append((x, y))
    return result
