"""Whether the advice is as sure as it says: its interval against silences whose truth
is known.

    python -m scripts.intervals --document

draws silences of seven kinds, cuts them in three ways, and asks the product's own
estimate 400 times for each of three sizes. A cell of the table says how often the 95 %
interval of the share that is cut held the truth, and how often the recommended timeout
was too short. Minutes of processor time.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reaper.pipeline.advise.survival import _WIDTHS, LEAST_NS, Beyond, Curve, Spread, kaplan_meier
from reaper.pipeline.advise.traffic import THRESHOLDS

from . import marked

PAGE = Path(__file__).parent.parent / "docs" / "pipeline.md"
BEGIN = "<!-- intervals: written by `python -m scripts.intervals --document`, do not edit -->"
END = "<!-- end of intervals -->"

REPEATS = 400
SIZES = (500, 2000, 8000)
SHARES = (0.2, 0.05, 0.01)
"""The timeouts that are asked about truly cut so much."""
MAX_CUT = 0.01
PER_CONNECTION = 10
"""Silences of a connection on average; some have one, some fifty."""
TIMEOUT = 75.0
ROOM = (0.93, 0.97)
TOO_SHORT = 0.03

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, NDArray[np.int64]], Floats]


@dataclass(frozen=True)
class Kind:
    """A kind of silences: how they are drawn for the connections given, and the share
    of all that lasts longer than t.
    """

    draw: Draw
    beyond: Callable[[float], float]


def _normal(z: float) -> float:
    return 0.5 * math.erfc(z / math.sqrt(2))


def _heartbeats(rng: np.random.Generator, of: NDArray[np.int64]) -> Floats:
    n = len(of)
    beats = rng.normal(30, 2, n).clip(1)
    found: Floats = np.where(rng.random(n) < 0.7, rng.exponential(4, n), beats)
    return found


def _clients(scale: float) -> Kind:
    """Each connection has a mean of its own: the silences of one are alike."""

    def draw(rng: np.random.Generator, of: NDArray[np.int64]) -> Floats:
        means = 1 / rng.gamma(3, 1 / scale, int(of.max()) + 1)
        found: Floats = rng.exponential(1, len(of)) * means[of]
        return found

    return Kind(draw, lambda t: (1 + t / scale) ** -3.0)


KINDS = {
    "exponential": Kind(lambda rng, of: rng.exponential(12, len(of)), lambda t: math.exp(-t / 12)),
    "lognormal": Kind(
        lambda rng, of: rng.lognormal(math.log(6), 1, len(of)), lambda t: _normal(math.log(t / 6))
    ),
    "Weibull": Kind(
        lambda rng, of: 8 * rng.weibull(0.6, len(of)), lambda t: math.exp(-((t / 8) ** 0.6))
    ),
    "Pareto": Kind(lambda rng, of: 3 * rng.pareto(1.5, len(of)), lambda t: (1 + t / 3) ** -1.5),
    "heartbeats of 30 s": Kind(
        _heartbeats, lambda t: 0.7 * math.exp(-t / 4) + 0.3 * _normal((t - 30) / 2)
    ),
    "clients that differ": _clients(45),
    "bursts, asked about below 2 s": _clients(0.5),
}
CUTS: dict[str, Draw] = {
    "none": lambda rng, of: np.full(len(of), math.inf),
    f"a timeout of {TIMEOUT:g} s": lambda rng, of: np.full(len(of), TIMEOUT),
    "clients leave after a minute": lambda rng, of: rng.exponential(60, len(of)),
}


def edges(silences: Floats) -> NDArray[np.int64]:
    """The edges, ns, at which the pipeline counts *silences*, s; see
    `survival.width_sql`.
    """
    ns = np.maximum(np.round(silences * 1e9).astype(np.int64), LEAST_NS)
    widths = np.array([width for _, width in _WIDTHS])
    width = widths[np.searchsorted(np.array([most for most, _ in _WIDTHS]), ns)]
    found: NDArray[np.int64] = (ns + width - 1) // width * width
    return found


def drawn(rng: np.random.Generator, kind: Kind, cut: Draw, n: int) -> Curve:
    """The curve of *n* silences, as the pipeline would count them."""
    sizes = rng.geometric(1 / PER_CONNECTION, n)
    of = np.repeat(np.arange(n), sizes)[:n]
    silences, cuts = kind.draw(rng, of), cut(rng, of)
    lasted, ended = np.minimum(silences, cuts), silences <= cuts
    edge, at = np.unique(edges(lasted), return_inverse=True)
    here, all_here = np.bincount(at, ended, len(edge)), np.bincount(at, minlength=len(edge))
    connections = int(of.max()) + 1
    m = np.bincount(of[ended], minlength=connections)
    beyond = []
    for seconds in THRESHOLDS:
        a = np.bincount(of[ended & (lasted > seconds)], minlength=connections)
        beyond.append(Beyond(seconds, int(a.sum()), int((a * a).sum()), int((a * m).sum())))
    rows = zip(edge.tolist(), here.astype(int).tolist(), all_here.tolist(), strict=True)
    return kaplan_meier(
        ((ns / 1e9, events, together - events) for ns, events, together in rows),
        Spread(int(m.sum()), int((m * m).sum()), int(m.max()), beyond),
    )


def when(beyond: Callable[[float], float], share: float) -> float:
    """The instant, s, beyond which *share* of the silences last."""
    low, high = 1e-3, 1e7
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if beyond(middle) > share else (low, middle)
    return high


@dataclass(frozen=True)
class Cell:
    """What came of the repeats of one cell, as shares of them."""

    held: float
    short: float
    unsure: float

    @property
    def good(self) -> bool:
        return ROOM[0] <= round(self.held, 3) <= ROOM[1] and round(self.short, 3) <= TOO_SHORT


def cell(kind: Kind, cut: Draw, n: int, repeats: int, seed: int = 1) -> Cell:
    """Ask *repeats* times. The truth is of the silences that end within what each log
    has seen.
    """
    rng = np.random.default_rng(seed)
    held = short = unsure = 0
    for _ in range(repeats):
        curve = drawn(rng, kind, cut, n)
        # Without a cut the longest silence is no end of what can be seen.
        end = (
            0.0
            if math.isinf(float(cut(rng, np.zeros(1, np.int64))[0]))
            else kind.beyond(curve.horizon)
        )
        for share in SHARES:
            t = min(
                edges(np.array([when(kind.beyond, share * (1 - end) + end)]))[0] / 1e9,
                curve.horizon,
            )
            _, low, high = curve.cut(t)
            held += low <= max(0.0, (kind.beyond(t) - end) / (1 - end)) <= high
        found = curve.shortest(MAX_CUT, which=2)
        unsure += found is None
        short += found is not None and (kind.beyond(found) - end) / (1 - end) > MAX_CUT
    return Cell(held / repeats / len(SHARES), short / repeats, unsure / repeats)


def table(repeats: int, progress: Callable[[str], None] = lambda _: None) -> str:
    """The table, and how many of its cells are as they should be."""
    lines = [
        "| silences | cut by | " + " | ".join(f"{n:,}" for n in SIZES) + " |",
        "|---|---|" + "---|" * len(SIZES),
    ]
    outside = 0
    for name, kind in KINDS.items():
        for cause, cut in CUTS.items():
            cells = [cell(kind, cut, n, repeats) for n in SIZES]
            outside += sum(not each.good for each in cells)
            shown = [
                f"{each.held:.1%}, {each.short:.1%}{'' if each.good else ' (!)'}" for each in cells
            ]
            lines.append(f"| {name} | {cause} | {' | '.join(shown)} |")
            progress(lines[-1])
    total = len(KINDS) * len(CUTS) * len(SIZES)
    shares = ", ".join(f"{share:.0%}" for share in SHARES)
    said = (
        f"How often the 95 % interval held the true share, at timeouts that truly cut {shares}; and "
        f"how often the timeout advised for `--max-cut {MAX_CUT:.0%}` cut more. {repeats} repeats of "
        f"each number of silences, {PER_CONNECTION} a connection on average. "
        f"{total - outside} of {total} cells lie within {ROOM[0]:.0%} and {ROOM[1]:.0%}, and at most "
        f"{TOO_SHORT:.0%} too short; (!) marks the others."
    )
    return "\n".join([said, "", *lines, ""])


def main(argv: list[str] | None = None) -> int:
    """Print the table, or write it into the page."""
    parser = argparse.ArgumentParser(prog="python -m scripts.intervals", description=__doc__)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--document", action="store_true", help=f"write it into {PAGE.name}")
    arguments = parser.parse_args(argv)
    found = table(arguments.repeats, lambda line: print(line, file=sys.stderr, flush=True))
    marked.show(PAGE, BEGIN, END, found, document=arguments.document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
