"""The command `simulate`."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from .judge.thresholds import parse_threshold
from .plan.plan import DEFAULT_MIX, Law, Plan, least_duration, make_plan
from .plan.scenario import from_mix, load_scenario
from .units import BadArgument, parse_count, parse_positive_duration, seconds, size

ADAPTERS = ("core", "trio")
RAMP = 60.0
"""Virtual seconds over which the connections of a simulation arrive, unless a rate is given."""


def add_simulate(commands: Any, reading: Any) -> None:
    """The command `simulate` and its options."""
    command = commands.add_parser(
        "simulate",
        help="play the same plan against the library in virtual time, with no sockets",
        description="Virtual time, no sockets: the plan's clients against the library's core, or its trio adapter.",
    )
    duration = reading(parse_positive_duration)
    command.add_argument("--connections", type=reading(parse_count), default=100_000, metavar="N", help="default 100k")
    command.add_argument("--duration", type=duration, default=3600.0, help="virtual time after the ramp; default 1h")
    command.add_argument("--timeout", type=duration, default=300.0, help="default 5m")
    command.add_argument("--tick", type=duration, default=1.0, help="default 1s")
    command.add_argument("--adapter", choices=ADAPTERS, default="core", help="the core alone (default), or under trio")
    command.add_argument("--mix", default=DEFAULT_MIX, help=f"behaviours and weights; default {DEFAULT_MIX}")
    command.add_argument("--scenario", metavar="FILE", help="TOML file or a shipped scenario; instead of --mix")
    command.add_argument("--connect-rate", type=reading(parse_count), metavar="N", help="default: all within 60s")
    command.add_argument("--seed", type=int, default=1, help="default 1")
    for name, meaning in (
        ("stalls", "the loop is stalled for up to 5s"),
        ("jumps", "the clock jumps by up to 2m"),
        ("storms", "a tenth of the clients reconnects at once"),
    ):
        command.add_argument(
            f"--{name}", type=reading(parse_count), default=0, metavar="N", help=f"how often {meaning}"
        )
    command.add_argument(
        "--threshold", type=reading(parse_threshold), action="append", default=[], metavar="'NAME<VALUE'"
    )
    command.add_argument(
        "--journal", type=Path, metavar="DIR",
        help="write journals instead: of a server that keeps the law (DIR/server) and of its clients (DIR/client)",
    )  # fmt: skip
    command.add_argument("--events", type=reading(parse_count), metavar="N", help="rows of the server's, about; with "
                         "--journal, instead of --connections")  # fmt: skip
    command.add_argument("--mode", choices=("full", "gaps"), default="full", help="of the journals; default full")
    command.add_argument("--writers", type=reading(parse_count), default=1, metavar="N", help="server processes, with "
                         "--journal; default 1")  # fmt: skip
    command.add_argument("--side", choices=("both", "server"), default="both", help="of the journals; default both")
    command.add_argument(
        "--faults", type=Path, metavar="FILE", help="TOML: what the server did wrong, and how often; with --journal"
    )
    command.add_argument("--report", type=Path, metavar="FILE", help="write the JSON report here")
    command.add_argument("--html", type=Path, metavar="FILE", help="write a self-contained page here")
    command.add_argument("--json", action="store_true", help="print the report to standard output")
    command.add_argument("--quiet", action="store_true", help="no progress")
    command.set_defaults(run=run_simulate)


def run_simulate(options: argparse.Namespace) -> int:
    """`loadgen simulate`."""
    from .drive.client import rss_bytes
    from .judge.report import UNKNOWN_SERVER, build_report
    from .show.deliver import check_files, deliver
    from .simulate import Faults, simulate_core

    check_files(options)
    if options.journal:
        return run_journals(options)
    if options.faults or options.events:
        raise BadArgument("--faults and --events: give --journal DIR as well")
    law = Law(options.timeout, options.tick)
    scenario = load_scenario(options.scenario) if options.scenario else from_mix(options.mix)
    rate = options.connect_rate or max(options.connections / RAMP, 1.0)
    plan = make_plan(scenario, options.connections, law, options.duration, options.seed, rate)
    faults = Faults(options.stalls, options.jumps, options.storms)
    progress = None if options.quiet or not sys.stderr.isatty() else _show
    before, started, used = rss_bytes(), perf_counter(), process_time()
    if options.adapter == "trio":
        try:
            from .simulate_trio import simulate_trio
        except ImportError:
            raise BadArgument("--adapter trio needs trio: pip install 'idle-reaper[trio]'") from None

        seen = simulate_trio(plan, faults, progress)
    else:
        seen = simulate_core(plan, faults, progress)
    wall, cpu, after = perf_counter() - started, process_time() - used, rss_bytes()
    config = {
        "target": f"simulated {options.adapter}",
        "scenario": scenario.name,
        "mix": {behaviour.name: behaviour.weight for behaviour in plan.behaviours},
        "timeout_s": law.timeout,
        "tick_s": law.tick,
        "tolerance_s": law.tolerance,
        "duration_s": plan.duration,
        "connect_rate": rate,
        "faults": {"stalls": faults.stalls, "jumps": faults.jumps, "storms": faults.storms},
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
        "rss_bytes_per_connection": (after - before) / plan.connections,
    }
    if not options.json:
        print(
            f"simulated    {seconds(report['elapsed_s'])} in {seconds(wall)} of wall time ({seconds(cpu)} CPU), "
            f"{actions:,} actions, {actions / wall:,.0f} a second, {size((after - before) / plan.connections)} each"
        )
    return deliver(report, options)


def run_journals(options: argparse.Namespace) -> int:
    """`loadgen simulate --journal`."""
    try:
        from .journals import Planted, connections_for, load_planted, write_journals
    except ImportError as error:
        raise BadArgument(f"--journal needs pyarrow ({error}): pip install 'idle-reaper[journal]'") from None
    law = Law(options.timeout, options.tick)
    scenario = load_scenario(options.scenario) if options.scenario else from_mix(options.mix)
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


def _show(now: float, present: int) -> None:
    print(f"\r{seconds(now):>12}  {present:>9,} connected", end="\r", file=sys.stderr, flush=True)
