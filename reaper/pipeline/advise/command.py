"""The command `advise`, and its flags for other commands that also advise."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ...config.balancers import BALANCERS
from ...config.flags import Parser
from ..arguments import (
    AddCommand,
    Fault,
    Progress,
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
    parser.add_argument("--format", choices=sorted(FORMATS), help="their format")
    parser.add_argument(
        "--timeout",
        type=positive_ns,
        metavar="DURATION",
        help="timeout in force when they were written; default 75s, and none for a table",
    )


def logs_of(arguments: argparse.Namespace) -> AccessLogs | None:
    """What the flags of `add_logs` say; None: journals are asked.

    Raises:
        Fault: both are named, or neither; or the flags contradict each other.
    """
    if bool(arguments.events) == bool(arguments.logs):
        raise Fault("one of --events DIR and --logs FILE must be given, and not both")
    if arguments.logs and not arguments.format:
        raise Fault(f"--logs needs --format, one of {', '.join(sorted(FORMATS))}")
    if arguments.format and not arguments.logs:
        raise Fault("--format is for --logs: journals have one format")
    if arguments.timeout and not arguments.logs:
        raise Fault("--timeout is for --logs: a journal's rows say which timeout was in force")
    if arguments.logs and (arguments.since or arguments.until or arguments.expect):
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
) -> dict[str, Any]:
    """Advise from *logs*, or without them from the journals of *server*. Writes
    advice.json, advice.txt and, where the log holds the answer, reaper.toml below
    *out*.
    """
    from .run import advise, as_text, as_toml

    result = advise(spark, server, logs, policy, progress)
    write_answer(out, "advice", result, as_text(result))
    toml = out / "reaper.toml"
    if result["config"]:
        write_text(toml, as_toml(result))
    else:
        remove(toml)  # an earlier answer's
    return result


def _advise(arguments: argparse.Namespace, progress: Progress) -> int:
    logs = logs_of(arguments)
    request = Request.of("advise", arguments)
    with asking(request, progress) as (spark, server, _):
        from .run import as_text

        result = run_advise(spark, server, logs, request.out, policy_of(arguments), progress)
    show(arguments.json, result, as_text(result))
    return 0 if result["result"] == "pass" else 1
