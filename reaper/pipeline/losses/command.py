"""The command `losses`."""

from __future__ import annotations

import argparse

from ..advise.access_logs import log_files
from ..arguments import (
    AddCommand,
    Progress,
    add_format,
    check_format,
    place,
    positive_ns,
    require,
    show,
    write_answer,
)
from ..read.command import Request, asking
from .formats import KNOWN


def add(command: AddCommand) -> None:
    """Declare `losses`."""
    sub = command(
        "losses",
        _losses,
        "Which requests a proxy lost to an idle close, and the keep_alive that ends it.",
    )
    sub.add_argument(
        "--logs",
        type=place,
        nargs="+",
        required=True,
        metavar="FILE",
        help="logs of the proxy",
    )
    add_format(sub, KNOWN)
    sub.add_argument(
        "--proxy-idle",
        type=positive_ns,
        metavar="DURATION",
        help="how long the proxy keeps an idle connection to a server; default: its own",
    )
    sub.set_defaults(events=[], client=[], since=None, until=None, expect=(), expect_within=0)


def _losses(arguments: argparse.Namespace, progress: Progress) -> int:
    check_format(arguments)
    require(arguments.logs, arguments.out)
    paths = log_files(arguments.logs)
    idle_s = arguments.proxy_idle / 1e9 if arguments.proxy_idle else None
    request = Request.of("losses", arguments)
    with asking(request, progress) as (spark, _, _):
        from .run import as_text, losses

        result = losses(spark, arguments.format, paths, idle_s, progress)
        text = as_text(result)
        write_answer(request.out, "losses", result, text)
    show(arguments.json, result, text)
    return 0 if result["result"] == "pass" else 1
