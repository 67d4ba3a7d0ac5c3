"""The command line: `python -m loadgen run ...`, `simulate`, `probe`, `race`,
`conform`, and their options.

One rule: a bad argument costs one line on standard error and exit status 2, before
anything has started. The exit status is 0 where every connection ended as planned, and
1 where one did not.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import random
import re
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NoReturn

from .cli_options import (
    ADDRESS,
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
    ready,
    take_target,
)  # fmt: skip
from .conform import command as conform
from .drive.protocols import Paths, dialect_for
from .plan.plan import Law, Plan, least_duration, make_plan
from .plan.scenario import parse_statuses
from .units import BadArgument, Target, parse_positive_duration, seconds, size

if TYPE_CHECKING:
    from .race import Result

RAMP = 60.0
"""Virtual seconds over which the connections of a simulation arrive, unless a rate is
given.
"""
INSTALLED = "reaper-loadgen"
"""The name of the command where the package is installed."""


class Parser(argparse.ArgumentParser):
    """argparse that complains in one line."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As in the base class, which takes the `-5s` of `--timeout -5s` for a flag."""
        joined: list[str] = []
        for word in sys.argv[1:] if args is None else args:
            if re.match(r"-\.?\d", word) and joined and re.fullmatch("--[^=]+", joined[-1]):
                joined[-1] += f"={word}"
            else:
                joined.append(word)
        return super().parse_known_args(joined, namespace)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    name = INSTALLED if Path(sys.argv[0]).stem == INSTALLED else "loadgen"
    words = sys.argv[1:] if arguments is None else list(arguments)
    started: list[str] = []
    other: list[str] = []
    if words[:1] == ["conform"]:  # what stands behind its `--` is a command of its own
        words, started, other = conform.divided(words)
    options = make_parser(name).parse_args(words)
    options.started, options.other = started, other
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone; what the interpreter flushes at its end must not meet the
        # pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except BadArgument as error:
        print(f"{name} {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            f"{name} {options.command}: interrupted before there was anything to report",
            file=sys.stderr,
        )
        return 130
    return status


def make_parser(name: str) -> Parser:
    """The parser of the program *name*."""
    parser = Parser(
        prog=name,
        description="Expects to be closed: measures when a server hangs up against when it should.",
    )
    parser.add_argument("--version", action="version", version=f"{name} {version()}")
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=Parser
    )
    add_run(commands)
    add_simulate(commands)
    add_probe(commands)
    conform.add(commands)
    words = "print the script by which a shell completes this command"
    completion = command(commands, "completion", run_completion, words)
    completion.add_argument(
        "shell", choices=("bash", "zsh", "tcsh"), help="whose script; needs shtab"
    )
    return parser


def version() -> str:
    """The version of the distribution that this is part of, which is the library's."""
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
    about = (
        "Opens real TCP connections, plays the planned behaviours "
        "and compares every close with the plan."
    )
    run = command(
        commands,
        "run",
        run_command,
        "drive a server with real connections and judge when it closes them",
        about,
    )
    add_target(run, "echo, or the scenario's")
    option(run, "--connections", COUNT, "default 1000", 1000)
    option(run, "--timeout", DURATION, "the server's idle timeout, such as 5s", required=True)
    option(run, "--tick", DURATION, "how late the server may be; default 1s", 1.0)
    words = (
        "how early a close may be; default 0. "
        "Servers whose clock counts whole milliseconds need 1ms"
    )
    option(run, "--tolerance", DURATION_OR_0, words, 0.0)
    add_plan(run)
    words = "from the last connection to the end of the run; default 3 timeouts + a tick"
    option(run, "--duration", DURATION, words)
    option(run, "--seed", int, "same seed, same plan; default: drawn and reported")
    words = "of answers that are as expected; default 2xx, or the scenario's"
    option(run, "--statuses", reading(parse_statuses), words, metavar="2xx,...")
    words = (
        "from this age on even a client that talks may be closed; default: never, or the scenario's"
    )
    option(run, "--max-age", DURATION, words)
    option(run, "--connect-rate", COUNT, "connections per second; default 4000", 4000)
    words = (
        "all clients act at multiples of this, at most 0.01 of the timeout; "
        "default 0: each at its own instant"
    )
    option(run, "--beat", DURATION_OR_0, words, 0.0)
    option(run, "--processes", COUNT, "default: as few as descriptors and ports allow")
    words = "how long an overdue close is waited for at the end; default 2 ticks, at least 1s"
    option(run, "--patience", DURATION, words)
    option(
        run,
        "--server-pid",
        int,
        "watch this process and its children; repeatable",
        [],
        metavar="PID",
    )
    add_reports(run)
    option(run, "--csv", Path, "write a row for each connection here")
    option(run, "--hgrm", Path, "write the latencies as HdrHistogram's tools read them")
    option(run, "--journal", Path, "write the client's view as journal files there", metavar="DIR")


