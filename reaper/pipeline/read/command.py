"""What most commands ask: the flags `--events` and `--client`, the request that a
command makes of its arguments, and how what it names is read.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ...config.flags import Parser
from ...errors import printable
from ..arguments import (
    PUT_ASIDE,
    SHOWN_ASIDE,
    Fault,
    Progress,
    apart,
    aside_lines,
    place,
    require,
    whole,
)
from ..engine import answering
from ..engine.choice import asked_session, choose, is_little
from ..places import Place, Remote, write_text
from .expected import add_expected, line, silent
from .inputs import Inputs, check, hole_line
from .span import Span, add_span, span_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def add_inputs(parser: Parser, *, required: bool = True, client: bool = True) -> None:
    """Give *parser* the flags of a `Request`. *client*: with `--client`."""
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


@dataclass(frozen=True, slots=True)
class Request:
    """What a command reads, where its answer goes, and which engine it asks.

    A command makes it of its arguments; nothing behind the command sees those.
    """

    name: str
    """The name of the command."""
    events: Sequence[Place]
    client: Sequence[Place]
    logs: Sequence[Place]
    out: Place
    engine: str
    """One of `choice.CHOICES`."""
    master: str | None
    """A Spark master; None: what the environment says."""
    span: Span
    """The time that is asked about."""
    expected: Sequence[str]
    """Servers that ought to be there."""
    within_ns: int
    """How long one of them may leave no row."""

    @classmethod
    def of(cls, name: str, arguments: argparse.Namespace) -> Request:
        """The request of the command *name*, whose parser has the flags of
        `add_inputs`.

        Raises:
            Fault: nothing lies between `--from` and `--to`.
        """
        return cls(
            name=name,
            events=arguments.events,
            client=arguments.client,
            logs=getattr(arguments, "logs", ()),
            out=arguments.out,
            engine=arguments.engine,
            master=arguments.master,
            span=span_of(arguments),
            expected=arguments.expect,
            within_ns=arguments.expect_within,
        )

    @property
    def inputs(self) -> list[Place]:
        """Everything that is read."""
        return [*self.events, *self.client, *self.logs]

    @property
    def elsewhere(self) -> list[Remote]:
        """The places that are not on this machine, the output last. Only a Spark driver
        in this process can reach them.
        """
        return [where for where in (*self.inputs, self.out) if isinstance(where, Remote)]

    def reach(self) -> None:
        """Make sure that every file system answers that is named. Asked once Spark has
        started.

        Raises:
            Fault: nothing is where input is to be.
            OSError: a file system does not answer.
        """
        for where in self.elsewhere:
            if not where.exists() and where is not self.out:
                raise Fault(f"no such file or directory: {where}")


@contextmanager
def asking(
    request: Request, progress: Progress
) -> Iterator[tuple[SparkSession, Inputs, Inputs | None]]:
    """A session for *request*, and what `read_inputs` reads. The output's directory is
    made; where the command fails, nothing new is left in it.

    Raises:
        Fault, OSError: an input is not there, or nothing can be written to the output.
            No engine was started for it.
        NoSpark: see `choose` and `open_session`.
    """
    require(request.inputs, request.out)
    apart(request.out, [*request.events, *request.client])
    chosen, why = choose(request.engine, request.master, request.inputs, request.out)
    connect = not request.elsewhere
    little = chosen == "spark" and not request.logs and is_little(request.inputs)
    asked = asked_session(request.name, chosen, why, request.master, connect, little, progress)
    with asked as session, whole(request.out):
        request.out.mkdir(parents=True, exist_ok=True)
        yield session, *read_inputs(session, request, progress)


def read_inputs(
    spark: SparkSession, request: Request, progress: Progress
) -> tuple[Inputs, Inputs | None]:
    """The files of *request*, checked; the client's are None where none are asked for.

    Raises:
        Fault: a directory is missing, or both sides are to be one journal.
    """
    request.reach()
    on_spark = answering() == "spark"
    if on_spark:
        spark.conf.set("parquet.page.verify-checksum.enabled", "true")
    span = request.span
    checked = partial(check, spark=spark if on_spark else None, span=span, progress=progress)
    server = checked(request.events)
    client = checked(request.client) if request.client else None
    if client is not None:
        _of_two_writers(server, client)
    server.silent = silent(request.expected, server.files, request.within_ns, span)
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
        listed = (printable(f"{entry['path']}: {entry['reason']}") for entry in aside)
        write_text(request.out / PUT_ASIDE, "".join(f"{text}\n" for text in listed))
    return server, client


def _of_two_writers(server: Inputs, client: Inputs) -> None:
    """Refuse a journal as its own witness: copied, or below a directory that holds both
    sides.
    """
    known = {facts.identity: facts.path for facts in server.files}
    for facts in client.files:
        if (other := known.get(facts.identity)) is not None:
            raise Fault(
                f"--client {facts.path} is {other} of --events: one journal cannot confirm itself; "
                "name what servers wrote there, and what the load generator wrote here"
            )
