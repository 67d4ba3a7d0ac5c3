"""The live dashboard on a terminal: open, reaped, broken promises, rates, a sparkline of lateness, time left.

One rule: it shows what the heartbeats said, and calls it provisional: the verdict comes at the end, from all records
together.
"""

from __future__ import annotations

from collections import deque
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..drive.fleet import Progress
from ..units import seconds

BLOCKS = " ▁▂▃▄▅▆▇█"
SPARKS = 60
"""Heartbeats that the sparkline looks back."""


class LiveDashboard:
    """Draws progress on a terminal, at most four times per second."""

    def __init__(self, stream: TextIO) -> None:
        self.live = Live(console=Console(file=stream), auto_refresh=False, transient=True)
        self.live.start()
        self.worst: deque[float | None] = deque(maxlen=SPARKS)
        self.previous: Progress | None = None

    def show(self, progress: Progress) -> None:
        """Draw *progress*."""
        self.worst.append(max(progress.lateness, default=None))
        self.live.update(self._panel(progress), refresh=True)
        self.previous = progress

    def close(self) -> None:
        """Take the display away; what is printed next stands where it stood."""
        self.live.stop()

    def _panel(self, progress: Progress) -> RenderableType:
        law = progress.plan.law
        figures = Table.grid(padding=(0, 2))
        figures.add_row(
            _figure("open", progress.total("open")),
            _figure("reaped", progress.category("reaped")),
            *(_figure(name, progress.category(name), bad=True) for name in ("early", "late", "false")),
            _figure("failed", progress.total("failed"), bad=True),
            Text(f"{self._rate(progress, 'actions'):,.0f} actions/s", style="dim"),
        )
        return Panel(
            Group(
                figures,
                Text.assemble(
                    ("lateness ", "dim"), sparkline(self.worst, law.tick), (f"  0 .. {seconds(law.tick)}", "dim")
                ),
                _bar(progress),
            ),
            title=f"loadgen: {progress.plan.connections:,} connections, timeout {seconds(law.timeout)}",
            border_style="red" if any(progress.category(name) for name in ("early", "late", "false")) else "green",
        )

    def _rate(self, progress: Progress, name: str) -> float:
        before = self.previous
        if before is None or progress.now <= before.now:
            return 0.0
        return (progress.total(name) - before.total(name)) / (progress.now - before.now)


def sparkline(values: deque[float | None], full: float) -> Text:
    """One block per value, a full one for *full* or more (red beyond it, or below 0); None is a gap."""
    text = Text()
    for value in values:
        if value is None:
            text.append(" ")
        else:
            height = round(min(max(value / full, 0.0), 1.0) * (len(BLOCKS) - 2)) + 1
            text.append(BLOCKS[height], "red" if not 0 <= value <= full else "green")
    return text


def _figure(name: str, value: int, bad: bool = False) -> Text:
    style = ("bold red" if value else "green") if bad else "bold"
    return Text.assemble((f"{value:,} ", style), (name, "dim"))


def _bar(progress: Progress) -> RenderableType:
    row = Table.grid(padding=(0, 1))
    if progress.ends is None:
        done, total = progress.total("established"), progress.plan.connections
        words = f"connecting: {done:,} of {total:,}"
        bar = ProgressBar(total=total, completed=done, width=40)
    else:
        left = max(progress.ends - progress.now, 0.0)
        duration = progress.plan.duration
        words = f"holding: {left:.0f}s left" if left else "watching what is overdue"
        bar = ProgressBar(total=duration, completed=duration - left, width=40)
    row.add_row(bar, Text(words, style="dim"))
    return row
