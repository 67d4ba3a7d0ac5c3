"""The command line: `python -m loadgen run ...`.

One rule: a bad argument costs one line on standard error and exit status 2, before anything has started. 0: every
connection ended as planned. 1: it did not.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from .cli_probe import add_behaviours, add_probe, add_race, add_schema, add_target, take_target
from .cli_simulate import add_simulate
from .drive.protocols import dialect_for
from .judge.thresholds import parse_threshold
from .plan.plan import DEFAULT_MIX, Law, make_plan
from .plan.scenario import from_mix, load_scenario, parse_statuses
from .units import BadArgument, parse_count, parse_duration, parse_positive_duration

T = TypeVar("T")
DEFAULT_RATE = 4000.0
INSTALLED = "reaper-loadgen"
"""What the command is called where it is installed."""
LONG_TO_JUDGE = 100_000
"""Connections whose judgement takes seconds, and is announced."""


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
        prog=name,
        description="Expects to be closed: measures when a server hangs up against when it should.",
    )
    parser.add_argument("--version", action="version", version=f"{name} {version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    add_run(commands)
    add_probe(commands, reading)
    add_race(commands, reading)
    add_simulate(commands, reading)
    add_behaviours(commands)
    add_schema(commands)
    completion = commands.add_parser("completion", help="print the script by which a shell completes this command")
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="whose script; needs shtab")
    completion.set_defaults(run=run_completion)
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


def reading(parse: Callable[[str], T]) -> Callable[[str], T]:
    """*parse* as an argparse type: its complaint, not argparse's own."""

    def read(text: str) -> T:
        try:
            return parse(text)
        except BadArgument as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def add_run(commands: Any) -> None:
    """The command `run` and its options."""
    run = commands.add_parser(
        "run",
        help="drive a server with real connections and judge when it closes them",
        description="Opens real TCP connections, plays the planned behaviours and compares every close with the plan.",
    )
    duration = reading(parse_positive_duration)
    add_target(run, reading, "echo, or the scenario's")
    run.add_argument("--connections", type=reading(parse_count), default=1000, metavar="N", help="default 1000")
    run.add_argument("--timeout", type=duration, required=True, help="the server's idle timeout, such as 5s")
    run.add_argument("--tick", type=duration, default=1.0, help="how late the server may be; default 1s")
    run.add_argument(
        "--tolerance", type=reading(parse_duration), default=0.0, metavar="DURATION",
        help="how early a close may be; default 0. Servers whose clock counts whole milliseconds need 1ms",
    )  # fmt: skip
    run.add_argument(
        "--threshold", type=reading(parse_threshold), action="append", default=[], metavar="'NAME<VALUE'",
        help="another condition of success, such as 'lateness.p99<1.1s'; repeatable",
    )  # fmt: skip
    run.add_argument("--mix", default=DEFAULT_MIX, help=f"behaviours and weights; default {DEFAULT_MIX}")
    run.add_argument(
        "--scenario", metavar="FILE", help="TOML file, or the name of a shipped scenario; instead of --mix"
    )
    run.add_argument(
        "--duration", type=duration, help="from the last connection to the end of the run; default 3 timeouts + a tick"
    )
    run.add_argument("--seed", type=int, help="same seed, same plan; default: drawn and reported")
    run.add_argument(
        "--statuses", type=reading(parse_statuses), metavar="2xx,...",
        help="of answers that are as expected; default 2xx, or the scenario's",
    )  # fmt: skip
    run.add_argument(
        "--max-age", type=duration, metavar="DURATION",
        help="from this age on even a client that talks may be closed; default: never, or the scenario's",
    )  # fmt: skip
    run.add_argument(
        "--connect-rate",
        type=reading(parse_count),
        default=DEFAULT_RATE,
        metavar="N",
        help="connections per second; default 4000",
    )
    run.add_argument(
        "--beat",
        type=reading(parse_duration),
        default=0.0,
        metavar="DURATION",
        help="all clients act at multiples of this, at most 0.01 of the timeout; default 0: each at its own instant",
    )
    run.add_argument(
        "--processes", type=reading(parse_count), metavar="N", help="default: as few as descriptors and ports allow"
    )
    run.add_argument(
        "--patience",
        type=duration,
        help="how long an overdue close is waited for at the end; default 2 ticks, at least 1s",
    )
    run.add_argument(
        "--server-pid",
        type=int,
        action="append",
        default=[],
        metavar="PID",
        help="watch this process and its children; repeatable",
    )
    run.add_argument("--report", type=Path, metavar="FILE", help="write the JSON report here")
    run.add_argument("--csv", type=Path, metavar="FILE", help="write a row for each connection here")
    run.add_argument("--hgrm", type=Path, metavar="FILE", help="write the latencies as HdrHistogram's tools read them")
    run.add_argument("--journal", type=Path, metavar="DIR", help="write the client's view as journal files there")
    run.add_argument("--html", type=Path, metavar="FILE", help="write a self-contained page here")
    run.add_argument("--json", action="store_true", help="print the report to standard output")
    run.add_argument("--quiet", action="store_true", help="no progress")
    run.set_defaults(run=run_command)


def run_command(options: argparse.Namespace) -> int:
    """`loadgen run`."""
    from .drive.fleet import Hooks, Progress, drive
    from .drive.journal import ClientJournal
    from .drive.machine import MachineWatch
    from .drive.processes import WorkerDied
    from .judge.report import build_report, write_csv
    from .show.dashboard import display_for
    from .show.deliver import check_files, deliver

    target, spoken, paths, tls = take_target(options)
    check_files(options)
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    scenario = load_scenario(options.scenario) if options.scenario else from_mix(options.mix)
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
    display = display_for(sys.stderr, options.quiet)

    def on_progress(progress: Progress) -> None:
        display.show(progress)
        machine.glance()

    try:
        observation = drive(
            plan, target, protocol, patience, paths, options.processes,
            options.journal, Hooks(on_progress, machine.sample), tls, options.statuses or scenario.statuses,
        )  # fmt: skip
    except WorkerDied as error:
        print(f"loadgen run: {error}", file=sys.stderr)
        return 1
    finally:
        display.close()
    if plan.connections >= LONG_TO_JUDGE and not options.quiet:
        print(f"judging {plan.connections:,} connections ...", file=sys.stderr, flush=True)
    config = {
        "target": str(target),
        "protocol": protocol,
        "tls": tls is not None,
        "scenario": scenario.name,
        "mix": {behaviour.name: behaviour.weight for behaviour in plan.behaviours},
        "timeout_s": law.timeout,
        "tick_s": law.tick,
        "tolerance_s": law.tolerance,
        "duration_s": duration,
        "connect_rate": plan.ramp.rate or plan.rate,
        "patience_s": patience,
        "beat_s": options.beat,
    }
    established = sum(outcome.counters.established for outcome in observation.outcomes)
    report = build_report(plan, observation, config, machine.server(established), options.threshold)
    if options.csv:
        write_csv(plan, observation, options.csv)
    if options.hgrm:
        options.hgrm.write_text(observation.latency.hgrm())
    report["machine"] = machine.result(sum(outcome.user_seconds for outcome in observation.outcomes))
    return deliver(report, options)