def run_command(options: argparse.Namespace) -> int:
    """`loadgen run`."""
    from .drive.client import Order
    from .drive.fleet import Display, WorkerDied, drive
    from .drive.journal import ClientJournal
    from .drive.machine import MachineWatch
    from .judge.report import build_report, write_csv

    target, spoken, paths, tls = take_target(options)
    check_files(options)
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    scenario = asked_scenario(options)
    max_age = options.max_age or scenario.age_limit(options.timeout)
    law = Law(options.timeout, options.tick, options.tolerance, max_age)
    duration = options.duration or 3 * law.timeout + law.tick
    protocol = spoken or scenario.protocol or "echo"
    plan = make_plan(
        scenario, options.connections, law, duration, seed, options.connect_rate, options.beat
    )
    for behaviour in plan.behaviours:
        if behaviour.protocols and protocol not in behaviour.protocols:
            spoken = " or ".join(behaviour.protocols)
            raise BadArgument(
                f"--protocol {protocol}: a {behaviour.kind} client needs --protocol {spoken}"
            )
    dialect_for(protocol, target)  # complains here rather than in a child process
    if options.journal:
        # so does this, and it recovers what a crash left there
        ClientJournal(options.journal, target, law).journal.close()
    patience = options.patience or max(2 * law.tick, 1.0)
    machine = MachineWatch(options.server_pid)
    display = Display(sys.stderr, options.quiet)

    def on_progress(line: str) -> None:
        display.show(line)
        machine.glance()

    statuses = options.statuses or scenario.statuses
    order = Order(plan, target, protocol, patience, paths, options.journal, tls, statuses)
    try:
        with closing(display):
            observation = drive(order, options.processes, on_progress, machine.sample)
    except WorkerDied as error:
        print(f"loadgen run: {error}", file=sys.stderr)
        return 1
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
        write_csv(plan, observation, ready(options.csv))
    if options.hgrm:
        ready(options.hgrm).write_text(observation.latency.hgrm())
    report["machine"] = machine.result(
        sum(outcome.user_seconds for outcome in observation.outcomes)
    )
    return deliver(report, options)


def add_simulate(commands: Any) -> None:
    """The command `simulate` and its options."""
    words = "play the same plan against the library in virtual time, with no sockets"
    simulate = command(commands, "simulate", run_simulate, words)
    option(simulate, "--connections", COUNT, "default 100k", 100_000)
    option(simulate, "--duration", DURATION, "virtual time after the ramp; default 1h", 3600.0)
    option(simulate, "--timeout", DURATION, "default 5m", 300.0)
    option(simulate, "--tick", DURATION, "default 1s", 1.0)
    add_plan(simulate)
    option(simulate, "--connect-rate", COUNT, "default: all within 60s")
    option(simulate, "--seed", int, "default 1", 1)
    option(simulate, "--stalls", COUNT, "how often the loop is stalled for up to 5s", 0)
    option(simulate, "--jumps", COUNT, "how often the clock jumps by up to 2m", 0)
    option(simulate, "--storms", COUNT, "how often a tenth of the clients reconnects at once", 0)
    words = (
        "write journals instead: of a server that keeps the law (DIR/server) "
        "and of its clients (DIR/client)"
    )
    option(simulate, "--journal", Path, words, metavar="DIR")
    option(
        simulate,
        "--events",
        COUNT,
        "rows of the server's, about; with --journal, instead of --connections",
    )
    option(
        simulate, "--mode", str, "of the journals; default full", "full", choices=("full", "gaps")
    )
    option(simulate, "--writers", COUNT, "server processes, with --journal; default 1", 1)
    option(
        simulate, "--side", str, "of the journals; default both", "both", choices=("both", "server")
    )
    option(
        simulate, "--faults", Path, "TOML: what the server did wrong, and how often; with --journal"
    )
    add_reports(simulate)


