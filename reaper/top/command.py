"""`python -m reaper top`: its flags, and the loop that asks, draws and waits until
Ctrl-C.

The rule of this module: *in a pipe it prints once and ends; on a terminal it outlives
the server it watches*. Every `reaper` command knows these flags, so the modules that
draw and that speak HTTP are imported where they are needed.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from typing import Any, NoReturn

from ..config.flags import duration
from ..errors import ReaperError, needs, printable
from .picture import ADDRESS, PHASE, Picture, picture_of, rates
from .sources import SEES, Http, Kernel, Unreachable

GOOD, UNUSABLE = 0, 2
Source = Http | Kernel


def add_commands(commands: Any) -> None:
    """Add `top` to *commands*, argparse's subparsers."""
    top = commands.add_parser(
        "top",
        help="watch a server's connections live: phases, silence, what is due next",
        description="A live view of a server's connections on a terminal; in a pipe, one picture. "
        "It touches nothing. Ctrl-C ends it. Exit status: 0 ended, 2 it cannot be done.",
    )
    source = top.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--connect",
        metavar="URL",
        help="a server with reaper in it, by its status: http://127.0.0.1:9180",
    )
    source.add_argument(
        "--pid",
        type=int,
        metavar="N",
        help="any server, by what the kernel knows of its connections",
    )
    top.add_argument(
        "--interval",
        type=duration(0.1),
        default=2.0,
        metavar="DURATION",
        help="between two pictures; default 2s",
    )
    top.add_argument(
        "--by",
        choices=(PHASE, ADDRESS),
        default=PHASE,
        help="what connections are counted by, with --pid; default phase",
    )
    top.add_argument("--once", action="store_true", help="print one picture and end")
    top.add_argument("--json", action="store_true", help="print one status document and end")
    top.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    try:
        if parsed.connect is not None and parsed.by != PHASE:
            raise ReaperError(
                f"--by {parsed.by} needs --pid N in the place of --connect: "
                "a status does not name every client"
            )
        source = Kernel(parsed.pid, parsed.by) if parsed.connect is None else Http(parsed.connect)
        if parsed.json:
            print(json.dumps(source.ask()))
            sys.stdout.flush()
            return GOOD
        with needs("top without --json", "idle-reaper[cli]"):
            from rich.console import Console
        console = Console(highlight=False)
        found = _picture(source)
        if parsed.once or not console.is_terminal:
            for line in _drawn(console, None, found, {}, _now()):
                console.print(line, no_wrap=True, crop=True)
        else:
            _live(console, source, found, parsed.interval)
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:  # The reader has gone; `reaper.__main__` ends in silence.
        raise
    except (ReaperError, OSError) as error:
        print(f"top: {printable(str(error))}", file=sys.stderr)
        return UNUSABLE
    return GOOD


def _picture(source: Source) -> Picture:
    found = source.ask()
    if found.get("workers") == [] and not found.get("missing"):
        raise Unreachable(f"{source.name}: no guarded server is known to that status: {SEES}")
    try:
        return picture_of(found)
    except (KeyError, TypeError, ValueError) as error:
        raise Unreachable(
            f"{source.name} gave a status that cannot be read: {type(error).__name__}: {error}"
        ) from None


def _drawn(
    console: Any,
    height: int | None,
    found: Picture,
    rate: dict[str, float],
    clock: str,
    trouble: str = "",
) -> list[Any]:
    from .view import Frame, draw

    return draw(
        found, rate, Frame(console.width, height, console.options.ascii_only), clock, trouble
    )


def _now() -> str:
    return time.strftime("%H:%M:%S")


def _live(console: Any, source: Source, found: Picture, interval: float) -> None:
    from rich.console import Group
    from rich.live import Live

    before: Picture | None = None
    clock, trouble, answered = _now(), "", time.monotonic()
    old = signal.signal(signal.SIGTERM, _ended)
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                drawn = _drawn(console, console.height, found, rates(before, found), clock, trouble)
                live.update(Group(*drawn), refresh=True)
                time.sleep(interval)
                try:
                    before, found = found, _picture(source)
                    clock, trouble, answered = _now(), "", time.monotonic()
                except Unreachable as error:
                    waited = time.monotonic() - answered
                    trouble = f"no answer for {waited:.0f} s, asking again: {printable(str(error))}"
    finally:
        signal.signal(signal.SIGTERM, old)


def _ended(signum: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt  # so that the terminal is given back as it was
