"""What a person sees while a run goes on: a live display on a terminal, one plain line per second elsewhere.

One rule: it shows what the heartbeats said, and nothing here can make a connection late. The verdict comes at the end,
from all records together.
"""

from __future__ import annotations

from collections import deque
from time import monotonic
from typing import Any, TextIO

from ..drive.fleet import Progress
from ..units import seconds

PLAIN_INTERVAL = 1.0
BLOCKS = " ▁▂▃▄▅▆▇█"
SPARKS = 60
"""Heartbeats that the sparkline looks back."""
PROMISES = ("early", "late", "false")


class PlainLines:
    """At most one line per *interval* on *stream*."""

    def __init__(self, stream: TextIO, interval: float = PLAIN_INTERVAL) -> None:
        self.stream = stream
        self.interval = interval
        self.next = 0.0 if interval < float("inf") else interval  # infinite: quiet

    def show(self, progress: Progress) -> None:
        """Draw it, or not, if it is too soon."""
        now = monotonic()
        if now >= self.next:
            self.next = now + self.interval
            print(line(progress), file=self.stream, flush=True)

    def close(self) -> None:
        """Leave the terminal as it was."""


def line(progress: Progress) -> str:
    """The state of a run in one line."""
    left = "" if progress.ends is None else f", {seconds(max(progress.ends - progress.now, 0.0)) or '0s'} left"
    bad = [f", {progress.category(name):,} {name}" for name in PROMISES if progress.category(name)]
    state = (
        f"{max(progress.now - progress.started, 0):6.1f}s {progress.phase:<7} {progress.total('open'):>7,} open, "
        f"{progress.total('established'):,} established, {progress.category('reaped'):,} reaped{left}"
    )
    return state + "".join(bad)


class LiveDashboard(PlainLines):
    """Draws progress on a terminal, at most four times per second.

    Raises:
        ImportError: rich is not installed.
    """

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__(stream)
        self.live = Live(console=Console(file=stream), auto_refresh=False, transient=True)
        self.live.start()
        self.worst: deque[float | None] = deque(maxlen=SPARKS)
        self.before: tuple[float, int] = (0.0, 0)

    def show(self, progress: Progress) -> None:
        self.worst.append(max(progress.lateness, default=None))
        self.live.update(self._panel(progress), refresh=True)
        self.before = progress.now, progress.total("actions")

    def close(self) -> None:
        self.live.stop()

    def _panel(self, progress: Progress) -> Any:
        from rich.console import Group
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        plan, (then, acted) = progress.plan, self.before
        rate = (progress.total("actions") - acted) / (progress.now - then) if 0 < then < progress.now else 0.0
        counts = {name: progress.category(name) for name in PROMISES} | {"failed": progress.total("failed")}
        figures = Text(f"{progress.total('open'):,} open  {progress.category('reaped'):,} reaped  ", "bold")
        for name, count in counts.items():
            figures.append(f"{count:,} {name}  ", "bold red" if count else "green")
        figures.append(f"{rate:,.0f} actions/s", "dim")
        tick = f"  0 .. {seconds(plan.law.tick)}"
        lateness = Text.assemble(("lateness ", "dim"), sparkline(self.worst, plan.law.tick), (tick, "dim"))
        if progress.ends is None:
            done: float = progress.total("established")
            total: float = plan.connections
            words = f"connecting: {done:,} of {total:,}"
        else:
            left, total = max(progress.ends - progress.now, 0.0), plan.duration
            done = total - left
            words = f"holding: {left:.0f}s left" if left else "watching what is overdue"
        return Panel(
            Group(figures, lateness, ProgressBar(total=total, completed=done, width=40), Text(words, "dim")),
            title=f"loadgen: {plan.connections:,} connections, timeout {seconds(plan.law.timeout)}",
            border_style="red" if any(counts[name] for name in PROMISES) else "green",
        )


def sparkline(values: deque[float | None], full: float) -> Any:
    """One block per value, a full one for *full* or more (red beyond it, or below 0); None is a gap."""
    from rich.text import Text

    text = Text()
    for value in values:
        if value is None:
            text.append(" ")
        else:
            height = round(min(max(value / full, 0.0), 1.0) * (len(BLOCKS) - 2)) + 1
            text.append(BLOCKS[height], "red" if not 0 <= value <= full else "green")
    return text


def display_for(stream: TextIO, quiet: bool = False) -> PlainLines:
    """The display that suits *stream*."""
    if not quiet and stream.isatty():
        try:
            return LiveDashboard(stream)
        except ImportError:
            pass
    return PlainLines(stream, float("inf") if quiet else PLAIN_INTERVAL)