def run_simulate(options: argparse.Namespace) -> int:
    """`loadgen simulate`."""
    from .drive.fleet import Display
    from .judge.report import UNKNOWN_SERVER, build_report
    from .simulate import Faults, simulate_core

    if options.journal:
        return run_journals(options)
    check_files(options)
    if options.faults or options.events:
        raise BadArgument("--faults and --events: give --journal DIR as well")
    law = Law(options.timeout, options.tick)
    scenario = asked_scenario(options)
    rate = options.connect_rate or max(options.connections / RAMP, 1.0)
    plan = make_plan(scenario, options.connections, law, options.duration, options.seed, rate)
    faults = Faults(options.stalls, options.jumps, options.storms)
    display = Display(sys.stderr, options.quiet or not sys.stderr.isatty())
    started = perf_counter()
    with closing(display):
        seen = simulate_core(plan, faults, display.show)
    wall, (cpu, grown) = perf_counter() - started, seen.cost
    config = {"target": "simulated core", "scenario": scenario.name, "faults": vars(faults)}
    report = build_report(plan, seen, config, dict(UNKNOWN_SERVER), options.threshold)
    hasher = hashlib.sha256()
    for column in seen.records.columns:
        hasher.update(column.tobytes())
    report["records_digest"] = hasher.hexdigest()
    actions = report["actions"]["done"]
    # The one block that differs between two runs with the same seed.
    report["wall"] = {
        "elapsed_s": wall,
        "cpu_s": cpu,
        "actions_per_s": actions / wall,
        "rss_bytes_per_connection": grown / plan.connections,
    }
    if not options.json:
        print(
            f"simulated    {seconds(report['elapsed_s'])} in {seconds(wall)} of wall time "
            f"({seconds(cpu)} CPU), {actions:,} actions, {actions / wall:,.0f} a second, "
            f"{size(grown / plan.connections)} each"
        )
    return deliver(report, options)


def run_journals(options: argparse.Namespace) -> int:
    """`loadgen simulate --journal`."""
    try:
        from .journals import Planted, connections_for, load_planted, write_journals
    except ImportError as error:
        raise BadArgument(
            f"--journal needs pyarrow ({error}): pip install 'idle-reaper[journal]'"
        ) from None
    planted = load_planted(options.faults) if options.faults else Planted()
    check_files(options)
    law = Law(options.timeout, options.tick)
    scenario = asked_scenario(options)
    longest = max(client.behaviour(law.timeout, 0.0).timeout for client in scenario.clients)
    duration = max(options.duration, least_duration(longest, law.tick))

    def make(connections: int) -> Plan:
        rate = options.connect_rate or connections / options.duration
        return make_plan(scenario, connections, law, duration, options.seed, rate)

    count = (
        connections_for(make, options.events, options.duration)
        if options.events
        else options.connections
    )
    started = perf_counter()
    summary = write_journals(
        make(count),
        options.journal / "server",
        options.journal / "client" if options.side == "both" else None,
        span=options.duration,
        mode=options.mode,
        writers=options.writers,
        planted=planted,
        stalls=options.stalls,
    )
    if options.json:
        print(json.dumps(summary, indent=1))
    else:
        print(
            f"{summary['events']:,} rows of {summary['connections']:,} connections "
            f"on the server's side, {summary['client_events']:,} on the clients', "
            f"in {summary['files']} files, {size(summary['bytes'])}, "
            f"{seconds(perf_counter() - started)}: {options.journal}"
        )
    return 0


