"""The command `simulate`."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

from .cli_options import COUNT, DURATION, add_plan, add_reports, asked_scenario, check_files, command, deliver, option
from .plan.plan import Law, Plan, least_duration, make_plan
from .units import BadArgument, seconds, size

RAMP = 60.0
"""Virtual seconds over which the connections of a simulation arrive, unless a rate is given."""


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
    words = "write journals instead: of a server that keeps the law (DIR/server) and of its clients (DIR/client)"
    option(simulate, "--journal", Path, words, metavar="DIR")
    option(simulate, "--events", COUNT, "rows of the server's, about; with --journal, instead of --connections")
    option(simulate, "--mode", str, "of the journals; default full", "full", choices=("full", "gaps"))
    option(simulate, "--writers", COUNT, "server processes, with --journal; default 1", 1)
    option(simulate, "--side", str, "of the journals; default both", "both", choices=("both", "server"))
    option(simulate, "--faults", Path, "TOML: what the server did wrong, and how often; with --journal")
    add_reports(simulate)


def run_simulate(options: argparse.Namespace) -> int:
    """`loadgen simulate`."""
    from .judge.report import UNKNOWN_SERVER, build_report
    from .simulate import Faults, simulate_core

    check_files(options)
    if options.journal:
        return run_journals(options)
    if options.faults or options.events:
        raise BadArgument("--faults and --events: give --journal DIR as well")
    law = Law(options.timeout, options.tick)
    scenario = asked_scenario(options)
    rate = options.connect_rate or max(options.connections / RAMP, 1.0)
    plan = make_plan(scenario, options.connections, law, options.duration, options.seed, rate)
    faults = Faults(options.stalls, options.jumps, options.storms)
    progress = None if options.quiet or not sys.stderr.isatty() else _show
    started = perf_counter()
    seen = simulate_core(plan, faults, progress)
    wall, (cpu, grown) = perf_counter() - started, seen.cost
    config = {
        "target": "simulated core",
        "scenario": scenario.name,
        "faults": vars(faults),
    }
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
            f"simulated    {seconds(report['elapsed_s'])} in {seconds(wall)} of wall time ({seconds(cpu)} CPU), "
            f"{actions:,} actions, {actions / wall:,.0f} a second, {size(grown / plan.connections)} each"
        )
    return deliver(report, options)


def run_journals(options: argparse.Namespace) -> int:
    """`loadgen simulate --journal`."""
    try:
        from .journals import Planted, connections_for, load_planted, write_journals
    except ImportError as error:
        raise BadArgument(f"--journal needs pyarrow ({error}): pip install 'idle-reaper[journal]'") from None
    law = Law(options.timeout, options.tick)
    scenario = asked_scenario(options)
    longest = max(client.behaviour(law.timeout, 0.0).timeout for client in scenario.clients)
    duration = max(options.duration, least_duration(longest, law.tick))

    def make(connections: int) -> Plan:
        rate = options.connect_rate or connections / options.duration
        return make_plan(scenario, connections, law, duration, options.seed, rate)

    planted = load_planted(options.faults) if options.faults else Planted()
    count = connections_for(make, options.events, options.duration) if options.events else options.connections
    started = perf_counter()
    summary = write_journals(
        make(count), options.journal / "server", options.journal / "client" if options.side == "both" else None,
        span=options.duration, mode=options.mode, writers=options.writers, planted=planted, stalls=options.stalls,
    )  # fmt: skip
    if options.json:
        print(json.dumps(summary, indent=1))
    else:
        print(
            f"{summary['events']:,} rows of {summary['connections']:,} connections on the server's side, "
            f"{summary['client_events']:,} on the clients', in {summary['files']} files, {size(summary['bytes'])}, "
            f"{seconds(perf_counter() - started)}: {options.journal}"
        )
    return 0


def _show(line: str) -> None:
    print(f"\r{line}", end="\r", file=sys.stderr, flush=True)
