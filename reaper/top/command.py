"""`python -m reaper top`: the flags.

The rule of this module: *declaring a command loads nothing of it*. Every `reaper` command knows these flags, and
this one alone needs what speaks HTTP and what draws.
"""

from __future__ import annotations

import argparse
from typing import Any

from ..config.flags import duration


def add_commands(commands: Any) -> None:
    """Add `top` to *commands*, argparse's subparsers."""
    top = commands.add_parser(
        "top",
        help="watch a server's connections live: phases, silence, what is due next",
        description="A live view of a server's connections on a terminal; in a pipe, one picture. It touches nothing. "
        "Ctrl-C ends it. Exit status: 0 ended, 2 it cannot be done.",
    )
    source = top.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--connect", metavar="URL", help="a server with reaper in it, by its status: http://127.0.0.1:9180"
    )
    source.add_argument("--pid", type=int, metavar="N", help="any server, by what the kernel knows of its connections")
    top.add_argument(
        "--interval", type=duration(0.1), default=2.0, metavar="DURATION", help="between two pictures; default 2s"
    )
    top.add_argument("--once", action="store_true", help="print one picture and end")
    top.add_argument("--json", action="store_true", help="print one status document and end")
    top.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    from .run import run

    return run(parsed)
