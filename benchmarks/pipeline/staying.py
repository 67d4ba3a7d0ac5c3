"""Commands of the pipeline, each in a process of its own, and a session that stays, as users have it.

One rule: *a session is asked no question before its user would ask one*: it is started by its command, and left alone
until it says that it is warm. What it warms itself with is its own affair, and never the journal that is measured.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks.common import ROOT
from reaper.pipeline.session.standing import load

LOOK_S = 0.5
PATIENCE_S = 300.0
"""How long a session may take to be warm."""


def ask(arguments: list[str], environment: Mapping[str, str]) -> float:
    """Run one command of the pipeline to its end: seconds.

    Raises:
        RuntimeError: it failed.
    """
    began = time.perf_counter()
    command = [sys.executable, "-m", "reaper.pipeline", *arguments]
    with tempfile.TemporaryFile("w+") as said:
        status = subprocess.run(command, env=environment, cwd=ROOT, stdout=said, stderr=said, check=False).returncode
        seconds = time.perf_counter() - began
        if status:
            said.seek(0)
            raise RuntimeError(f"{' '.join(arguments)} ended with {status}: {said.read()[-2000:]}")
    return seconds


def none(place: Path) -> dict[str, str]:
    """The environment of a command that finds no session."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "REAPER_SESSION": str(place / "no-session")}


@contextmanager
def staying(place: Path, environment: Mapping[str, str], note: Callable[[float], None]) -> Iterator[dict[str, str]]:
    """A session of its own in *place*; its commands' environment.

    Args:
        note: Gets the seconds that its start took.
    Raises:
        RuntimeError: it does not start.
    """
    found = {**environment, "REAPER_SESSION": str(place)}
    note(ask(["session", "start", "--quiet"], found))
    try:
        yield found
    finally:
        ask(["session", "stop", "--quiet"], found)


def leave_alone(place: Path) -> float:
    """Wait until the session in *place* is warm: seconds since it began to listen.

    Raises:
        RuntimeError: it has ended, or is not warm in time.
    """
    until = time.monotonic() + PATIENCE_S
    while (there := load(place)) is not None and time.monotonic() < until:
        if there.warm:
            return time.time() - there.started
        time.sleep(LOOK_S)
    raise RuntimeError(f"the session in {place} {'has ended' if there is None else 'does not become warm'}")


def keeper(place: Path) -> int:
    """The number of the process that keeps the session in *place*.

    Raises:
        RuntimeError: there is none.
    """
    if (there := load(place)) is None:
        raise RuntimeError(f"no session in {place}")
    return there.pid
