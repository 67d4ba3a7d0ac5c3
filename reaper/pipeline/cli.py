"""The commands audit, advise and report, and the way to the others in `cli_*.py`.

Exit status 0 = good, 1 = the check it ran failed, 2 = bad arguments.

What a machine may read goes to stdout with `--json`, what a person wants to follow goes to stderr.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .arguments import (
    Fault,
    Parser,
    Progress,
    Run,
    add_inputs,
    add_law,
    add_policy,
    place,
    policy_of,
    read_inputs,
    require,
    rows_of,
    settings_of,
    show,
    write_json,
)
from .generate import command as cli_generate
from .live import command as cli_live
from .read import command as cli_compact
from .read.inputs import Inputs
from .session import NoSpark, open_session
from .whatif import command as cli_whatif

if TYPE_CHECKING:
    from .advise.run import Advice
    from .audit.run import Audit


COMMANDS = (cli_live, cli_generate, cli_whatif, cli_compact)
"""Modules that declare the further commands."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    arguments = _parser().parse_args(argv)
    began = time.monotonic()

    def progress(text: str) -> None:
        if not arguments.quiet:
            print(f"[{time.monotonic() - began:6.1f} s] {text}", file=sys.stderr, flush=True)

    try:
        status: int = arguments.run(arguments, progress)
    except (Fault, NoSpark, FileNotFoundError) as error:
        print(f"{arguments.prog}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{arguments.prog}: stopped", file=sys.stderr)
        return 130
    return status


def _parser() -> Parser:
    parser = Parser(
        prog="python -m reaper.pipeline", description="What journals and access logs tell, read with Spark."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Run, summary: str) -> Parser:
        sub: Parser = commands.add_parser(name, help=summary, description=summary)
        sub.set_defaults(run=run, prog=sub.prog)
        sub.add_argument("--out", type=place, required=True, metavar="DIR", help="where results go; made if missing")
        sub.add_argument(
            "--master", metavar="URL", help="a Spark master, or sc://... ; default: what the environment says"
        )
        sub.add_argument("--json", action="store_true", help="print the summary as JSON instead of a table")
        sub.add_argument("--quiet", action="store_true", help="no progress on stderr")
        return sub

    sub = command("audit", _audit, "One verdict per connection: did the law of time hold?")
    add_inputs(sub)
    add_law(sub)
    sub = command("advise", _advise, "Which timeout, tick and wheel size this traffic wants, as a reaper.toml.")
    add_inputs(sub, required=False)
    add_policy(sub)
    sub = command("report", _report, "Audit and advice as one HTML page that opens offline.")
    add_inputs(sub)
    add_law(sub)
    add_policy(sub)
    for module in COMMANDS:
        module.add(command)
    return parser


def _run_audit(
    spark: Any, arguments: argparse.Namespace, server: Inputs, client: Inputs | None, progress: Progress
) -> Audit:
    from .audit.run import as_text, audit

    arguments.out.mkdir(parents=True, exist_ok=True)
    result = audit(spark, server, client, arguments.out, settings_of(arguments), progress)
    write_json(arguments.out / "audit.json", result.summary)
    (arguments.out / "audit.txt").write_text(as_text(result.summary) + "\n", encoding="utf-8")
    return result


def _audit(arguments: argparse.Namespace, progress: Progress) -> int:
    from .audit.run import as_text

    server, client = read_inputs(arguments, progress)
    progress("starting Spark")
    with open_session("audit", arguments.master, rows=rows_of(server, client)) as spark:
        result = _run_audit(spark, arguments, server, client, progress)
    show(arguments, result.summary, as_text(result.summary))
    return 0 if result.passed else 1


def _run_advise(spark: Any, arguments: argparse.Namespace, server: Inputs, progress: Progress) -> Advice:
    from .advise.run import NotFull, advise, as_text, as_toml

    logs = (arguments.format, arguments.logs, arguments.timeout or 75 * 10**9) if arguments.logs else None
    try:
        result = advise(spark, server, logs, policy_of(arguments), progress, recompute=arguments.recompute)
    except NotFull as error:
        raise Fault(str(error)) from None
    write_json(arguments.out / "advice.json", result.summary)
    (arguments.out / "advice.txt").write_text(as_text(result.summary) + "\n", encoding="utf-8")
    (arguments.out / "reaper.toml").write_text(as_toml(result.summary), encoding="utf-8")
    return result


def _advise(arguments: argparse.Namespace, progress: Progress) -> int:
    from .advise.run import as_text

    if bool(arguments.events) == bool(arguments.logs):
        raise Fault("one of --events DIR and --logs FILE must be given, and not both")
    if arguments.recompute and arguments.logs:
        raise Fault("--recompute is for --events: access logs say nothing else")
    if arguments.logs and not arguments.format:
        raise Fault("--logs needs --format, one of: see --help")
    require(arguments.logs)
    arguments.out.mkdir(parents=True, exist_ok=True)
    server, _ = read_inputs(arguments, progress)
    progress("starting Spark")
    with open_session("advise", arguments.master, rows=rows_of(server, None)) as spark:
        result = _run_advise(spark, arguments, server, progress)
    show(arguments, result.summary, as_text(result.summary))
    return 0 if result.complete else 1


def _report(arguments: argparse.Namespace, progress: Progress) -> int:
    from .report.page import gather, render

    if arguments.logs:
        raise Fault("report reads journals: --logs is for advise")
    server, client = read_inputs(arguments, progress)
    progress("starting Spark")
    with open_session("report", arguments.master, rows=rows_of(server, client)) as spark:
        audited = _run_audit(spark, arguments, server, client, progress)
        advice = _run_advise(spark, arguments, server, progress)
        progress("gathering the charts")
        charts = gather(spark, audited, server)
    page = arguments.out / "report.html"
    page.write_text(render(audited.summary, advice.summary, charts), encoding="utf-8")
    outcome = {"result": audited.summary["result"], "page": str(page), "reasons": audited.summary["reasons"]}
    show(arguments, outcome, f"{page}: audit {audited.summary['result'].upper()}")
    return 0 if audited.passed else 1
