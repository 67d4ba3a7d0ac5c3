"""The command `live`."""

from __future__ import annotations

import argparse
from pathlib import Path

from .arguments import AddCommand, Progress, duration_ns, require, show
from .session import open_session


def add(command: AddCommand) -> None:
    """Declare `live`."""
    sub = command("live", _live, "Follow a growing journal: windowed figures and idle connections across servers.")
    sub.add_argument("--events", type=Path, required=True, metavar="DIR", help="a journal, still written to")
    sub.add_argument(
        "--for", type=duration_ns, dest="seconds_ns", metavar="DURATION", help="stop after it; default: at once"
    )
    sub.add_argument(
        "--window", type=duration_ns, default=10 * 10**9, metavar="DURATION", help="of the figures; default 10s"
    )
    sub.add_argument(
        "--delay", type=duration_ns, default=60 * 10**9, metavar="DURATION", help="how late rows may come; default 60s"
    )
    sub.add_argument("--drain", action="store_true", help="nobody writes any more: let the last connections come out")


def _live(arguments: argparse.Namespace, progress: Progress) -> int:
    from .live import as_text, follow

    require([arguments.events])
    progress("starting Spark")
    with open_session("live", arguments.master) as spark:
        summary = follow(
            spark,
            arguments.events,
            arguments.out,
            window_ns=arguments.window,
            delay_ns=arguments.delay,
            seconds=(arguments.seconds_ns or 0) / 1e9,
            drain=arguments.drain,
            progress=progress,
        )
    show(arguments, summary, as_text(summary))
    return 1 if summary["dropped_by_watermark"] else 0
