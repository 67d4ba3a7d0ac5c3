"""The command `what-if`: its flags, and the rows that they ask for."""

from __future__ import annotations

import argparse

from ...config.flags import Parser
from ..arguments import AddCommand, Fault, Progress, show, write_answer
from ..read.command import Request, add_inputs, asking
from .settings import parse


def add(command: AddCommand) -> None:
    """Declare `what-if`."""
    sub: Parser = command(
        "what-if",
        _what_if,
        "Replay a journal under other settings, and say how well each is known.",
    )
    add_inputs(sub, client=False)
    sub.add_argument(
        "--set", nargs="+", action="append", default=[], metavar="KEY=VALUE", dest="sets",
        help="one row: timeout=20s, timeout.LISTENER=20s, timeout.LISTENER@75s=60s (only where 75s "
             "was in force), "
        "tick=100ms; may be repeated",
    )  # fmt: skip
    sub.add_argument(
        "--timeouts",
        default="",
        metavar="D,D,...",
        help="a row for each, as --set timeout=D makes it",
    )


def _what_if(arguments: argparse.Namespace, progress: Progress) -> int:
    timeouts = [
        [f"timeout={text.strip()}"] for text in arguments.timeouts.split(",") if text.strip()
    ]
    sets = [*timeouts, *arguments.sets]
    if not sets:
        raise Fault("nothing to compare: give --timeouts or --set")
    for words in sets:
        parse(words)  # what makes no sense is said before Spark is started
    request = Request.of("what-if", arguments)
    with asking(request, progress) as (spark, server, _):
        from .run import as_text, what_if

        summary = what_if(spark, server, sets, progress)
        text = as_text(summary)
        write_answer(request.out, "what-if", summary, text)
    show(arguments.json, summary, text)
    asked = summary["rows"][1:]
    if all(row["refused"] for row in asked):
        raise Fault(f"the log cannot tell: {asked[0]['refused']}")
    return 0 if summary["result"] == "pass" else 1
