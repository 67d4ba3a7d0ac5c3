"""The commands `probe` and `behaviours`, and their options."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any

from .plan.scenario import PROTOCOL_NAMES
from .units import BadArgument, Target, parse_address, parse_count, parse_positive_duration, seconds


def add_probe(commands: Any, reading: Any) -> None:
    """The command `probe` and its options."""
    command = commands.add_parser(
        "probe",
        help="find out a server's idle timeouts by waiting for them",
        description="Opens a few connections per question, waits, and prints when and how the server closed them.",
    )
    command.add_argument("--target", required=True, type=reading(parse_address), metavar="HOST:PORT|URL")
    command.add_argument("--protocol", choices=PROTOCOL_NAMES, help="default http")
    command.add_argument(
        "--wait", type=reading(parse_positive_duration), default=30.0, help="how long to wait for a close; default 30s"
    )
    command.add_argument("--path", help="what to ask for; default /, or the URL's")
    command.add_argument("--trials", type=reading(parse_count), default=12, help="connections per question; default 12")
    command.add_argument(
        "--expect", action="append", default=[], type=reading(parse_expectation), metavar="QUESTION=DURATION",
        help="what the server is configured with, such as keep_alive=5s; repeatable. Closing earlier: exit status 1",
    )  # fmt: skip
    command.add_argument(
        "--tolerance", type=reading(parse_positive_duration), default=0.0, help="how early a close may be; default 0"
    )
    command.add_argument("--allow-remote", action="store_true", help="permit a target outside the loopback")
    command.add_argument("--json", action="store_true", help="print the findings as JSON")
    command.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    command.set_defaults(run=run_probe)


def take_target(options: argparse.Namespace) -> tuple[Target, str | None, str]:
    """The target that *options* name, the protocol if they name one, and the path.

    Raises:
        BadArgument: a URL and options that contradict it, or a target that is not on the loopback.
    """
    target, protocol, path = options.target
    if protocol and options.protocol not in (None, protocol):
        raise BadArgument(f"--protocol {options.protocol}: the target is a URL of {protocol}: leave one of them out")
    if path and options.path not in (None, path):
        raise BadArgument(f"--path {options.path}: the target's URL says {path}: leave one of them out")
    if not target.loopback and not options.allow_remote:
        raise BadArgument(f"--target {target} is not on the loopback: give --allow-remote if its owner agrees")
    return target, protocol or options.protocol, path or options.path or "/"


def parse_expectation(text: str) -> tuple[str, float]:
    """`keep_alive=5s` -> name, seconds.

    Raises:
        BadArgument: an unknown question, or no duration.
    """
    from .probe import HTTP_QUESTIONS, PLAIN_QUESTIONS

    name, _, duration = text.partition("=")
    known = dict.fromkeys(question.name for question in (*HTTP_QUESTIONS, *PLAIN_QUESTIONS))
    if name not in known:
        raise BadArgument(f"{text!r}: {name!r} is no question: write QUESTION=DURATION with one of {', '.join(known)}")
    return name, parse_positive_duration(duration)


def run_probe(options: argparse.Namespace) -> int:
    """`loadgen probe`."""
    from .probe import as_text, probe

    target, protocol, path = take_target(options)
    if not options.json and sys.stderr.isatty():
        print(f"waiting up to {seconds(options.wait)} for {target} to close ...", file=sys.stderr)
    findings = probe(target, protocol or "http", options.wait, dict(options.expect), path, options.trials)
    if options.json:
        print(json.dumps([asdict(finding) | {"words": finding.words()} for finding in findings], indent=1))
    else:
        print(as_text(findings, options.markdown))
    early = any(
        not found.guessed and found.expected is not None and found.shortest is not None
        and found.shortest < found.expected - options.tolerance
        for found in findings
    )  # fmt: skip
    return 1 if early or all(found.failures for found in findings) else 0


def add_behaviours(commands: Any) -> None:
    """The command `behaviours`: what a scenario may name."""
    command = commands.add_parser("behaviours", help="list the behaviours, their parameters, and the shipped scenarios")
    command.set_defaults(run=run_behaviours)


def add_schema(commands: Any) -> None:
    """The command `schema`: what a report is made of."""
    command = commands.add_parser("schema", help="print the JSON Schema of a report")
    command.set_defaults(run=run_schema)


def run_schema(options: argparse.Namespace) -> int:
    """`loadgen schema`."""
    from .judge.report import report_schema

    print(json.dumps(report_schema(), indent=1))
    return 0


def run_behaviours(options: argparse.Namespace) -> int:
    """`loadgen behaviours`."""
    from dataclasses import fields

    from .judge.words import row
    from .plan.behaviours import KINDS
    from .plan.scenario import load_scenario, shipped

    for name, cls in KINDS.items():
        print("\n".join(row(name, " ".join((cls.__doc__ or "").split("\n\n")[0].split()))))
        parameters = [f"{f.name} ({f.metadata['default']})" for f in fields(cls) if "default" in f.metadata]
        if parameters:
            print("\n".join(row("", f"parameters: {', '.join(parameters)}")))
    print("\nshipped scenarios:")
    for name in shipped():
        print("\n".join(row(name, load_scenario(name).description)))
    return 0
