"""`make demo`: start the echo server, drive it with real connections, print the
verdict.

The verdict is the client's: the load generator computes it from what it saw, and knows
nothing of the reaper.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from loadgen.cli_options import COUNT, DURATION_OR_0, INTERRUPTED, option
from loadgen.units import seconds, size
from reaper.config.flags import Parser

from .limits import Machine, Plan, make_plan, shortages
from .serving import ROOT, DidNotStart, example, load, serving

TICK = "1s"


def main() -> int:
    """Run the demo. Exit status: 0 the law held, 1 it did not or something broke, 2 it
    cannot be run here.
    """
    parser = Parser(prog="make demo", description=__doc__)
    option(parser, "--connections", COUNT, "how many real TCP connections; default 10000", 10_000)
    option(
        parser,
        "--beat",
        DURATION_OR_0,
        "clients act at multiples of this; 0: each at its own instant; default: what --plan says",
    )
    parser.add_argument(
        "--plan", action="store_true", help="say what would be run and what it takes, and stop"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "demo")
    options = parser.parse_args()
    machine = Machine.here()
    plan = make_plan(options.connections, machine.descriptors, apart=options.beat == 0)
    if options.beat is not None:
        plan = replace(plan, beat=options.beat)
    lacking = shortages(plan, machine)
    if lacking:
        print(f"CONNECTIONS={plan.connections}: this machine is too small for it:", file=sys.stderr)
        print("\n".join(f"  {line}" for line in lacking), file=sys.stderr)
        return 2
    print("\n".join(described(plan)), flush=True)
    if options.plan:
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    return ended(lambda: run(plan, options.out))


def ended(run: Callable[[], int]) -> int:
    """The exit status of a demo, also of one that could not start its server or was
    interrupted.
    """
    try:
        return run()
    except DidNotStart as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


def described(plan: Plan) -> list[str]:
    """What will be run and what it takes, in lines of at most 80 columns."""
    takes = f"about {seconds(plan.expected)}, {size(plan.memory())} of memory"
    processes = f"{plan.generators} process{'es' if plan.generators > 1 else ''}"
    return [
        f"{plan.connections:,} connections, {takes}",
        f"server: {plan.workers} workers; timeout {plan.timeout} s, tick {TICK}",
        f"clients: at least {processes}, {plan.mix}",
        *([f"they act together, every {plan.beat * 1e3:g} ms"] if plan.beat else []),
    ]


def run(plan: Plan, out: Path) -> int:
    """Server, load, verdict. Returns the exit status."""
    for name in ("report.json", "report.html"):
        (out / name).unlink(missing_ok=True)  # of a run before: this one may end without any
    flags = f"--idle {plan.timeout}s --vanished {max(60, plan.timeout)}s --tick {TICK}"
    flags += f" --connections {plan.connections}"
    command = example("echo", *flags.split(), "--workers", str(plan.workers))
    # A session of its own: Ctrl-C reaches the generator alone, and the server is
    # stopped when it has ended.
    with serving(command, out / "server.log", session=True) as server:
        print(f"1. the server listens on {server.target}", flush=True)
        print(
            f"2. {plan.connections:,} clients that behave as planned, most of them badly",
            flush=True,
        )
        status = call(
            load(
                server.target,
                f"--server-pid {server.pid} --connections {plan.connections} "
                f"--connect-rate {plan.rate} --timeout {plan.timeout}s --tick {TICK} "
                f"--duration {plan.duration}s --mix {plan.mix} --beat {plan.beat * 1e3:g}ms",
                *("--report", str(out / "report.json"), "--html", str(out / "report.html")),
            )
        )
    print(textwrap.fill(f"3. {server.said().splitlines()[-1]}", 79, subsequent_indent="   "))
    if server.status:
        print(f"the server ended with status {server.status}", file=sys.stderr)
    if status in (0, 1, INTERRUPTED) and (out / "report.json").exists():
        print(f"report: {os.path.relpath(out / 'report.json')}")
        print(f"page: {os.path.relpath(out / 'report.html')}")
    return status or (1 if server.status else 0)


def call(command: list[str]) -> int:
    """The exit status of *command*. Ctrl-C reaches it as well, and it is waited for: it
    reports what it has seen.
    """
    with subprocess.Popen(command, cwd=ROOT) as process:
        while True:
            with suppress(KeyboardInterrupt):
                status = process.wait()
                return (
                    INTERRUPTED if status == -signal.SIGINT else status
                )  # it had not begun to listen for it


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:
        # The reader has gone; what the interpreter flushes at its end must not meet the
        # pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
