"""Shows an examination to people: how far it is, and what was found.

The rule of this module: *a command stands on a line of its own*, so that it can be
copied. Colours are for a terminal, and none if NO_COLOR is set.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..errors import needs, printable
from .facts import Examination, Guards
from .findings import Finding, spelled
from .streams import streams

WIDEST = 100
"""Columns after which text is hard to read."""


def _deserted(seen: Examination, now: float) -> str:
    """Since when nobody has been connected, at the wall time *now*."""
    ago = seen.deserted or 0.0
    since = time.strftime("%H:%M:%S", time.localtime(now - ago))
    longer = "" if seen.ever_visited else ", or longer"
    return f"nobody has been connected since {since}, {spelled(ago)} ago{longer}"


OF_RUN = {
    "watches": "`reaper run` stands around it, and its watcher (process {pid}) is alive: the lines on "
    "its standard error say what is guarded",
    "ended": "not from outside any more: the watcher of its `reaper run` (process {pid}) has ended; "
    "a Python server that guards itself still does",
    "inside": "from inside, if it is a Python server that `reaper run` knows: REAPER_RUN is set; no "
    "watcher guards it from outside",
    "no": "not by `reaper run`; what a server does inside itself cannot be seen from outside",
    None: "by `reaper run`, that cannot be seen: its processes or a watcher may not be looked into",
}
"""What is said of `Guards.run`."""


def guarded(found: Guards) -> str:
    """Whether reaper guards the server, in words."""
    if found.run is None and found.watcher == 0:  # its environment is overwritten, or hidden
        said = (
            "no watcher of `reaper run` stands around it; what a server does inside itself cannot "
            "be seen from outside"
        )
    else:
        said = OF_RUN[found.run].format(pid=found.watcher or found.ended)
    by = [f"process {pid}, which closes" for pid in found.closing]
    by += [f"process {pid}, which closes nothing" for pid in found.looking]
    return "; ".join([f"by `reaper attach` ({', '.join(by)})", said] if by else [said])


@contextmanager
def progress(target: str, seconds: float, wanted: bool) -> Iterator[Callable[[int], None]]:
    """A function that is told how many connections there are, and shows on a terminal,
    in one line of standard error, how far the looking is; the line is gone when the
    block ends.
    """
    began = time.monotonic()
    shown = wanted and sys.stderr.isatty()

    def tell(connections: int) -> None:
        if shown:
            gone = min(time.monotonic() - began, seconds)
            bar = ("=" * int(20 * gone / seconds)).ljust(20)
            text = f"[{bar}] {gone:.0f} of {seconds:.0f} s: {target}, {connections:,} connections"
            columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80  # 0: it does not say
            room = columns - 1  # a full line would wrap
            print(f"\r\x1b[K{text[:room]}", end="", file=sys.stderr, flush=True)

    try:
        yield tell
    finally:
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def show(target: str, seen: Examination, found: Sequence[Finding], missing: Sequence[str]) -> None:
    """Print what was found at *target*, and what was not judged, to standard output."""
    with needs("doctor without --json", "idle-reaper[cli]"):
        from rich.console import Console
    draw(Console(highlight=False, soft_wrap=False), target, seen, found, missing, time.time())


def draw(
    console: Any,
    target: str,
    seen: Examination,
    found: Sequence[Finding],
    missing: Sequence[str],
    now: float,
) -> None:
    """The same on *console*, a rich one, at the wall time *now*."""
    from rich.text import Text

    width = min(console.width, WIDEST) if console.is_terminal else WIDEST

    def put(text: Text, label: str = "", indent: int = 0, folds: bool = True) -> None:
        """Print *text* after *label*, with all its lines *indent* columns from the
        left.
        """
        lines = text.wrap(console, width - indent) if folds else [text]
        for number, line in enumerate(lines):
            line.rstrip()
            before = (label if not number else "").ljust(indent)
            console.print(Text.assemble((before, "dim"), line), soft_wrap=True)

    connections = len(seen.last.connections)
    names = sorted({one.name for one in seen.last.processes})
    head = Text(target, "bold")
    head.append(f" ({', '.join(names)})" if names else "", "not bold")
    head.append(f", {connections:,} connections, looked at for {seen.seconds:.0f} s: ", "not bold")
    if found:
        head.append(f"{len(found)} finding{'s' * (len(found) > 1)}", "red")
    else:
        head.append("nothing is wrong", "green")
    put(head)
    put(Text(guarded(seen.guards)), "guarded", 10)
    if (open_now := streams(seen)).many:
        put(Text(str(open_now)), "streams", 10)
    if seen.deserted is not None:
        put(Text(_deserted(seen, now)), "clients", 10)
    for number, one in enumerate(found, 1):
        console.print()
        put(Text(f"{number} {one.kind}", "bold yellow"))
        put(Text(one.words), indent=2)
        facts = {"seen": one.seen.evidence, "example": one.seen.example}
        if one.seen.seconds is not None:
            since = time.localtime(now - one.seen.seconds)
            clock = time.strftime("%H:%M:%S" if one.seen.seconds < 43200 else "%d %B %H:%M", since)
            facts["since"] = f"{clock}, {spelled(one.seen.seconds)} ago, or longer"
        for label in ("seen", "since", "example"):
            if text := printable(facts.get(label, "")):
                put(Text(text), f"  {label}", 10)
        put(Text(printable(one.seen.mend), "bold cyan"), "  mend", 10, folds=False)
    if missing:
        console.print()
    for one_line in missing:
        put(Text(one_line, "dim"), "not judged", 12)
