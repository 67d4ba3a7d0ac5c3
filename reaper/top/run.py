"""What `python -m reaper top` does: asks, draws, waits; until Ctrl-C.

The rule of this module: *in a pipe it prints once and ends; on a terminal it outlives the server it watches*.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from typing import Any, NoReturn

from ..errors import NotInstalled, ReaperError, needs, printable
from .picture import Picture, picture_of, rates
from .sources import Http, Kernel, Unreachable

GOOD, UNUSABLE = 0, 2
Source = Http | Kernel


def run(parsed: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    try:
        source = _source(parsed)
    except (ReaperError, OSError) as error:
        return _refuse(str(error))
    try:
        if parsed.json:
            print(json.dumps(source.ask()))
            sys.stdout.flush()
            return GOOD
        with needs("top without --json", "idle-reaper[cli]"):
            from rich.console import Console
        console = Console(highlight=False)
        found = _picture(source)
        if parsed.once or not console.is_terminal:
            _print(console, found)
        else:
            _live(console, source, found, parsed.interval)
    except (Unreachable, NotInstalled) as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        pass
    finally:
        if isinstance(source, Kernel):
            source.close()
    return GOOD


def _refuse(why: str) -> int:
    print(f"top: {printable(why)}", file=sys.stderr)
    return UNUSABLE


def _source(parsed: argparse.Namespace) -> Source:
    if parsed.connect is not None:
        return Http(parsed.connect)
    with needs("top --pid", "idle-reaper[attach]"):
        return Kernel(parsed.pid)


def _picture(source: Source) -> Picture:
    try:
        return picture_of(source.ask())
    except (KeyError, TypeError, ValueError) as error:
        raise Unreachable(f"{source.name} gave a status that cannot be read: {type(error).__name__}: {error}") from None


def _print(console: Any, found: Picture) -> None:
    from .view import Frame, draw

    frame = Frame(console.width, None, console.options.ascii_only)
    for line in draw(found, {}, frame, time.strftime("%H:%M:%S")):
        console.print(line, no_wrap=True, crop=True)


def _live(console: Any, source: Source, found: Picture, interval: float) -> None:
    from rich.console import Group
    from rich.live import Live

    from .view import Frame, draw

    def show() -> None:
        frame = Frame(console.width, console.height, console.options.ascii_only)
        live.update(Group(*draw(found, rates(before, found), frame, clock, trouble)), refresh=True)

    before: Picture | None = None
    clock, trouble = time.strftime("%H:%M:%S"), ""
    answered = time.monotonic()
    old = signal.signal(signal.SIGTERM, _ended)
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            show()
            while True:
                time.sleep(interval)
                try:
                    newer = _picture(source)
                    before, found, answered = found, newer, time.monotonic()
                    clock, trouble = time.strftime("%H:%M:%S"), ""
                except Unreachable as error:
                    waited = time.monotonic() - answered
                    trouble = f"no answer for {waited:.0f} s, asking again: {printable(str(error))}"
                show()
    finally:
        signal.signal(signal.SIGTERM, old)


def _ended(signum: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt  # the terminal is given back as it was