def add_probe(commands: Any) -> None:
    """The commands `probe`, `race`, `behaviours` and `schema`, and their options."""
    about = (
        "Opens a few connections per question, waits, "
        "and prints when and how the server closed them."
    )
    probe = command(
        commands, "probe", run_probe, "find out a server's idle timeouts by waiting for them", about
    )
    add_target(probe, "http")
    option(probe, "--wait", DURATION, "how long to wait for a close; default 30s", 30.0)
    option(probe, "--http2", bool, "ask in HTTP/2: by streams, windows and pings; needs h2")
    option(probe, "--much-path", reading(parse_path), "a long answer, for --http2", metavar="PATH")
    option(probe, "--trials", COUNT, "connections per question; default 12", 12)
    words = (
        "the configured limit, such as keep_alive=5s; repeatable. "
        "Closing earlier or never: exit status 1"
    )
    option(probe, "--expect", reading(parse_expectation), words, [], metavar="QUESTION=DURATION")
    option(probe, "--junit", Path, "write what was expected as JUnit XML, for CI")
    words = "ask one question after the other, for a server of few threads: takes --wait for each"
    option(probe, "--one-by-one", bool, words)
    words = "of the requests of the questions about bodies; default POST"
    option(probe, "--body-method", reading(parse_method), words, "POST", metavar="METHOD")
    words = "what the questions about bodies ask for; default as --path"
    option(probe, "--body-path", reading(parse_path), words, metavar="PATH")
    option(probe, "--tolerance", DURATION, "how early a close may be; default 0", 0.0)
    words = (
        "let clients vanish in a network namespace, "
        "and watch how long the server keeps them; needs root"
    )
    option(probe, "--vanish", bool, words)
    words = (
        "be the backend of a proxy or a pool instead, and measure when it closes an idle connection"
    )
    option(probe, "--listen", ADDRESS, words, metavar="HOST:PORT")
    option(
        probe,
        "--through",
        ADDRESS,
        "with --listen: ask through this proxy; without it something else has to",
    )
    option(probe, "--keep-alive", DURATION, "with --listen: announce it as Keep-Alive: timeout=")
    option(probe, "--json", bool, "print the findings as JSON")
    option(probe, "--markdown", bool, "print the table as Markdown")
    option(probe, "--quiet", bool, "no progress")

    words = "reuse connections at the edge of the keep-alive, and count the requests that are lost"
    about = (
        "Asks twice on each connection, the keep-alive apart: how many second requests are lost?"
    )
    race = command(commands, "race", run_race, words, about)
    add_target(race, "http")
    option(race, "--keep-alive", DURATION, "the server's, such as 5s", required=True)
    option(race, "--spread", DURATION, "reuse from so much before to after; default 50ms", 0.05)
    option(race, "--times", COUNT, "pairs; default 1000", 1000)
    option(race, "--clients", COUNT, "at once; default 100", 100)
    option(
        race, "--method", str, "a proxy repeats a GET; default GET", "GET", choices=("GET", "POST")
    )
    option(race, "--honour", bool, "believe what the server announces in Keep-Alive")
    option(
        race,
        "--anew",
        bool,
        "each request on a connection of its own: what a proxy in between reuses",
    )
    option(race, "--json", bool, "print the result as JSON")

    command(
        commands,
        "behaviours",
        run_behaviours,
        "list the behaviours, their parameters, and the shipped scenarios",
    )
    command(commands, "schema", run_schema, "print the JSON Schema of a report")


def run_race(options: argparse.Namespace) -> int:
    """`loadgen race`."""
    from .clients import Speech
    from .judge.words import row
    from .race import race

    target, _, paths, tls = take_target(options)
    speech = Speech("http", paths, tls)
    found = asyncio.run(
        race(
            target,
            speech,
            options.keep_alive,
            options.times,
            spread=options.spread,
            clients=options.clients,
            honour=options.honour,
            anew=options.anew,
            method=options.method,
        )
    )
    lost = found.lost.total()
    if options.json:
        rate = {"lost_per_million": found.per_million, "interval_per_million": found.interval}
        print(json.dumps(vars(found) | {"tried": found.tried} | rate))
    else:
        how = "".join(f", {count:,} {what}" for what, count in found.lost.most_common())
        announced = found.announced or "nothing announced"
        pairs = f"{found.reused:,} reused, {found.fresh:,} on a new connection"
        print(f"pairs        {pairs}: {announced}")
        print("\n".join(row("lost", f"{lost:,}{how}: {rate_of(found)}")))
        if found.primes_lost:
            print(f"             {found.primes_lost:,} first requests failed, and are not counted")
    return 1 if lost or not found.enough else 0


def rate_of(found: Result) -> str:
    """Say what a race shows of the rate of losses, and how sure that is."""
    from .race import LEAST_PAIRS

    if found.per_million is None or found.interval is None:
        pairs = f"{found.tried:,} pair{'s' if found.tried != 1 else ''}"
        return (
            f"{pairs} tried are too few to tell a rate: at least {LEAST_PAIRS} are needed, "
            "so give more --times or less --spread"
        )
    low, high = found.interval
    return f"{found.per_million:,.0f} of a million (95 %: {low:,.0f} to {high:,.0f})"


def parse_expectation(text: str) -> tuple[str, float]:
    """Read `keep_alive=5s` as name and seconds. Raises BadArgument: unknown, or no
    duration.
    """
    from .probe import NAMES

    name, _, duration = text.partition("=")
    if name not in NAMES:
        raise BadArgument(
            f"{text!r}: {name!r} is no question: "
            f"write QUESTION=DURATION with one of {', '.join(NAMES)}"
        )
    return name, parse_positive_duration(duration)


def parse_method(text: str) -> str:
    """Read the method of a request. Raises BadArgument: it is no token of HTTP."""
    if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", text):
        raise BadArgument(f"{text!r} is no method: write one such as POST or PUT")
    return text


def parse_path(text: str) -> str:
    """Read what is asked for. Raises BadArgument: it cannot stand in a request."""
    if not text.startswith("/") or not text.isprintable() or " " in text:
        raise BadArgument(f"{text!r} is no path: write one that begins with /, such as /upload")
    return text


