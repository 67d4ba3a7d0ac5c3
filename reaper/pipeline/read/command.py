"""The flags `--events` and `--client` that most commands have, and how what they name is read."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from ...config.flags import Parser
from ..arguments import (
    PUT_ASIDE,
    SHOWN_ASIDE,
    Progress,
    apart,
    aside_lines,
    named,
    place,
    reach,
    remotes,
    require,
    whole,
)
from ..engine import answering
from ..engine.choice import asked_session, choose
from ..places import write_text
from .expected import add_expected, line, silent
from .inputs import Inputs, check, hole_line
from .span import add_span, span_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def add_inputs(parser: Parser, *, required: bool = True, client: bool = True) -> None:
    """Give *parser* the flags that `read_inputs` reads. *client*: with `--client`."""
    parser.add_argument(
        "--events",
        type=place,
        nargs="+",
        default=[],
        required=required,
        metavar="DIR",
        help="journals of servers",
    )
    if client:
        parser.add_argument(
            "--client",
            type=place,
            nargs="+",
            default=[],
            metavar="DIR",
            help="journals of the load generator",
        )
    parser.set_defaults(client=[])
    add_span(parser)
    add_expected(parser)


@contextmanager
def asking(
    name: str, arguments: argparse.Namespace, progress: Progress
) -> Iterator[tuple[SparkSession, Inputs, Inputs | None]]:
    """The session of the command *name*, and what `read_inputs` reads. `--out` is there, and stays
    whole.

    Raises:
        Fault, OSError: an input is not there, nothing can be written to `--out`, or nothing lies
            between `--from` and `--to`. No engine was started for it.
        NoSpark: see `choose` and `open_session`.
    """
    require(named(arguments), arguments.out)
    span_of(arguments)
    apart(arguments.out, [*arguments.events, *arguments.client])
    chosen, why = choose(arguments.engine, arguments.master, named(arguments), arguments.out)
    asked = asked_session(name, chosen, why, arguments.master, not remotes(arguments), progress)
    with asked as session, whole(arguments.out):
        arguments.out.mkdir(parents=True, exist_ok=True)
        yield session, *read_inputs(session, arguments, progress)


def read_inputs(
    spark: SparkSession, arguments: argparse.Namespace, progress: Progress
) -> tuple[Inputs, Inputs | None]:
    """The files that `--events` and `--client` name, checked; None without `--client`.

    Raises:
        Fault: a directory is missing.
    """
    reach(arguments)
    on_spark = answering() == "spark"
    if on_spark:
        spark.conf.set("parquet.page.verify-checksum.enabled", "true")
    span = span_of(arguments)
    checked = partial(check, spark=spark if on_spark else None, span=span, progress=progress)
    server = checked(arguments.events)
    client = checked(arguments.client) if arguments.client else None
    server.silent = silent(arguments.expect, server.files, arguments.expect_within, span)
    sides = [side for side in (server, client) if side]
    aside = [entry for side in sides for entry in side.quarantined]
    lines = [*map(line, server.silent), *aside_lines(aside)]
    for side in sides:
        lines += map(hole_line, side.holes)
        if side.outside:
            lines.append(f"{side.outside} file(s) hold no row of the time asked about")
        if side.growing:
            lines.append(f"{side.growing} stream(s) are no Parquet yet and are not read")
    for text in lines:
        progress(text)
    if len(aside) > SHOWN_ASIDE:
        listed = (f"{entry['path']}: {entry['reason']}\n" for entry in aside)
        write_text(arguments.out / PUT_ASIDE, "".join(listed))
    return server, client
