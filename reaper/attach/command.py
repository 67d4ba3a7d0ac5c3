"""`python -m reaper attach`: flags in, a watch that runs until it is told to stop.

One rule: *nothing is closed unless `--close` says so*, and what cannot be done is refused before it
is begun, in one line, with exit status 2.
"""

from __future__ import annotations

import argparse
import ipaddress
import select
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ..config.flags import add_settings, duration, settings
from ..config.settings import Attach, ReaperConfig
from ..errors import ConfigError, ReaperError, needs
from .kernel import Linux, Refusal
from .output import Output, in_words
from .show import Json, Lines, Table, View, dropped_record, families
from .watch import Watch

GOOD, UNUSABLE = 0, 2
STANDARD_OUTPUT = 1

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def add_commands(commands: Any) -> None:
    """Add `attach` to *commands*, argparse's subparsers."""
    attach = commands.add_parser(
        "attach",
        help="show, and close, the idle connections of any running server",
        description="Show, and with --close end, the idle connections of a running server, in any language, from "
        "outside. The kernel says when each last spoke. Stops on Ctrl-C or SIGTERM; leaves nothing behind. "
        "Exit status: 0 stopped, or the process has ended; 2 it cannot be done.",
    )
    target = attach.add_mutually_exclusive_group(required=True)
    target.add_argument(
        "--pid", type=int, metavar="N", help="the servers of this process and its children"
    )
    target.add_argument(
        "--listen", metavar="HOST:PORT", help="the server behind this address, restarts included"
    )
    attach.add_argument(
        "--close", action="store_true", help="close what is due; without it nothing is closed"
    )
    for name, what in (("only", "watch no clients but those"), ("except", "never watch clients")):
        attach.add_argument(
            f"--{name}",
            dest=f"{name}_networks",
            type=_network,
            action="append",
            default=[],
            metavar="CIDR",
            help=f"{what} of this network; repeatable",
        )
    attach.add_argument("--config", metavar="FILE", help="a reaper.toml, of which [attach] counts")
    attach.add_argument(
        "--journal", type=Path, metavar="DIR", help="write what happens as journal files there"
    )
    attach.add_argument(
        "--learn",
        type=Path,
        metavar="DIR",
        help="close nothing; write how long clients stay silent, for advise",
    )
    words = "with --learn: the shortest silence written; 5s"
    attach.add_argument("--gap", type=duration(0.1), default=5.0, metavar="DURATION", help=words)
    attach.add_argument("--metrics", metavar="HOST:PORT", help="serve Prometheus metrics there")
    attach.add_argument(
        "--json", action="store_true", help="print one JSON object per event: --log-format json"
    )
    add_settings(attach, ["attach", "reaper.log_format"], prefix="attach-")
    attach.set_defaults(run=run)


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{error}: expected a network such as 10.0.0.0/8 or ::1/128"
        ) from None


def run(parsed: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    try:
        if not sys.platform.startswith("linux"):
            raise Refusal(
                f"needs Linux, whose kernel knows when each connection last spoke; this is {sys.platform}"
            )
        if parsed.learn is not None and (
            parsed.close or parsed.journal is not None or parsed.metrics is not None
        ):
            raise Refusal(
                "--learn closes nothing and has its own journal: leave --close, --journal and --metrics out"
            )
        loaded = ReaperConfig.load(parsed.config, overrides=settings(parsed))
        config = loaded.attach
        parsed.json = parsed.json or loaded.reaper.log_format == "json"
        with ExitStack() as stack:
            return _watch(parsed, config, stack)
    except ConfigError as error:
        for line in str(error).splitlines():
            print(line, file=sys.stderr)
    except (ReaperError, ImportError, OSError) as error:
        print(f"attach: {error}", file=sys.stderr)
    return UNUSABLE


def _watch(parsed: argparse.Namespace, config: Attach, stack: ExitStack) -> int:
    with needs("this", "idle-reaper[attach]"):
        from .learn import journal_in, learn
        from .runner import Runner
        from .targets import ByListen, ByPid, parse_address
    kernel = Linux(parsed.pid)
    stack.callback(kernel.close)
    target = (
        ByListen(parse_address(parsed.listen), kernel)
        if parsed.pid is None
        else ByPid(parsed.pid, kernel)
    )
    target.only, target.never = parsed.only_networks, parsed.except_networks
    output = Output(STANDARD_OUTPUT, dropped_record if parsed.json else in_words)
    stack.callback(_end, output)
    if parsed.learn is not None:
        learn(target, parsed.learn, parsed.gap, config.tick, output.line)
        return GOOD
    runner = Runner(
        target, config, view=lambda watch: _view(watch, parsed.json, output), closes=parsed.close
    )
    if parsed.metrics is not None:
        _serve_metrics(runner, output, parsed.metrics, stack)
    if parsed.journal is not None:
        runner.keep(stack.enter_context(journal_in("--journal", parsed.journal, config.tick)))
    return runner.run()


def _view(watch: Watch, as_json: bool, output: Output) -> View:
    if as_json:
        return Json(watch, time.monotonic, output)
    if not output.isatty():
        return Lines(watch, output.line)
    with needs("the live table", "idle-reaper[cli]"):
        return Table(watch, output)


def _end(output: Output) -> None:
    unread = output.close()
    if unread and select.select([], [sys.stderr], [], 0)[1]:  # it may be the same pipe
        print(f"attach: the last {unread} lines were not read", file=sys.stderr)


def _serve_metrics(runner: Any, output: Output, text: str, stack: ExitStack) -> None:
    from .targets import parse_address

    with needs(f"--metrics {text}", "idle-reaper[prometheus]"):
        from prometheus_client import CollectorRegistry, start_http_server
    from ..metrics import ReaperCollector

    address = parse_address(text)
    registry = CollectorRegistry()
    registry.register(ReaperCollector(None, lambda: families(runner.watch, output.dropped)))
    try:
        server, thread = start_http_server(address.port, address.host, registry)
    except OSError as error:
        raise Refusal(f"--metrics {text}: {error.strerror}") from None
    stack.callback(thread.join)
    stack.callback(server.server_close)
    stack.callback(server.shutdown)
