"""`python -m reaper doctor`: the flags, two looks with a pause between them, and what is printed.

The rule of this module: *it closes nothing and changes nothing*. Exit status: 0 nothing was found, 1
something was found, 2 it cannot look.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from ..config.flags import duration
from ..config.lint import lint
from ..config.running import stoppable
from ..config.settings import ReaperConfig
from ..errors import ConfigError, ReaperError, needs, printable

HEALTHY, FOUND, UNUSABLE = 0, 1, 2
SCHEMA = "reaper-doctor/1"
STARTS = 60.0
"""Seconds that COMMAND has until it listens."""
WIDTH = 96
STDERR = 2
"""The descriptor to which COMMAND writes what it would write to standard output."""


def add_commands(commands: Any) -> None:
    """Add `doctor` to *commands*, argparse's subparsers."""
    doctor = commands.add_parser(
        "doctor",
        help="look at a running server and say what is wrong with its connections",
        description="Look at a running server for a while, close nothing, and say in plain words "
        "what is wrong, each with its evidence and one command that mends it. Exit status: 0 "
        "nothing was found, 1 something was, 2 it cannot look.",
    )
    doctor.add_argument("--pid", type=int, metavar="N", help="this process and its children")
    doctor.add_argument("--listen", metavar="HOST:PORT", help="the server behind this address")
    doctor.add_argument(
        "--for",
        dest="seconds",
        type=duration(1.0),
        default=30.0,
        metavar="DURATION",
        help="how long to look; default 30s",
    )
    doctor.add_argument(
        "--idle",
        type=duration(1.0),
        default=300.0,
        metavar="DURATION",
        help="silence that is too long; default 5m",
    )
    doctor.add_argument(
        "--config",
        metavar="FILE",
        help="a reaper.toml, whose server.behind and timeouts.keep_alive are compared",
    )
    doctor.add_argument("--json", action="store_true", help="print one JSON object")
    doctor.add_argument(
        "command", nargs="*", metavar="COMMAND", help="after --: start this, look at it, end it"
    )
    doctor.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    try:
        return _examine(parsed)
    except ConfigError as error:
        for line in str(error).splitlines():
            print(line, file=sys.stderr)
    except (ReaperError, ImportError, OSError) as error:
        print(f"doctor: {printable(str(error))}", file=sys.stderr)
    return UNUSABLE


def _examine(parsed: argparse.Namespace) -> int:
    with needs("doctor", "idle-reaper[attach]"):
        from ..attach.kernel import Linux, Refusal
        from ..attach.targets import ByListen, ByPid, Target, parse_address
        from .looking import look
    from .facts import Examination
    from .findings import findings

    if sum([parsed.pid is not None, parsed.listen is not None, bool(parsed.command)]) != 1:
        raise Refusal("say what to look at: one of --pid N, --listen HOST:PORT and -- COMMAND")
    if not sys.platform.startswith("linux"):
        raise Refusal(f"needs Linux, whose kernel is asked; this is {sys.platform}")
    trouble = _proxy_trouble(parsed.config)
    with ExitStack() as stack:
        stop = stack.enter_context(stoppable())
        pid = parsed.pid
        if parsed.command:
            pid = stack.enter_context(_started(parsed.command)).pid
        kernel = Linux(pid)
        stack.callback(kernel.close)
        target: Target
        if pid is None:
            target = ByListen(parse_address(parsed.listen), kernel)
            asked = f"--listen {parsed.listen}"
        else:
            target = ByPid(pid, kernel, waits=bool(parsed.command))
            asked = f"--pid {pid}"
            _wait_until_it_listens(target, stop)
        first = look(target, kernel)
        stop.wait(parsed.seconds)
        last = look(target, kernel)
        seen = Examination(asked, first, last, parsed.idle, trouble, parsed.config or "")
        found = findings(seen)
        if parsed.json:
            said = {
                "schema": SCHEMA,
                "target": str(target),
                "seconds": round(last.at - first.at, 1),
                "connections": len(last.connections),
                "processes": len(last.processes),
                "findings": [one.record() for one in found],
            }
            print(json.dumps(said), flush=True)
        else:
            _print(str(target), last.at - first.at, len(last.connections), found)
    return FOUND if found else HEALTHY


def _proxy_trouble(path: str | None) -> str:
    """What is wrong with `timeouts.keep_alive` for the proxy that the file *path* names."""
    if path is None:
        return ""
    remarks = lint(ReaperConfig.load(path))
    said = [one for one in remarks if (one.severity, one.path) == ("error", "timeouts.keep_alive")]
    return "; ".join(f"keep_alive {one.text}" for one in said)


@contextmanager
def _started(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """The process of *command*, ended by SIGTERM, and by SIGKILL if that does not do."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=STDERR) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_until_it_listens(target: Any, stop: threading.Event) -> None:
    """Return when *target* listens. Raises Refusal: it has ended, or `STARTS` are over."""
    from ..attach.kernel import Refusal

    until = time.monotonic() + STARTS
    while not target.listeners():
        if stop.wait(0.1) or time.monotonic() > until:
            raise Refusal(f"{target} does not listen on a TCP port")
        target.read_at = float("-inf")  # so that its descriptors are read again


def _print(target: str, seconds: float, connections: int, found: list[Any]) -> None:
    count = f"{len(found)} finding{'s' * (len(found) != 1)}" if found else "nothing is wrong"
    print(f"{target}, looked at for {seconds:.0f} s, {connections:,} connections: {count}")
    for number, one in enumerate(found, 1):
        print()
        for name, text in (
            (f"{number}. {one.kind}", one.words),
            ("   seen", printable(one.evidence)),
        ):
            lines = textwrap.wrap(text, WIDTH - 18)
            print(f"{name:18}{lines[0]}")
            for line in lines[1:]:
                print(f"{'':18}{line}")
        print(f"{'   mend':18}{one.mend}")
