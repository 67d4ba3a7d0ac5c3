"""`python -m reaper attach`: flags in, a watch that runs until it is told to stop.

One rule: *nothing is closed unless `--close` says so*, and what cannot be done is
refused before it is begun, in one line, with exit status 2. The flags become a
`Request`, and that goes on.
"""

from __future__ import annotations

import argparse
import ctypes
import ipaddress
import select
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from ..config.flags import add_settings, duration, settings
from ..config.settings import ReaperConfig
from ..errors import ConfigError, ReaperError, needs
from .kernel import Linux, Refusal
from .netlink import Network
from .output import Output, in_words
from .request import Request
from .show import Json, Lines, Table, View, dropped_record, families
from .watch import Watch

GOOD, UNUSABLE = 0, 2
STANDARD_OUTPUT = 1
LEARNT = 5.0
"""Seconds: the shortest silence that `--learn` writes unless `--gap` says another."""
M_MMAP_THRESHOLD, LARGE = -3, 128 * 1024
"""malloc.h, and the bytes from which on a block is a mapping of its own: its first
value there.
"""


def add_commands(commands: Any) -> None:
    """Add `attach` to *commands*, argparse's subparsers."""
    attach = commands.add_parser(
        "attach",
        help="show, and close, the idle connections of any running server",
        description="Show, and with --close end, the idle connections of a running server, in any "
        "language, from outside. The kernel says when each last spoke. Stops on Ctrl-C or SIGTERM; "
        "leaves nothing behind. Exit status: 0 stopped, or the process has ended; 2 it cannot be "
        "done.",
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
    attach.add_argument("--config", metavar="FILE", help="a reaper.toml; its [attach] counts")
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
    attach.add_argument("--gap", type=duration(0.1), metavar="DURATION", help=words)
    attach.add_argument("--metrics", metavar="HOST:PORT", help="serve Prometheus metrics there")
    attach.add_argument(
        "--json", action="store_true", help="print one JSON object per event: --log-format json"
    )
    add_settings(attach, ["attach", "reaper.log_format"], prefix="attach-")
    attach.set_defaults(run=run)


MAPPED = ipaddress.IPv6Network("::ffff:0:0/96")
"""The addresses of IPv4 as a socket of IPv6 shows them. The kernel's answers are
unmapped.
"""


def _network(text: str) -> Network:
    """The network in *text*; one of mapped addresses is that of IPv4, or it would match
    nobody.
    """
    try:
        found = ipaddress.ip_network(text)
        if isinstance(found, ipaddress.IPv6Network) and found.subnet_of(MAPPED):
            mapped = found.network_address.ipv4_mapped
            return ipaddress.ip_network(f"{mapped}/{found.prefixlen - MAPPED.prefixlen}")
        return found
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{error}: expected a network such as 10.0.0.0/8 or ::1/128"
        ) from None


def run(parsed: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    try:
        if not sys.platform.startswith("linux"):
            raise Refusal(
                "needs Linux, whose kernel knows when each connection last spoke; "
                f"this is {sys.platform}"
            )
        with ExitStack() as stack:
            request = _request(parsed)
            give_back_large_blocks()
            return _watch(request, stack)
    except ConfigError as error:
        for line in str(error).splitlines():
            print(line, file=sys.stderr)
    except (ReaperError, ImportError, OSError) as error:
        print(f"attach: {error}", file=sys.stderr)
    return UNUSABLE


def give_back_large_blocks() -> None:
    """Have libc give each large block that is freed back to the system, as it does at
    first.

    By itself it raises the bound to the largest that was freed, up to 32 MiB, and takes
    the next from its heap, which never shrinks below what is in use. The list of
    sockets is read anew every few seconds: of 100,000 connections it left 120 bytes
    each.
    """
    with suppress(AttributeError, OSError):  # a libc without mallopt
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE)


def _request(parsed: argparse.Namespace) -> Request:
    """The flags, and the file that `--config` names, as one value.

    Raises:
        ConfigError: a setting cannot be used.
        Refusal: two flags contradict each other.
    """
    if parsed.gap is not None and parsed.learn is None:
        raise Refusal("--gap says what --learn writes: give --learn DIR as well, or leave it out")
    loaded = ReaperConfig.load(parsed.config, overrides=settings(parsed))
    return Request(
        pid=parsed.pid,
        listen=parsed.listen,
        config=loaded.attach,
        closes=parsed.close,
        only=tuple(parsed.only_networks),
        never=tuple(parsed.except_networks),
        as_json=parsed.json or loaded.reaper.log_format == "json",
        journal=parsed.journal,
        metrics=parsed.metrics,
        learn=parsed.learn,
        gap=LEARNT if parsed.gap is None else parsed.gap,
    )


def _watch(request: Request, stack: ExitStack) -> int:
    """Do what *request* asks for until a signal, or until the target is gone; the exit
    status.
    """
    with needs("this", "idle-reaper[attach]"):
        from .learn import journal_in, learn
        from .runner import Runner, limits_of
        from .targets import ByListen, ByPid, Target, parse_address
    if request.learn is None:
        limits_of(request.config)  # what is wrong with the flags is said before a target is
    kernel = Linux(request.pid)
    stack.callback(kernel.close)
    target: Target
    if request.listen is not None:
        target = ByListen(parse_address(request.listen), kernel)
    else:
        assert request.pid is not None  # argparse wants one of the two
        target = ByPid(request.pid, kernel)
    target.only, target.never = request.only, request.never
    output = Output(STANDARD_OUTPUT, dropped_record if request.as_json else in_words)
    stack.callback(_end, output)
    tick = request.config.tick
    if request.learn is not None:
        learn(target, request.learn, request.gap, tick, output.line)
        return GOOD
    runner = Runner(
        target,
        request.config,
        view=lambda watch: _view(watch, request.as_json, output),
        closes=request.closes,
    )
    if request.metrics is not None:
        _serve_metrics(runner, output, request.metrics, stack)
    if request.journal is not None:
        gap = 2 * runner.period
        runner.keep(stack.enter_context(journal_in("--journal", request.journal, tick, gap)))
    return runner.run()


def _view(watch: Watch, as_json: bool, output: Output) -> View:
    """The way to show *watch*: objects if asked for, a table on a terminal, otherwise
    lines.
    """
    if as_json:
        return Json(watch, time.monotonic, output)
    if not output.isatty():
        return Lines(watch, output.line)
    with needs("the live table", "idle-reaper[cli]"):
        return Table(watch, output)


def _end(output: Output) -> None:
    """Let the last lines go out, and say on stderr how many could not."""
    unread = output.close()
    # stderr may be the same full pipe as stdout: then this line would block, too.
    if unread and select.select([], [sys.stderr], [], 0)[1]:
        print(f"attach: the last {unread} lines were not read", file=sys.stderr)


def _serve_metrics(runner: Any, output: Output, text: str, stack: ExitStack) -> None:
    """Serve metrics of *runner* at the address *text* until *stack* ends."""
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
