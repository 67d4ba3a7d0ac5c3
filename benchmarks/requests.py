"""Requests per second of guarded uvicorn: beside stock, and beside the guard of another
commit.

    python -m benchmarks.requests [--against COMMIT] [--rounds N] [--seconds N]
                                [--loop L] [--http H]

All servers run at once, and wrk asks one after the other, round by round. The control
is stock uvicorn a second time: how far that is from 1.00 is the error of the others.
Nothing else may run beside it; `run` leaves it out, because it takes minutes.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from reaper.config.flags import Parser
from scripts.provenance import machine
from scripts.serving import free_port
from scripts.tools import Missing, tool

from .common import ROOT, figure, markdown, ratios, spread, times
from .servers.apps import KEPT
from .servers.process import APPS, Server
from .servers.run import asked

GUARDED = {"httptools": "reaper.uvicorn:HttpTools", "h11": "reaper.uvicorn:H11"}
STOCK, CONTROL, NOW = "stock", "stock, again (control)", "guarded"


def main() -> int:
    """Measure and print. Exit status: 0 measured, 1 a server or wrk failed, 2 bad
    arguments.
    """
    parser = Parser(prog="python -m benchmarks.requests", description=__doc__.splitlines()[0])
    parser.add_argument("--against", metavar="COMMIT", help="also the guard as this commit has it")
    parser.add_argument("--rounds", type=_count, default=21)
    parser.add_argument("--seconds", type=_count, default=2, help="of wrk, per server and round")
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop")
    parser.add_argument("--http", choices=tuple(GUARDED), default="httptools")
    options = parser.parse_args()
    try:
        tool("wrk")
        before = None if options.against is None else commit(options.against)
    except (Missing, LookupError) as error:
        parser.error(str(error))
    about = machine()
    try:
        taken = measured(options.loop, options.http, options.rounds, options.seconds, before)
    except (RuntimeError, ValueError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"uvicorn, {options.http} on {options.loop}, {options.rounds} rounds of wrk.", end=" ")
    print(f"Commit {about['commit'][:12]}, {about['date']}, load {about['load_before']:.1f}.\n")
    print(table(taken, before))
    print(json.dumps({"about": about, "taken": taken}), file=sys.stderr)
    return 0


def _count(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number, 1 or more")
    return number


def commit(name: str) -> str:
    """The id of the commit that *name* means. Raises LookupError: there is none."""
    command = ["git", "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode:
        raise LookupError(f"--against {name}: must be a commit of this repository")
    return found.stdout.strip()


@contextmanager
def tree_of(name: str) -> Iterator[Path]:
    """The files of the commit *name*, in a folder for the length of the block.

    Raises:
        RuntimeError: a program that is started there would import another `reaper`.
    """
    with tempfile.TemporaryDirectory(prefix="reaper-requests-") as folder:
        packed = subprocess.run(
            ["git", "archive", name], cwd=ROOT, capture_output=True, check=True
        ).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(folder, filter="data")
        said = subprocess.run(
            [sys.executable, "-c", "import reaper; print(reaper.__file__)"],
            cwd=folder, capture_output=True, text=True, check=True,
        )  # fmt: skip
        if not Path(said.stdout.strip()).is_relative_to(folder):
            raise RuntimeError(f"{folder}: programs there import {said.stdout.strip()}")
        yield Path(folder)


def measured(
    loop: str, http: str, rounds: int, seconds: int, before: str | None
) -> dict[str, dict[str, list[float]]]:
    """What wrk finds, by server and measure, a figure a round."""
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="reaper-requests-")))
        wanted = {STOCK: (http, ROOT), CONTROL: (http, ROOT), NOW: (GUARDED[http], ROOT)}
        if before is not None:
            wanted[old(before)] = GUARDED[http], ends.enter_context(tree_of(before))
        servers: dict[str, Server] = {}
        for number, (name, (protocol, cwd)) in enumerate(wanted.items()):
            words = f"-m uvicorn {APPS}:asgi --http {protocol} --loop {loop} --no-access-log"
            words += (
                f" --timeout-keep-alive {KEPT} --log-level warning --port {(port := free_port())}"
            )
            command = [sys.executable, *words.split()]
            servers[name] = Server(name, command, folder / f"{number}.log", port, cwd=cwd)
            ends.callback(servers[name].end)
            ends.callback(servers[name].stop)
        for server in servers.values():
            server.wait_until_it_listens()
            server.check()
        taken: dict[str, dict[str, list[float]]] = {name: {} for name in servers}
        for server in servers.values():
            asked(server, seconds)  # warm
        names = list(servers)
        for turn in range(rounds):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                for measure, value in asked(servers[name], seconds).items():
                    taken[name].setdefault(measure, []).append(value)
    return taken


def old(before: str) -> str:
    """What the guard of the commit *before* is called."""
    return f"guarded, {before[:12]}"


def table(taken: dict[str, dict[str, list[float]]], before: str | None) -> str:
    """A row per server: how many requests, and how that compares with stock, round by
    round; then the guard beside that of *before*.
    """

    def compared(ours: str, theirs: str) -> list[str]:
        return [
            times(ratios(taken[ours][measure], taken[theirs][measure]), 3)
            for measure in ("requests_per_second", "cpu_us")
        ]

    rows: list[Sequence[str]] = []
    for name, found in taken.items():
        shown = [
            figure(spread(found[each])["median"]) for each in ("requests_per_second", "cpu_us")
        ]
        of_stock: Any = ["", ""] if name == STOCK else compared(name, STOCK)
        rows.append([name, *shown, *of_stock])
    head = ["", "requests per s", "CPU us each", "requests, of stock", "CPU, of stock"]
    lines = [markdown(head, rows)]
    if before is not None:
        requests, cpu = compared(NOW, old(before))
        control, _ = compared(CONTROL, STOCK)
        lines.append(
            f"Guarded, now against {before[:12]}: requests {requests}, CPU {cpu}. "
            f"The control, requests: {control}."
        )
    return "\n\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
