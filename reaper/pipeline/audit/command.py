"""The command `audit`, and its flags for other commands that also audit."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ..arguments import AddCommand, Fault, Progress, duration_ns, share, show, write_answer
from ..places import Place, remove
from ..read.command import Request, add_inputs, asking
from ..read.inputs import Inputs
from .verdicts import FLIGHT_NS, GRACE_NS, UNMATCHED

if TYPE_CHECKING:
    from .run import Audit, Settings


CONNECTIONS = "connections"


def add(command: AddCommand) -> None:
    """Declare `audit`."""
    sub = command(
        "audit", _audit, "One verdict per connection: was it closed when its timeout says?"
    )
    add_inputs(sub)
    add_law(sub)
    sub.add_argument(
        "--by-day",
        action="store_true",
        help="add to connections/ of earlier answers, a folder a day: each connection once, when "
        "nothing more is to come of it",
    )


def add_law(parser: argparse.ArgumentParser) -> None:
    """Give *parser* the flags that say which deviations are excused."""
    for flag, default, text in (
        ("--grace", GRACE_NS, "lateness excused beyond one tick; default 250ms"),
        ("--flight", FLIGHT_NS, "bytes sent so shortly before a reap crossed it; default 50ms"),
    ):
        parser.add_argument(flag, type=duration_ns, default=default, metavar="DURATION", help=text)
    parser.add_argument(
        "--unmatched", type=share, default=UNMATCHED, metavar="SHARE",
        help="with --client: connections of either side that may lack a counterpart; default 1%%",
    )  # fmt: skip


def law_of(arguments: argparse.Namespace) -> Settings:
    """What the flags of `add_law` say."""
    from .run import Settings

    return Settings(arguments.grace, arguments.flight, arguments.unmatched)


def run_audit(
    spark: Any,
    server: Inputs,
    client: Inputs | None,
    out: Place,
    settings: Settings,
    progress: Progress,
) -> Audit:
    """Audit, and write audit.json, audit.txt and connections/ below *out*."""
    from .run import audit
    from .words import as_text

    try:
        result = audit(spark, server, client, out, settings, progress)
    except BaseException:
        remove(out / CONNECTIONS)  # half of them, or an earlier answer's
        raise
    write_answer(out, "audit", result.summary, as_text(result.summary))
    return result


def run_by_day(
    spark: Any,
    server: Inputs,
    client: Inputs | None,
    out: Place,
    settings: Settings,
    progress: Progress,
) -> Audit:
    """As `run_audit`, but connections/ keeps what earlier answers left there.

    Rows are added for connections that are not there yet; those that are still open
    come with a later answer.
    """
    from ..engine import F, here
    from .run import audit
    from .words import as_text

    answer = out / ".answer"
    try:
        result = audit(spark, server, client, answer, settings, progress)
        progress("adding the connections to their days")
        final = result.connections.where(F.col("verdict") != "open_at_end")
        here().append_days(final, out / CONNECTIONS, "conn")
    finally:
        remove(answer)
    write_answer(out, "audit", result.summary, as_text(result.summary))
    return result


def _days_agree(out: Place, by_day: bool) -> None:
    """Make sure that no answer is written over days, and no days beside an answer.

    Raises:
        Fault: it would be so.
    """
    kept = out / CONNECTIONS
    names = [each.name for each in kept.iterdir()] if kept.exists() else []
    days = any(name.startswith("day=") for name in names)
    if days and not by_day:
        raise Fault(f"{kept} holds days of earlier answers: give --by-day, or another --out")
    if by_day and not days and any(name.endswith(".parquet") for name in names):
        raise Fault(f"{kept} holds an answer that is not by day: give another --out")


def _audit(arguments: argparse.Namespace, progress: Progress) -> int:
    request = Request.of("audit", arguments)
    with asking(request, progress) as (spark, server, client):
        from .words import as_text

        _days_agree(request.out, arguments.by_day)
        run = run_by_day if arguments.by_day else run_audit
        result = run(spark, server, client, request.out, law_of(arguments), progress)
    show(arguments.json, result.summary, as_text(result.summary))
    return 0 if result.passed else 1
