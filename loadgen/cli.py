"""The command line: `python -m loadgen run ...`.

One rule: a bad argument costs one line on standard error and exit status 2, before anything has started. 0: every
connection ended as planned. 1: it did not.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

from .cli_options import (
    COUNT,
    DURATION,
    DURATION_OR_0,
    add_plan,
    add_reports,
    add_target,
    asked_scenario,
    check_files,
    command,
    deliver,
    option,
    reading,
    take_target,
)  # fmt: skip
from .cli_probe import add_probe
from .cli_simulate import add_simulate
from .drive.protocols import dialect_for
from .plan.plan import Law, make_plan
from .plan.scenario import parse_statuses
from .units import BadArgument

INSTALLED = "reaper-loadgen"
"""What the command is called where it is installed."""


class Parser(argparse.ArgumentParser):
    """argparse that complains in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    name = INSTALLED if Path(sys.argv[0]).stem == INSTALLED else "loadgen"
    options = make_parser(name).parse_args(arguments)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone; what the interpreter flushes at its end must not meet the pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except BadArgument as error:
        print(f"{name} {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{name} {options.command}: interrupted before there was anything to report", file=sys.stderr)
        return 130
    return status


def make_parser(name: str) -> Parser:
    """The parser of the program *name*."""
    parser = Parser(
        prog=name, description="Expects to be closed: measures when a server hangs up against when it should."
    )
    parser.add_argument("--version", action="version", version=f"{name} {version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    add_run(commands)
    add_simulate(commands)
    add_probe(commands)
    words = "print the script by which a shell completes this command"
    completion = command(commands, "completion", run_completion, words)
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="whose script; needs shtab")
    return parser


def version() -> str:
    """Of the distribution that this is part of; it carries the library's."""
    try:
        return metadata.version("idle-reaper")
    except metadata.PackageNotFoundError:
        return "of a checkout that is not installed"


def run_completion(options: argparse.Namespace) -> int:
    """`reaper-loadgen completion`."""
    try:
        import shtab
    except ImportError:
        raise BadArgument("completion needs shtab: pip install 'idle-reaper[completion]'") from None
    print(shtab.complete(make_parser(INSTALLED), options.shell))
    return 0


def add_run(commands: Any) -> None:
    """The command `run` and its options."""
    about = "Opens real TCP connections, plays the planned behaviours and compares every close with the plan."
    run = command(
        commands, "run", run_command, "drive a server with real connections and judge when it closes them", about
    )
    add_target(run, "echo, or the scenario's")
    option(run, "--connections", COUNT, "default 1000", 1000)
    option(run, "--timeout", DURATION, "the server's idle timeout, such as 5s", required=True)
    option(run, "--tick", DURATION, "how late the server may be; default 1s", 1.0)
    words = "how early a close may be; default 0. Servers whose clock counts whole milliseconds need 1ms"
    option(run, "--tolerance", DURATION_OR_0, words, 0.0)
    add_plan(run)
    words = "from the last connection to the end of the run; default 3 timeouts + a tick"
    option(run, "--duration", DURATION, words)
    option(run, "--seed", int, "same seed, same plan; default: drawn and reported")
    words = "of answers that are as expected; default 2xx, or the scenario's"
    option(run, "--statuses", reading(parse_statuses), words, metavar="2xx,...")
    words = "from this age on even a client that talks may be closed; default: never, or the scenario's"
    option(run, "--max-age", DURATION, words)
    option(run, "--connect-rate", COUNT, "connections per second; default 4000", 4000)
    words = "all clients act at multiples of this, at most 0.01 of the timeout; default 0: each at its own instant"
    option(run, "--beat", DURATION_OR_0, words, 0.0)
    option(run, "--processes", COUNT, "default: as few as descriptors and ports allow")
    words = "how long an overdue close is waited for at the end; default 2 ticks, at least 1s"
    option(run, "--patience", DURATION, words)
    option(run, "--server-pid", int, "watch this process and its children; repeatable", [], metavar="PID")
    add_reports(run)
    option(run, "--csv", Path, "write a row for each connection here")
    option(run, "--hgrm", Path, "write the latencies as HdrHistogram's tools read them")
    option(run, "--journal", Path, "write the client's view as journal files there", metavar="DIR")


def run_command(options: argparse.Namespace) -> int:
    """`loadgen run`."""
    from .drive.client import Order
    from .drive.fleet import Display, drive
    from .drive.journal import ClientJournal
    from .drive.machine import MachineWatch
    from .drive.processes import WorkerDied
    from .judge.report import build_report, write_csv

    target, spoken, paths, tls = take_target(options)
    check_files(options)
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    scenario = asked_scenario(options)
    max_age = options.max_age or scenario.age_limit(options.timeout)
    law = Law(options.timeout, options.tick, options.tolerance, max_age)
    duration = options.duration or 3 * law.timeout + law.tick
    protocol = spoken or scenario.protocol or "echo"
    plan = make_plan(scenario, options.connections, law, duration, seed, options.connect_rate, options.beat)
    for behaviour in plan.behaviours:
        if behaviour.protocols and protocol not in behaviour.protocols:
            spoken = " or ".join(behaviour.protocols)
            raise BadArgument(f"--protocol {protocol}: a {behaviour.kind} client needs --protocol {spoken}")
    if options.journal:
        # complains here rather than in a child process, and recovers what a crash left there
        ClientJournal(options.journal, (target.host, target.port), law.timeout, law.tick).journal.close()
    dialect_for(protocol, target)  # complains here rather than in a child process
    patience = options.patience or max(2 * law.tick, 1.0)
    machine = MachineWatch(options.server_pid)
    display = Display(sys.stderr, options.quiet)

    def on_progress(line: str) -> None:
        display.show(line)
        machine.glance()

    try:
        order = Order(
            plan, target, protocol, patience, paths, options.journal, tls, options.statuses or scenario.statuses
        )
        observation = drive(order, options.processes, on_progress, machine.sample)
    except WorkerDied as error:
        print(f"loadgen run: {error}", file=sys.stderr)
        return 1
    finally:
        display.close()
    config = {
        "target": str(target),
        "protocol": protocol,
        "tls": tls is not None,
        "scenario": scenario.name,
        "patience_s": patience,
    }
    established = sum(outcome.counters.established for outcome in observation.outcomes)
    report = build_report(plan, observation, config, machine.server(established), options.threshold)
    if options.csv:
        write_csv(plan, observation, options.csv)
    if options.hgrm:
        options.hgrm.write_text(observation.latency.hgrm())
    report["machine"] = machine.result(sum(outcome.user_seconds for outcome in observation.outcomes))
    return deliver(report, options)
