"""What a person sees while a run goes on: one line, which stays in its place on a terminal.

One rule: it shows what the heartbeats said, and nothing here can make a connection late. The verdict comes at the end,
from all records together.
"""

from __future__ import annotations

from time import monotonic
from typing import TextIO

from ..drive.fleet import Progress
from ..units import seconds

PLAIN_INTERVAL = 1.0
"""Seconds between two lines where there is no terminal."""
CLEAR = "\r\x1b[K"
"""What takes a terminal's line away."""


class Display:
    """Draws progress on *stream*: as often as it hears on a terminal, a line per second elsewhere, never if *quiet*."""

    def __init__(self, stream: TextIO, quiet: bool = False) -> None:
        self.stream = stream
        self.live = stream.isatty() and not quiet
        self.next = float("inf") if quiet else 0.0

    def show(self, progress: Progress) -> None:
        """Draw it, or not, if it is too soon."""
        now = monotonic()
        if now < self.next:
            return
        if self.live:
            print(CLEAR + line(progress), end="", file=self.stream, flush=True)
        else:
            self.next = now + PLAIN_INTERVAL
            print(line(progress), file=self.stream, flush=True)

    def close(self) -> None:
        """Leave the terminal as it was; what is printed next stands where the line stood."""
        if self.live:
            print(CLEAR, end="", file=self.stream, flush=True)


def line(progress: Progress) -> str:
    """The state of a run in one line."""
    left = "" if progress.ends is None else f", {seconds(max(progress.ends - progress.now, 0.0)) or '0s'} left"
    counts = {name: progress.category(name) for name in ("early", "late", "false")}
    bad = [f", {count:,} {name}" for name, count in counts.items() if count]
    state = (
        f"{max(progress.now - progress.started, 0):6.1f}s {progress.phase:<7} {progress.total('open'):>7,} open, "
        f"{progress.total('established'):,} established, {progress.category('reaped'):,} reaped{left}"
    )
    return state + "".join(bad)
