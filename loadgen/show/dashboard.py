"""What a person sees while a run goes on: a live display on a terminal, one plain line per second elsewhere.

One rule: drawing happens in the parent and only there; nothing here can make a connection late.
"""

from __future__ import annotations

from time import monotonic
from typing import Protocol, TextIO

from ..drive.fleet import Progress
from ..units import seconds

PLAIN_INTERVAL = 1.0


class Display(Protocol):
    """Shows progress until closed."""

    def show(self, progress: Progress) -> None:
        """Draw it, or not, if it is too soon."""

    def close(self) -> None:
        """Leave the terminal as it was."""


class PlainLines:
    """At most one line per second on *stream*."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.next = 0.0

    def show(self, progress: Progress) -> None:
        now = monotonic()
        if now >= self.next:
            self.next = now + PLAIN_INTERVAL
            print(line(progress), file=self.stream, flush=True)

    def close(self) -> None:
        """Nothing to leave."""


class IdleProtocol:
    """Shows nothing."""

    def show(self, progress: Progress) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def line(progress: Progress) -> str:
    """The state of a run in one line."""
    left = "" if progress.ends is None else f", {seconds(max(progress.ends - progress.now, 0.0)) or '0s'} left"
    bad = [f", {progress.category(name):,} {name}" for name in ("early", "late", "false") if progress.category(name)]
    state = (
        f"{max(progress.now - progress.started, 0):6.1f}s {progress.phase:<7} {progress.total('open'):>7,} open, "
        f"{progress.total('established'):,} established, {progress.category('reaped'):,} reaped{left}"
    )
    return state + "".join(bad)


def display_for(stream: TextIO, quiet: bool = False) -> Display:
    """The display that suits *stream*."""
    if quiet:
        return IdleProtocol()
    if stream.isatty():
        try:
            from .live import LiveDashboard
        except ImportError:  # rich is not installed
            return PlainLines(stream)
        return LiveDashboard(stream)
    return PlainLines(stream)
