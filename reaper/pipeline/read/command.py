"""The command `compact`."""

from __future__ import annotations

import argparse

from ..arguments import AddCommand, Fault, Progress, add_inputs, read_inputs, rows_of, show
from ..session import open_session


def add(command: AddCommand) -> None:
    """Declare `compact`."""
    sub = command("compact", _compact, "Journals as one table, bucketed and sorted by connection: faster to ask again.")
    add_inputs(sub, client=False)
    sub.add_argument(
        "--buckets", type=_buckets, metavar="N", help="how many; default: one for every two million rows, at least 4"
    )


def _buckets(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 100_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of buckets, 1 to 100000")
    return int(text)


def _compact(arguments: argparse.Namespace, progress: Progress) -> int:
    from .compact import Occupied, as_text, buckets_for, compact, vacant

    try:
        vacant(arguments.out)
        server, _ = read_inputs(arguments, progress)
        rows = rows_of(server, None)
        if not rows:
            raise Fault(f"nothing to compact: no good file below {', '.join(map(str, arguments.events))}")
        progress("starting Spark")
        with open_session("compact", arguments.master, rows=rows) as spark:
            summary = compact(spark, server, arguments.out, arguments.buckets or buckets_for(rows), progress)
    except Occupied as error:
        raise Fault(str(error)) from None
    show(arguments, summary, as_text(summary))
    return 1 if summary["quarantined"] else 0
