"""The command `session`: start one that stays, stop it, or look at it."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from ..arguments import AddCommand, Fault, Progress, positive_ns, show
from .java import NoSpark, check_java
from .standing import Standing, born, forget, load, ours, place, release

START_S = 90.0
"""How long Spark may take to start."""

STOP_S = 20.0
LOOK_S = 0.1
IDLE_NS = 600 * 10**9


def add(command: AddCommand) -> None:
    """Declare `session`."""
    sub = command("session", _session, "A Spark that stays: audit, advise, report and what-if then answer in seconds.")
    sub.add_argument("action", choices=("start", "stop", "status"), help="status: exit status 1 where there is none")
    sub.add_argument(
        "--idle", type=positive_ns, default=IDLE_NS, metavar="DURATION",
        help="it ends when no command has used it for so long; default 10m",
    )  # fmt: skip


def _session(arguments: argparse.Namespace, progress: Progress) -> int:
    where = place()
    there = load(where)
    if there is not None and not there.alive:
        forget(where)
        there = None
    action = {"start": _start, "stop": _stop, "status": _status}[arguments.action]
    return action(arguments, progress, where, there)


def _status(arguments: argparse.Namespace, _progress: Progress, _where: Path, there: Standing | None) -> int:
    found = None if there is None else {"pid": there.pid, "port": there.port, "release": there.release}
    if there is None or found is None:
        show(arguments, {"running": False}, "no session")
        return 1
    summary = {"running": True, **found, "age_s": time.time() - there.started, "idle_s": there.idle_s}
    summary["warm"] = there.warm
    show(arguments, summary, _shown(there))
    return 0


def _start(arguments: argparse.Namespace, progress: Progress, where: Path, there: Standing | None) -> int:
    if there is not None:
        if there.release != release():
            raise Fault(f"a session of {there.release} is running, this is {release()}: stop it first")
        show(arguments, {"running": True, "pid": there.pid}, f"there already: {_shown(there)}")
        return 0
    check_java()
    if find_spec("grpc") is None:
        raise NoSpark("Spark Connect needs grpc: pip install 'idle-reaper[connect]'")
    with suppress(FileExistsError):
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not ours(where):
        raise Fault(f"{where} is no directory of yours: set REAPER_SESSION to one")
    where.chmod(0o700)
    progress("starting Spark")
    log = where / "session.log"
    command = [sys.executable, "-m", "reaper.pipeline.session.keeper", str(where), f"{arguments.idle / 1e9}"]
    with open(log, "wb", opener=lambda path, how: os.open(path, how, 0o600)) as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    until = time.monotonic() + START_S
    while (there := load(where)) is None or there.pid != process.pid:
        if process.poll() is not None or time.monotonic() > until:
            process.kill()
            process.wait()
            said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["it said nothing"]
            raise NoSpark(f"the session does not start: {said[-1]}")
        time.sleep(LOOK_S)
    process.returncode = 0  # it stays; Python would otherwise warn that it was not waited for
    show(arguments, {"running": True, "pid": there.pid}, _shown(there))
    return 0


def _stop(arguments: argparse.Namespace, _progress: Progress, where: Path, there: Standing | None) -> int:
    if there is None:
        show(arguments, {"running": False}, "no session")
        return 0
    os.kill(there.pid, signal.SIGTERM)
    until = time.monotonic() + STOP_S
    while born(there.pid) == there.born:
        if time.monotonic() > until:
            os.kill(there.pid, signal.SIGKILL)
            forget(where)
        time.sleep(LOOK_S)
    show(arguments, {"running": False}, "stopped")
    return 0


def _shown(there: Standing) -> str:
    warm = "; warm" if there.warm else ""
    return f"session: process {there.pid}, {there.release}; ends after {there.idle_s:g} s without a command{warm}"