def run_probe(options: argparse.Namespace) -> int:
    """`loadgen probe`."""
    from .clients import Speech
    from .probe import as_text, checked, probe, write_junit

    if options.listen:
        return run_listen(options)
    target, protocol, paths, tls = take_target(options)
    if options.junit and not options.expect:
        raise BadArgument("--junit: say what is expected: give --expect as well")
    check_files(options)
    paths = replace(
        paths,
        post=options.body_path or "",
        method=options.body_method,
        much=options.much_path or "",
    )
    if options.http2 and protocol not in (None, "http"):
        raise BadArgument(f"--http2: the target speaks {protocol}: leave one of them out")
    speech = Speech("http2" if options.http2 else protocol or "http", paths, tls)
    if not (options.json or options.quiet) and sys.stderr.isatty():
        each = " with each question" if options.one_by_one else ""
        words = f"waiting up to {seconds(options.wait)}{each} for {target} to close ..."
        print(words, file=sys.stderr)
    if options.vanish:
        return run_vanish(target, speech, options)
    findings = probe(
        target,
        speech,
        options.wait,
        dict(options.expect),
        options.trials,
        one_by_one=options.one_by_one,
    )
    if options.junit:
        write_junit(findings, options.tolerance, str(target), ready(options.junit))
    if options.json:
        print(
            json.dumps(
                [asdict(finding) | {"words": finding.words()} for finding in findings], indent=1
            )
        )
    else:
        print(
            "\n".join([as_text(findings, options.markdown), *checked(findings, options.tolerance)])
        )
    broken = any(found.broken(options.tolerance) for found in findings)
    return 1 if broken or all(found.failures for found in findings) else 0


def run_vanish(target: Target, speech: Any, options: argparse.Namespace) -> int:
    """`loadgen probe --vanish`."""
    from .probe import aligned
    from .vanish import vanish

    found = vanish(target, speech, options.wait, options.trials)
    if options.json:
        print(json.dumps([asdict(kept) for kept in found]))
        return 0
    table = [("question", "kept for", "closed")]
    for kept in found:
        ended = sorted(each for each in kept.seconds if each is not None)
        spent = (
            f"{ended[0]:.1f}-{ended[-1]:.1f}s"
            if ended
            else f"still held after {seconds(options.wait)}"
        )
        table.append((kept.name, spent, f"{len(ended)}/{len(kept.seconds)}"))
    print("\n".join(aligned(table, options.markdown)))
    return 0


def run_listen(options: argparse.Namespace) -> int:
    """`loadgen probe --listen`."""
    from .backend import HEADINGS, Upstream, listen
    from .clients import Speech, ask
    from .probe import aligned

    if options.target or options.url:
        raise BadArgument("--listen: the backend has no target: name the proxy with --through")
    if not options.listen.target.loopback and not options.allow_remote:
        raise BadArgument(
            f"--listen {options.listen.target} is not on the loopback: give --allow-remote"
        )

    where, tasks = options.listen.target, []

    async def asking(*pauses: float) -> None:
        """A request through the proxy after each of *pauses*."""
        proxy, _, path, host, _ = options.through
        for pause in pauses:
            await asyncio.sleep(pause)
            await ask(proxy, Speech("http", Paths(path or "/", host=f"{host}:{proxy.port}")))

    def held(wait: float, *pauses: float) -> Upstream:
        def ready(address: Target) -> None:
            if not options.quiet:
                print(f"listening on {address}", file=sys.stderr, flush=True)
            if options.through:
                tasks.append(asyncio.create_task(asking(*pauses)))

        return asyncio.run(listen(where, wait, options.keep_alive, ready))

    found = [held(options.wait, 0.0)]
    if options.through and (
        idles := found[0].idles
    ):  # ask once more, and again just before it would be closed
        found.append(held(EDGE * idles[0] + 2.0, 0.0, EDGE * idles[0]))
    if options.json:
        print(json.dumps([[asdict(one) for one in each.connections] for each in found]))
    else:
        row = list(found[0].row())
        if len(found) > 1:
            row[1] = found[1].reused()
        print("\n".join(aligned([HEADINGS, row], options.markdown)))
    return 0 if found[0].idles else 1


EDGE = 0.95
"""Share of the idle timeout after which a proxy is asked again, to see whether it
reuses.
"""


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
        parameters = [
            f"{f.name} ({f.metadata['default']})" for f in fields(cls) if "default" in f.metadata
        ]
        if parameters:
            print("\n".join(row("", f"parameters: {', '.join(parameters)}")))
    print("\nshipped scenarios:")
    for name in shipped():
        print("\n".join(row(name, load_scenario(name).description)))
    return 0
