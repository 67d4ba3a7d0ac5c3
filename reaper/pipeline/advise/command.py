"""The command `advise`, and its flags for other commands that also advise."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...config.balancers import BALANCERS
from ...config.flags import Parser
from ..arguments import (
    AddCommand,
    Fault,
    Progress,
    add_format,
    check_format,
    place,
    positive_ns,
    require,
    share,
    show,
    write_answer,
)
from ..places import Place, remove, write_text
from ..read.command import Request, add_inputs, asking
from ..read.inputs import Inputs
from .access_logs import FORMATS, log_files
from .tables import END, KEY, TIME, Table

if TYPE_CHECKING:
    from .run import AccessLogs, Policy


def add(command: AddCommand) -> None:
    """Declare `advise`."""
    sub = command(
        "advise",
        _advise,
        "Which timeout, tick and wheel size this traffic wants, as a reaper.toml.",
    )
    add_inputs(sub, required=False, client=False)
    add_logs(sub)
    sub.add_argument(
        "--table",
        type=place,
        nargs="+",
        default=[],
        metavar="FILE",
        help="Parquet of anything that can be idle, instead of journals: a row is a use of a key",
    )
    for flag, name, means in (
        ("--key", KEY, "what was used"),
        ("--time", TIME, "when it was used"),
        ("--end", END, "when that use ended"),
    ):
        sub.add_argument(flag, default=name, metavar="COLUMN", help=f"of --table: {means}")
    add_policy(sub)


def add_logs(parser: Parser) -> None:
    """Give *parser* the flags of access logs, which replace journals."""
    parser.add_argument(
        "--logs",
        type=place,
        nargs="+",
        default=[],
        metavar="FILE",
        help="access logs instead of journals",
    )
    add_format(parser, FORMATS)
    parser.add_argument(
        "--timeout",
        type=positive_ns,
        metavar="DURATION",
        help="timeout in force when they were written; default 75s, and none for a table",
    )


def logs_of(arguments: argparse.Namespace) -> AccessLogs | None:
    """What the flags of `add_logs` say; None: journals are asked, or a table.

    Raises:
        Fault: both are named, or neither; or the flags contradict each other.
    """
    table = getattr(arguments, "table", [])
    if sum(map(bool, (arguments.events, arguments.logs, table))) != 1:
        other = (
            ", --logs FILE and --table FILE" if hasattr(arguments, "table") else " and --logs FILE"
        )
        raise Fault(f"one of --events DIR{other} must be given, and no more")
    check_format(arguments)
    if arguments.format and not arguments.logs:
        raise Fault("--format is for --logs: journals have one format")
    if arguments.timeout and arguments.events:
        raise Fault("--timeout is for --logs: a journal's rows say which timeout was in force")
    if not arguments.events and (arguments.since or arguments.until or arguments.expect):
        raise Fault("--from, --to and --expect are for --events: access logs are read as they are")
    if not arguments.logs:
        return None
    require(arguments.logs, arguments.out)
    return arguments.format, log_files(arguments.logs), arguments.timeout


def add_policy(parser: Parser) -> None:
    """Give *parser* the flags that say what is asked of a timeout."""
    parser.add_argument(
        "--max-cut", type=share, default=0.001, metavar="SHARE",
        help="silences that may be cut though they would have ended; default 0.1%%",
    )  # fmt: skip
    parser.add_argument(
        "--behind",
        choices=sorted(BALANCERS),
        help="the load balancer in front: the timeout must outlast its own",
    )


def policy_of(arguments: argparse.Namespace) -> Policy:
    """What the flags of `add_policy` say."""
    from .run import Policy

    return Policy(max_cut=arguments.max_cut, behind=arguments.behind)


def run_advise(
    spark: Any,
    server: Inputs,
    logs: AccessLogs | None,
    out: Place,
    policy: Policy,
    progress: Progress,
    table: tuple[Table, int | None] | None = None,
) -> dict[str, Any]:
    """Advise from *logs* or *table*, or without them from the journals of *server*.
    Writes advice.json, advice.txt and, where the log holds the answer, reaper.toml
    below *out*.
    """
    from .run import advise, as_text, as_toml

    result = advise(spark, server, logs, policy, progress, table)
    write_answer(out, "advice", result, as_text(result))
    toml = out / "reaper.toml"
    if result["config"]:
        write_text(toml, as_toml(result))
    else:
        remove(toml)  # an earlier answer's
    return result


def _table_of(arguments: argparse.Namespace) -> Table:
    """Raises Fault: a flag's file is not there."""
    require(arguments.table, arguments.out)
    return Table(arguments.table, arguments.key, arguments.time, arguments.end)


def _advise(arguments: argparse.Namespace, progress: Progress) -> int:
    logs = logs_of(arguments)
    request, table = Request.of("advise", arguments), None
    if arguments.table:
        request = replace(request, logs=arguments.table)
        table = _table_of(arguments), arguments.timeout
    with asking(request, progress) as (spark, server, _):
        from .run import as_text

        policy = policy_of(arguments)
        result = run_advise(spark, server, logs, request.out, policy, progress, table)
    show(arguments.json, result, as_text(result))
    return 0 if result["result"] == "pass" else 1
