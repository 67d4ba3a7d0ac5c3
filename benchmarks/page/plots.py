"""The growth plots of docs/performance.md: four decades of connections, a line per peer.

One rule: the same figures give the same bytes: no date, no random names, and the font that matplotlib brings.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from ..peers import table as peers
from .results import CONTROL, LEASE, UID, Results, middle
from .words import people, quantity

INK, SOFT, RULE, CARD = "#1c2430", "#64707f", "#e3e7ec", "#ffffff"
OURS = {LEASE: "#2563c9", UID: "#0f8f6f", "IdleRing.touch(uid)": "#6ea8fe"}
FLOOR = "#8b95a3"
OTHERS = ("#d9822b", "#c2322d", "#b08c2e", "#a65b8a", "#4c8c94", "#7a5c3e", "#e07a9a", "#5b8c3a", "#9a3fa0", "#3f5f7f")
COLOURS = (
    OURS
    | {kind.name: FLOOR for kind in peers.FLOORS}
    | {kind.name: OTHERS[index % len(OTHERS)] for index, kind in enumerate(peers.THEIRS)}
)
"""The same peer has the same colour in every plot."""
STYLE = {
    "svg.hashsalt": "reaper",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": SOFT,
    "text.color": INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.facecolor": CARD,
    "axes.facecolor": CARD,
}

PLOTS = {
    "touch": ("touch", "touch_ns", "A touch", "ns"),
    "idle": ("ticks", "idle_us", "A tick with nothing due", "µs"),
    "steady": ("ticks", "steady_mean_ms", "A tick while each connection speaks every ten seconds, mean", "ms"),
    "memory": ("memory", "bytes_fresh", "Memory of a connection, its key not counted", "bytes"),
}


def draw(results: Results, name: str, path: Path) -> bool:
    """Write the plot *name*; False if there is nothing to draw."""
    part, metric, title, unit = PLOTS[name]
    lines: dict[str, list[tuple[int, float]]] = {}
    for peer in results.get(part, "results") or {}:
        points = [
            (n, value)
            for n in results.sizes(part, peer)
            if (value := middle(results.get(part, "results", peer, str(n), metric))) is not None and value > 0
        ]
        # What differs between our two is the touch alone.
        if points and peer != CONTROL and not (part != "touch" and peer == UID):
            lines[peer] = points
    if not lines:
        return False
    with pyplot.rc_context(STYLE):  # type: ignore[arg-type]  # the names are those that matplotlib's table has
        figure, axes = pyplot.subplots(figsize=(9, 4.8))
        for peer, points in lines.items():
            bold = peer in OURS
            axes.plot(*zip(*points, strict=True), color=COLOURS.get(peer, SOFT), linewidth=2.6 if bold else 1.3,
                      marker="o", markersize=4 if bold else 2.5, zorder=3 if bold else 2,
                      linestyle="--" if COLOURS.get(peer) == FLOOR else "-")  # fmt: skip
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
        axes.set_xlabel("connections")
        axes.set_ylabel(unit)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: people(round(value))))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: quantity(value)))
        axes.grid(color=RULE, linewidth=0.8)
        axes.minorticks_off()
        _label(axes, lines, whole=part == "touch")
        figure.tight_layout()
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
    return True


def _label(axes: Axes, lines: dict[str, list[tuple[int, float]]], *, whole: bool) -> None:
    """Each line's name at its right end, in its colour, pushed apart where they would overlap; of ours the class alone
    unless *whole*."""
    right = max(points[-1][0] for points in lines.values())
    _, top = axes.get_ylim()
    bottom = axes.get_ylim()[0]
    # In shares of the axis' height, because that is what a label takes.
    place = axes.transAxes.inverted()
    wanted = sorted(
        (place.transform(axes.transData.transform((points[-1][0], points[-1][1])))[1], peer)
        for peer, points in lines.items()
    )
    height = 0.052
    at: list[float] = []
    for y, _ in wanted:
        at.append(max(y, at[-1] + height) if at else y)
    excess = max(0.0, at[-1] - 1.0)
    for index in range(len(at) - 1, -1, -1):  # push back down what stands above the axis
        ceiling = 1.0 if index == len(at) - 1 else at[index + 1] - height
        at[index] = min(at[index], ceiling) if excess else at[index]
    for y, (_, peer) in zip(at, wanted, strict=True):
        name = peer if whole or peer not in OURS else "IdleReaper" if peer == LEASE else peer.split(".")[0]
        axes.text(1.015, y, name, transform=axes.transAxes, color=COLOURS.get(peer, SOFT), va="center", fontsize=9,
                  fontweight="bold" if peer in OURS else "normal")  # fmt: skip
    axes.set_xlim(right=right * 1.15)
    axes.set_ylim(bottom, top)
