"""The flags `--events` and `--client` that most commands have, and the command `compact`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...config.flags import Parser
from ..arguments import (
    DAY_NS,
    PUT_ASIDE,
    SHOWN_ASIDE,
    AddCommand,
    Fault,
    Progress,
    apart,
    aside_lines,
    duration_ns,
    named,
    place,
    reach,
    remotes,
    require,
    room,
    show,
    whole,
)
from ..engine import answering, expect
from ..engine.choice import asked_session, choose
from ..hadoop import Remote
from ..places import write_text
from .expected import add_expected, as_list, line, silent
from .inputs import Inputs, check, hole_line
from .manifest import Unsound
from .span import add_span, span_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def add(command: AddCommand) -> None:
    """Declare `compact`."""
    sub = command("compact", _compact, "Journals as one table, bucketed and sorted by connection: faster to ask again.")
    add_inputs(sub, client=False)
    sub.add_argument(
        "--by", choices=["day"], help="a table per day, for --from and --to; connections that cross midnight are in two"
    )
    sub.add_argument(
        "--buckets", type=_buckets, metavar="N", help="how many; default: one for every two million rows, at least 4"
    )


def add_inputs(parser: Parser, *, required: bool = True, client: bool = True) -> None:
    """Give *parser* the flags that `read_inputs` reads. *client*: with `--client`."""
    parser.add_argument(
        "--events",
        type=place,
        nargs="+",
        default=[],
        required=required,
        metavar="DIR",
        help="journals of servers, or compacted tables",
    )
    if client:
        parser.add_argument(
            "--client", type=place, nargs="+", default=[], metavar="DIR", help="journals of the load generator"
        )
    parser.set_defaults(client=[])
    add_span(parser)
    add_expected(parser)
    parser.add_argument("--no-checksums", action="store_true", help="do not verify every page before reading")
    parser.add_argument(
        "--max-age", type=duration_ns, default=3650 * DAY_NS, metavar="DURATION",
        help="put files aside that ended longer ago; default 3650d",
    )  # fmt: skip


@contextmanager
def asking(name: str, arguments: argparse.Namespace, progress: Progress) -> Iterator[SparkSession]:
    """The session of the command *name*, for what `read_inputs` reads.

    Raises:
        Fault, OSError: an input is not there, or nothing can be written to `--out`. No engine was started for it.
        NoSpark: see `choose` and `open_session`.
    """
    require(named(arguments))
    room(arguments.out)
    apart(arguments.out, [*arguments.events, *arguments.client])
    only = "compact writes Spark's buckets" if name == "compact" else None
    chosen, why = choose(arguments.engine, arguments.master, named(arguments), arguments.out, only_spark=only)
    asked = asked_session(name, chosen, why, arguments.master, not remotes(arguments), progress)
    with asked as session, whole(arguments.out):
        yield session


def read_inputs(spark: SparkSession, arguments: argparse.Namespace, progress: Progress) -> tuple[Inputs, Inputs | None]:
    """The files that `--events` and `--client` name, checked; None without `--client`. *spark* is told how many rows.

    Raises:
        Fault: a directory is missing, or a compacted table is not what its manifest says.
    """
    reach(arguments)
    here_alone = answering() == "embedded"
    if not here_alone:
        from .spark_counts import verify

        verify(spark, not arguments.no_checksums)
    span = span_of(arguments)
    options: dict[str, Any] = {
        "spark": None if here_alone else spark,
        "checksums": not arguments.no_checksums,
        "max_age_ns": arguments.max_age,
        "span": span,
        "progress": progress,
    }
    try:
        server = check(arguments.events, **options)
        client = check(arguments.client, **options) if arguments.client else None
    except Unsound as error:
        raise Fault(str(error)) from None
    server.silent = silent(arguments.expect, server.files, arguments.expect_within, span)
    for entry in as_list(server.silent):
        progress(line(entry))
    aside = [entry for found in (server, client) if found for entry in found.quarantined]
    for text in [*aside_lines(aside), *map(hole_line, server.holes + (client.holes if client else []))]:
        progress(text)
    if len(aside) > SHOWN_ASIDE and arguments.out.is_dir():
        listed = (f"{entry['path']}: {entry['reason']}\n" for entry in aside)
        write_text(arguments.out / PUT_ASIDE, "".join(listed))
    for found in (server, client):
        if found and found.outside:
            progress(f"{found.outside} file(s) hold no row of the time asked about")
        if found and found.growing:
            progress(f"{found.growing} stream(s) are no Parquet yet and are not read")
    if not here_alone:
        expect(spark, rows_of(server, client))
    return server, client


def rows_of(server: Inputs, client: Inputs | None = None) -> int:
    """Rows of all good files together."""
    return sum(facts.rows for found in (server, client) if found for facts in found.files)


def _buckets(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 100_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of buckets, 1 to 100000")
    return int(text)


def _compact(arguments: argparse.Namespace, progress: Progress) -> int:
    from .compact import Occupied, as_text, buckets_for, compact, vacant
    from .days import compact_by_day

    try:
        if not isinstance(arguments.out, Remote):
            vacant(arguments.out)
        with asking("compact", arguments, progress) as spark:
            server, _ = read_inputs(spark, arguments, progress)
            if not (rows := rows_of(server)):
                raise Fault(f"nothing to compact: no good file below {', '.join(map(str, arguments.events))}")
            if arguments.by == "day":
                summary = compact_by_day(spark, server, arguments.out, arguments.buckets, progress)
            else:
                summary = compact(spark, server, arguments.out, arguments.buckets or buckets_for(rows), progress)
    except Occupied as error:
        raise Fault(str(error)) from None
    show(arguments, summary, as_text(summary))
    return 1 if summary["quarantined"] or summary["silent_servers"] or summary["holes"] else 0
