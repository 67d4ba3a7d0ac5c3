"""`python -m reaper doctor`: the flags, two looks with a pause between them, and what
is printed.

The rule of this module: *it closes nothing and changes nothing*, unless `--mend` says
so. Exit status: 0 nothing was found, 1 something was found, 2 it cannot look.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from ..config.balancers import BALANCERS, ENDLESS
from ..config.flags import duration
from ..config.running import stoppable
from ..config.settings import ReaperConfig
from ..errors import ConfigError, ReaperError, needs, printable
from .facts import Examination
from .findings import MENDS, NAT_FORGETS, findings, unjudged

HEALTHY, FOUND, UNUSABLE = 0, 1, 2
SCHEMA = "reaper-doctor/1"
STARTS = 60.0
"""Seconds that COMMAND has until it listens."""
GLANCE = 1.0
"""Seconds between two glances at what comes and goes, at most."""
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
        "--behind",
        choices=sorted((*BALANCERS, *ENDLESS)),
        metavar="PROXY",
        help="what is in front: is the keep-alive timeout longer than its own? "
        + ", ".join((*BALANCERS, *ENDLESS)),
    )
    doctor.add_argument(
        "--config",
        metavar="FILE",
        help="a reaper.toml, whose timeouts.keep_alive is compared with the proxy of --behind or "
        "server.behind",
    )
    doctor.add_argument("--json", action="store_true", help="print one JSON object")
    doctor.add_argument(
        "--mend",
        choices=MENDS,
        metavar="KIND",
        help=f"look only for this finding, and mend it: {', '.join(MENDS)}",
    )
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
    except BrokenPipeError:  # The reader has gone; `reaper.__main__` ends in silence.
        raise
    except (ReaperError, ImportError, OSError) as error:
        print(f"doctor: {printable(str(error))}", file=sys.stderr)
    return UNUSABLE


def _examine(parsed: argparse.Namespace) -> int:
    with needs("doctor", "idle-reaper[attach]"):
        from ..attach.kernel import Linux, Refusal, namespace
        from ..attach.targets import ByListen, ByPid, Target, parse_address
        from .guarded import guards
        from .looking import Watch, look
        from .mending import mend, widen
        from .show import progress, show
        from .streams import streams

    ways = {
        "--pid": parsed.pid is not None,
        "--listen": parsed.listen is not None,
        "-- COMMAND": bool(parsed.command),
    }
    given = [way for way, asked in ways.items() if asked]
    if len(given) != 1:
        both = f"{' and '.join(given)} were given: " if given else ""
        raise Refusal(
            f"{both}say what to look at: one of --pid N, --listen HOST:PORT and -- COMMAND"
        )
    if parsed.mend and parsed.command:
        raise Refusal("--mend needs a server that runs: --pid N or --listen HOST:PORT")
    if not sys.platform.startswith("linux"):
        raise Refusal(f"needs Linux, whose kernel is asked; this is {sys.platform}")
    if parsed.config is not None:
        ReaperConfig.load(parsed.config)  # refused before anything is begun
    with ExitStack() as stack:
        stop = stack.enter_context(stoppable())
        pid, started = parsed.pid, None
        if parsed.command:
            started = stack.enter_context(_started(parsed.command))
            pid = started.pid
        kernel = Linux(pid)
        stack.callback(kernel.close)
        target: Target
        if pid is None:
            target = ByListen(parse_address(parsed.listen), kernel)
            asked = f"--listen {parsed.listen}"
        else:
            target = ByPid(pid, kernel, waits=bool(parsed.command))
            _wait_until_it_listens(target, stop, started)
            address = target.listeners()[0].address
            asked = f"--listen {address}" if parsed.command else f"--pid {pid}"
        if parsed.mend == "backlog":  # a queue that was full a moment ago need not be full now
            target.scan()
            mended, done = widen(target)
            print(f"backlog: {done}")
            return HEALTHY if mended else FOUND
        quiet = min(parsed.idle, NAT_FORGETS)
        first = look(target, kernel, quiet)
        watch = Watch(target, kernel)
        with progress(str(target), parsed.seconds, not parsed.json) as tell:

            def glance() -> None:
                watch.glance()
                tell(len(first.connections))

            _wait(parsed.seconds, stop, glance)
        last = look(target, kernel, quiet)
        if pid is None and not target.listeners():  # of a process, `look` has said it
            raise Refusal(f"{target}: nothing listens there any more; the server has ended")
        proxy, unsaid = _proxy(parsed, [one.command for one in last.processes])
        elsewhere = pid is not None and namespace(pid) != namespace(os.getpid())
        seen = Examination(
            asked,
            first,
            last,
            parsed.idle,
            watch.seen(),
            proxy,
            bool(parsed.command),
            pid if pid is not None and elsewhere else 0,
            guards(
                [one.pid for one in last.processes], [one.address for one in target.listeners()]
            ),
        )
        found = [one for one in findings(seen) if parsed.mend in (None, one.kind)]
        if parsed.mend:
            if not found:
                print(f"no {parsed.mend} was found: nothing to mend")
                return HEALTHY
            mended, done = mend(found[0], seen, target, kernel)
            print(f"{parsed.mend}: {found[0].seen.evidence}: {done}")
            return HEALTHY if mended else FOUND
        missing = [*unjudged(seen), *unsaid]
        if parsed.json:
            said = {
                "schema": SCHEMA,
                "target": str(target),
                "seconds": round(seen.seconds, 1),
                "connections": len(last.connections),
                "deserted": None if seen.deserted is None else round(seen.deserted, 1),
                "processes": len(last.processes),
                "guarded": seen.guards.record(),
                "streams": streams(seen).record(),
                "findings": [one.record() for one in found],
                "not_judged": missing,
            }
            print(json.dumps(said), flush=True)
        else:
            show(str(target), seen, found, missing)
    return FOUND if found else HEALTHY


def _wait(seconds: float, stop: threading.Event, glance: Callable[[], None]) -> None:
    """Wait for *seconds*, or until *stop*, and glance now and then."""
    until = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        glance()
        now = time.monotonic()
        # A tenth of the time at most, however many connections there are.
        pause = max(min(GLANCE, seconds / 10), 9 * (now - began))
        if stop.wait(max(min(pause, until - now), 0.0)) or time.monotonic() >= until:
            return


def _proxy(
    parsed: argparse.Namespace, commands: list[tuple[str, ...]]
) -> tuple[tuple[str, str] | None, list[str]]:
    """What is wrong with the keep-alive timeout, with the command that mends it; and
    what was not judged.
    """
    from .proxies import by_command, by_config, pool_by_command, pool_by_config

    if parsed.config is not None:
        given = parsed.config, parsed.behind
        return by_config(*given), pool_by_config(*given)
    if parsed.behind is None:
        return None, ["proxy: if one is in front, say which: --behind nginx, alb, haproxy, ..."]
    for command in commands:
        with suppress(LookupError):
            found = by_command(command, parsed.behind)
            return found, pool_by_command(command, parsed.behind)
    return None, ["proxy: the command does not say the keep-alive timeout; say --config FILE"]


@contextmanager
def _started(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """The process of *command*, ended by SIGTERM, and by SIGKILL if that does not do.

    It has a process group of its own: a Ctrl-C ends the looking, and then we end it.

    Raises:
        Refusal: the block could not look, and *command* has ended by itself.
    """
    from ..attach.kernel import Refusal

    started = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=STDERR, process_group=0)
    with started as process:
        try:
            yield process
        except Refusal:
            status = process.poll()
            if status is None:
                raise
            how = f"with status {status}" if status >= 0 else f"by {signal.Signals(-status).name}"
            raise Refusal(f"{command[0]} has ended {how}; nothing is left to look at") from None
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
            with suppress(ProcessLookupError):  # its children, if it has left any
                os.killpg(process.pid, signal.SIGTERM)


def _wait_until_it_listens(
    target: Any, stop: threading.Event, started: subprocess.Popen[bytes] | None
) -> None:
    """Return when *target* listens. Raises Refusal: it has ended, or `STARTS` are over.

    *started* is asked as well: a process of ours that has ended is there until we wait
    for it.
    """
    from ..attach.kernel import Refusal

    until = time.monotonic() + STARTS
    while not target.listeners():
        if started is not None and started.poll() is not None:
            raise Refusal(f"{target} has ended")
        if stop.wait(0.1) or time.monotonic() > until:
            raise Refusal(f"{target} does not listen on a TCP port")
        target.read_at = float("-inf")  # so that its descriptors are read again
