"""The commands `probe`, `race`, `behaviours` and `schema`."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .cli_options import ADDRESS, COUNT, DURATION, add_target, command, option, reading, take_target
from .drive.protocols import Paths
from .units import BadArgument, Target, parse_positive_duration, seconds


def add_probe(commands: Any) -> None:
    """The commands `probe`, `race`, `behaviours` and `schema`, and their options."""
    about = "Opens a few connections per question, waits, and prints when and how the server closed them."
    probe = command(commands, "probe", run_probe, "find out a server's idle timeouts by waiting for them", about)
    add_target(probe, "http")
    option(probe, "--wait", DURATION, "how long to wait for a close; default 30s", 30.0)
    option(probe, "--trials", COUNT, "connections per question; default 12", 12)
    words = "the configured limit, such as keep_alive=5s; repeatable. Closing earlier or never: exit status 1"
    option(probe, "--expect", reading(parse_expectation), words, [], metavar="QUESTION=DURATION")
    option(probe, "--junit", Path, "write what was expected as JUnit XML, for CI")
    option(probe, "--tolerance", DURATION, "how early a close may be; default 0", 0.0)
    words = "let clients vanish in a network namespace, and watch how long the server keeps them; needs root"
    option(probe, "--vanish", bool, words)
    words = "be the backend of a proxy or a pool instead, and measure when it closes an idle connection"
    option(probe, "--listen", ADDRESS, words, metavar="HOST:PORT")
    option(probe, "--through", ADDRESS, "with --listen: ask through this proxy; without it something else has to")
    option(probe, "--keep-alive", DURATION, "with --listen: announce it as Keep-Alive: timeout=")
    option(probe, "--json", bool, "print the findings as JSON")
    option(probe, "--markdown", bool, "print the table as Markdown")

    words = "reuse connections at the edge of the keep-alive, and count the requests that are lost"
    about = "Asks twice on each connection, the keep-alive apart: how many second requests are lost?"
    race = command(commands, "race", run_race, words, about)
    add_target(race, "http")
    option(race, "--keep-alive", DURATION, "the server's, such as 5s", required=True)
    option(race, "--spread", DURATION, "reuse from so much before to after; default 50ms", 0.05)
    option(race, "--times", COUNT, "pairs; default 1000", 1000)
    option(race, "--clients", COUNT, "at once; default 100", 100)
    option(race, "--method", str, "a proxy repeats a GET; default GET", "GET", choices=("GET", "POST"))
    option(race, "--honour", bool, "believe what the server announces in Keep-Alive")
    option(race, "--anew", bool, "each request on a connection of its own: what a proxy in between reuses")
    option(race, "--json", bool, "print the result as JSON")

    command(commands, "behaviours", run_behaviours, "list the behaviours, their parameters, and the shipped scenarios")
    command(commands, "schema", run_schema, "print the JSON Schema of a report")


def run_race(options: argparse.Namespace) -> int:
    """`loadgen race`."""
    from .clients import Speech
    from .race import race

    target, _, paths, tls = take_target(options)
    speech = Speech("http", paths, tls)
    found = asyncio.run(
        race(
            target, speech, options.keep_alive, options.times, spread=options.spread, clients=options.clients,
            honour=options.honour, anew=options.anew, method=options.method,
        )
    )  # fmt: skip
    lost = found.lost.total()
    if options.json:
        print(json.dumps(vars(found) | {"lost_per_million": found.per_million}))
    else:
        how = "".join(f", {count:,} {what}" for what, count in found.lost.most_common())
        announced = found.announced or "nothing announced"
        print(f"pairs        {found.reused:,} reused, {found.fresh:,} on a new connection: {announced}")
        print(f"lost         {lost:,}{how}: {found.per_million:,.0f} of a million")
        if found.primes_lost:
            print(f"             {found.primes_lost:,} first requests failed, and are not counted")
    return 1 if lost or found.primes_lost == options.times else 0


def parse_expectation(text: str) -> tuple[str, float]:
    """`keep_alive=5s` -> name, seconds. Raises BadArgument: an unknown question, or no duration."""
    from .probe import NAMES

    name, _, duration = text.partition("=")
    if name not in NAMES:
        raise BadArgument(f"{text!r}: {name!r} is no question: write QUESTION=DURATION with one of {', '.join(NAMES)}")
    return name, parse_positive_duration(duration)


def run_probe(options: argparse.Namespace) -> int:
    """`loadgen probe`."""
    from .clients import Speech
    from .probe import as_text, checked, probe, write_junit

    if options.listen:
        return run_listen(options)
    target, protocol, paths, tls = take_target(options)
    if options.junit and not options.expect:
        raise BadArgument("--junit: say what is expected: give --expect as well")
    if not options.json and sys.stderr.isatty():
        print(f"waiting up to {seconds(options.wait)} for {target} to close ...", file=sys.stderr)
    speech = Speech(protocol or "http", paths, tls)
    if options.vanish:
        return run_vanish(target, speech, options)
    findings = probe(target, speech, options.wait, dict(options.expect), options.trials)
    if options.junit:
        write_junit(findings, options.tolerance, str(target), options.junit)
    if options.json:
        print(json.dumps([asdict(finding) | {"words": finding.words()} for finding in findings], indent=1))
    else:
        print("\n".join([as_text(findings, options.markdown), *checked(findings, options.tolerance)]))
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
        spent = f"{ended[0]:.1f}-{ended[-1]:.1f}s" if ended else f"still held after {seconds(options.wait)}"
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
        raise BadArgument(f"--listen {options.listen.target} is not on the loopback: give --allow-remote")

    where, tasks = options.listen.target, []

    async def asking(*pauses: float) -> None:
        """A request through the proxy after each of *pauses*."""
        proxy, _, path, host, _ = options.through
        for pause in pauses:
            await asyncio.sleep(pause)
            await ask(proxy, Speech("http", Paths(path or "/", host=f"{host}:{proxy.port}")))

    def held(wait: float, *pauses: float) -> Upstream:
        def ready(address: Target) -> None:
            print(f"listening on {address}", file=sys.stderr, flush=True)
            if options.through:
                tasks.append(asyncio.create_task(asking(*pauses)))

        return asyncio.run(listen(where, wait, options.keep_alive, ready))

    found = [held(options.wait, 0.0)]
    if options.through and (idles := found[0].idles):  # ask once more, and again just before it would be closed
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
"""Share of the idle timeout after which a proxy is asked again, to see whether it reuses."""


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
