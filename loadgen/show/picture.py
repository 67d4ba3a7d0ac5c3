"""The picture of a run: lateness of every reap against the one-tick line.

One rule: the law is drawn first, the data on top, and the title says the verdict. matplotlib is imported only here,
on demand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..judge.report import LATENESS_BUCKETS_PER_TICK
from ..judge.words import headline
from ..units import BadArgument, seconds
from .page import SHOWN_TICKS

INK, MUTED, GOOD, BAD, LAW = "#1f2933", "#7b8794", "#2f7d6d", "#c0392b", "#e9f3f0"


def draw_lateness(report: dict[str, Any], path: Path) -> None:
    """Draw the lateness histogram of *report* to the PNG file *path*.

    Raises:
        BadArgument: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib.figure import Figure
    except ImportError:
        raise BadArgument("--png needs matplotlib: pip install matplotlib, or leave the option out") from None
    tick = report["config"]["tick_s"]
    width = tick / LATENESS_BUCKETS_PER_TICK
    bars = report["lateness_histogram"]["bars"]
    left = min([edge for edge, _ in bars] + [-0.12 * tick])
    right = min(max([edge + width for edge, _ in bars] + [1.15 * tick]), SHOWN_TICKS * tick)
    outside = sum(count for edge, count in bars if edge >= right)
    bars = [(edge, count) for edge, count in bars if edge < right]
    figure = Figure(figsize=(10, 5.2), dpi=150, facecolor="white")
    axes = figure.add_axes((0.08, 0.13, 0.88, 0.66))
    axes.axvspan(0, tick, color=LAW, zorder=0)
    axes.axvspan(left, 0, facecolor="none", edgecolor=BAD, hatch="///", alpha=0.25, zorder=0)
    axes.bar(
        [edge for edge, _ in bars],
        [count for _, count in bars],
        width=width * 0.92,
        align="edge",
        color=[BAD if edge < 0 else GOOD for edge, _ in bars],
        zorder=2,
    )
    axes.axvline(0, color=INK, linewidth=1, zorder=3)
    axes.axvline(tick, color=INK, linewidth=1.6, linestyle=(0, (5, 3)), zorder=3)
    axes.set_xlim(left, right)
    top = axes.get_ylim()[1] * 1.12 or 1
    axes.set_ylim(0, top)
    axes.text(tick, top * 0.985, f" one tick ({seconds(tick)})", color=INK, va="top", fontsize=9)
    axes.text(0, top * 0.985, "early ", color=BAD, va="top", ha="right", fontsize=9)
    if outside:
        axes.text(right, top * 0.985, f"{outside:,} later than this ", color=MUTED, va="top", ha="right", fontsize=9)
    axes.set_xlabel("lateness: seconds from the last byte sent + timeout to the close the client saw", color=INK)
    axes.set_ylabel(f"reaps per {seconds(width)}", color=INK)
    axes.tick_params(colors=MUTED)
    axes.grid(axis="y", color="#e4e7eb", linewidth=0.7, zorder=1)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    reaps, lateness = report["reaps"], report["lateness_s"]
    passed = report["verdict"] == "pass"
    title = headline(report)
    figure.text(
        0.08, 0.93, title,
        color=GOOD if passed else BAD, fontsize=15, fontweight="bold", va="center",
    )  # fmt: skip
    figures = "   ".join(
        f"{name} {seconds(lateness[name])}" for name in ("min", "p50", "p99", "max") if lateness[name] is not None
    )
    counts = "   ".join(f"{reaps[name]} {name}" for name in ("early", "late", "missed", "false"))
    scale = f"{report['connections']['established']:,} connections, timeout {seconds(report['config']['timeout_s'])}"
    figure.text(
        0.08, 0.865, f"{counts}   |   {figures}   |   {scale}",
        color=MUTED, fontsize=9.5, va="center",
    )  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
